#pragma once

#include <string>
#include <string_view>

#include "base/units.hpp"
#include "huggingface/file.hpp"
#include "huggingface/tensor_entry.hpp"

namespace offstage::huggingface {

/// The tensors of a file, by name, from its header (JSON text without the length before it) and the
/// bytes that follow it. `path` is named in errors.
/// Errors: DataError naming the tensor or field: not JSON, a key twice, unknown or missing fields,
///         a dtype or shape that does not fit its bytes, offsets that overlap, leave holes or end
///         elsewhere than the file, `__metadata__` that is no map of strings.
[[nodiscard]] TensorEntries parse_header(std::string_view json, Bytes buffer_bytes,
                                         std::string const& path);

/// The tensors of a safetensors file.
/// Errors: DataError naming the path for what is wrong in it (a header beyond 100 MB or beyond the
///         file, and see parse_header); IoError.
[[nodiscard]] TensorEntries read_safetensors(File const& file);

}  // namespace offstage::huggingface
