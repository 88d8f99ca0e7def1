#pragma once

#include "huggingface/file.hpp"
#include "huggingface/tensor_entry.hpp"

namespace offstage::huggingface {

/// True if the file is an archive (ZIP), which torch.save writes since PyTorch 1.6, or a pickle, as
/// it wrote before.
[[nodiscard]] bool is_torch_file(File const& file);

/// The tensors of a state_dict that torch.save wrote. Its records are not compressed, so that each
/// tensor is a part of the file.
/// Source: APPNOTE.TXT of PKWARE; PyTorch's caffe2/serialize/inline_container.h.
/// Errors: DataError naming the path: a file from before PyTorch 1.6, no archive of torch.save,
///         damaged or cut, compressed or big-endian, and see state_dict.hpp; IoError.
[[nodiscard]] TensorEntries read_torch_archive(File const& file);

}  // namespace offstage::huggingface
