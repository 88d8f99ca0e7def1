#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "state/shard.hpp"

namespace offstage::state {

/// Gives a model's parameters in FP32, any chunks of any layer, from a Hugging Face model or a
/// checkpoint.
/// Threads: one. Errors: DataError, IoError naming the file.
class ParameterReader {
 public:
  virtual ~ParameterReader() = default;
  [[nodiscard]] virtual ModelShape const& shape() const = 0;
  /// A line for the user about something in the model's files that training leaves out; empty:
  /// there is nothing.
  [[nodiscard]] virtual std::string left_out() const { return {}; }
  /// Fills `out` (chunks.count * chunk_elements) with chunks of a layer of layers_of(shape()),
  /// padding with zeros.
  virtual void read(int layer, ChunkRange chunks, std::span<float> out) = 0;
};

/// Fills chunks of a layer with the model's initial parameters, padding with zeros. An element
/// depends on the seed, the tensor's index and its place in the tensor alone, never on ranks or
/// chunks.
/// Shapes: `out` has chunks.count * chunk_elements elements.
/// Threads: OpenMP.
void initialize(LayerLayout const& layer, std::uint64_t seed, ChunkRange chunks,
                std::span<float> out);

}  // namespace offstage::state
