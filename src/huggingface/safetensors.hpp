#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.hpp"
#include "base/units.hpp"
#include "huggingface/file.hpp"

namespace offstage::huggingface {

/// A tensor inside a safetensors file.
struct TensorEntry {
  std::string name;
  std::string dtype;  ///< as written: "F32", "BF16", "F16", or one that is not read here
  std::vector<std::int64_t> shape;  ///< row-major
  Bytes begin{};                    ///< in the file
  Bytes end{};
};
/// A shape in words, "[4, 8]"; no more than eight numbers of it.
[[nodiscard]] std::string shape_text(std::vector<std::int64_t> const& shape);

/// The tensors of a file, by name, from its header (JSON text without the length before it) and the
/// bytes that follow it. `path` is named in errors.
/// Errors: DataError naming the tensor or field: not JSON, a key twice, unknown or missing fields,
///         a dtype or shape that does not fit its bytes, offsets that overlap, leave holes or end
///         elsewhere than the file, `__metadata__` that is no map of strings.
[[nodiscard]] std::map<std::string, TensorEntry> parse_header(std::string_view json,
                                                              Bytes buffer_bytes,
                                                              std::string const& path);

/// One safetensors file, open for reading.
/// Threads: any.
/// Errors:  DataError naming the path for what is wrong in it (a Git LFS pointer, a header beyond
///          100 MB or beyond the file, see parse_header); IoError if it cannot be opened or read.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::string const& path);

  [[nodiscard]] std::string const& path() const noexcept { return file_.path(); }
  [[nodiscard]] std::map<std::string, TensorEntry> const& tensors() const noexcept {
    return tensors_;
  }
  /// Elements [first, first + out.size()) of a tensor, F32, BF16 or F16, as FP32 (exact). Takes no
  /// memory beside `out`. Errors: DataError if the file was cut since.
  void read(TensorEntry const& tensor, std::int64_t first, std::span<float> out) const;

 private:
  File file_;
  std::map<std::string, TensorEntry> tensors_;
};

}  // namespace offstage::huggingface
