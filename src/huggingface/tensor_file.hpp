#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "huggingface/file.hpp"
#include "huggingface/tensor_entry.hpp"

namespace offstage::huggingface {

/// One file of tensors, open for reading: safetensors, or a state_dict that torch.save wrote.
/// Threads: any.
/// Errors:  DataError naming the path for what is wrong in it (a Git LFS pointer, and see
///          safetensors.hpp and torch_archive.hpp); IoError if it cannot be opened or read.
class TensorFile {
 public:
  explicit TensorFile(std::string const& path);

  [[nodiscard]] std::string const& path() const noexcept { return file_.path(); }
  [[nodiscard]] TensorEntries const& tensors() const noexcept { return tensors_; }
  /// Elements [first, first + out.size()) of a tensor, F32, BF16 or F16, as FP32 (exact). Takes no
  /// memory beside `out`. Errors: DataError if the file was cut since.
  void read(TensorEntry const& tensor, std::int64_t first, std::span<float> out) const;

 private:
  File file_;
  TensorEntries tensors_;
};

}  // namespace offstage::huggingface
