#pragma once

#include <string_view>

#include "huggingface/file.hpp"
#include "huggingface/tensor_entry.hpp"

namespace offstage::huggingface {

/// True if a file that begins so is an archive (ZIP), as torch.save writes since PyTorch 1.6.
[[nodiscard]] bool is_archive(std::string_view beginning);

/// The tensors of a state_dict that torch.save wrote. Its records are not compressed, so that each
/// tensor is a part of the file.
/// Source: APPNOTE.TXT of PKWARE; PyTorch's caffe2/serialize/inline_container.h.
/// Errors: DataError naming the path: no archive of torch.save, damaged or cut, compressed or
///         big-endian, and see state_dict.hpp; IoError.
[[nodiscard]] TensorEntries read_torch_archive(File const& file);

}  // namespace offstage::huggingface
