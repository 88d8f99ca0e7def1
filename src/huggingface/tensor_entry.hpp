#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/units.hpp"

namespace offstage::huggingface {

/// A tensor inside a file.
struct TensorEntry {
  std::string name;
  std::string
      dtype;  ///< as safetensors name it: "F32", "BF16", "F16", or one that is not read here
  std::vector<std::int64_t> shape;  ///< row-major
  Bytes begin{};                    ///< in the file
  Bytes end{};
};
constexpr std::size_t most_dimensions = 64;
/// By name.
using TensorEntries = std::map<std::string, TensorEntry>;

/// A shape in words, "[4, 8]"; no more than eight numbers of it.
[[nodiscard]] std::string shape_text(std::vector<std::int64_t> const& shape);

/// Bits of an element of a dtype; 0 if safetensors know no such dtype.
[[nodiscard]] std::int64_t bits_of(std::string const& dtype);

}  // namespace offstage::huggingface
