#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/dtype.hpp"
#include "state/initialize.hpp"
#include "state/model_shape.hpp"

namespace offstage::generate {

/// A model with all its parameters in the host's memory, in one process.
///
/// Memory: all parameters in the given type, and keys and values of the tokens that it has seen,
///         whose room doubles as the context grows, up to model.max-sequence.
/// Time:   one row of every product for each token that the last call did not begin with, and
///         attention to all tokens before it.
class LanguageModel {
 public:
  virtual ~LanguageModel() = default;
  [[nodiscard]] virtual state::ModelShape const& shape() const = 0;
  /// The logits (V) of what follows 1 to max_sequence tokens, each of the vocabulary; valid until
  /// the next call.
  [[nodiscard]] virtual std::span<float const> logits(std::span<std::int32_t const> tokens) = 0;
};

/// Reads all parameters; `type` is fp32 or bf16.
/// Errors: UsageError if they do not fit into the memory that is free; those of the reader.
[[nodiscard]] std::unique_ptr<LanguageModel> load(state::ParameterReader& reader, DType type);

}  // namespace offstage::generate
