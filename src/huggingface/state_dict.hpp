#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace offstage::huggingface {

/// A tensor as a pickled state_dict of PyTorch describes it. Its numbers stand in a record of the
/// archive around the pickle, row-major, one behind the other.
struct PickledTensor {
  std::string dtype;  ///< as safetensors name it: "F32", "BF16", ...
  std::string record;
  std::int64_t first{};  ///< element of the record
  std::vector<std::int64_t> shape;
};

/// The tensors of a state_dict, by name. A pickle is a program; here it is one of a few steps that
/// build tensors, dictionaries and numbers, and all else that it asks for is refused, not run.
/// `path` is named in errors.
/// Source: pickletools.py of Python; torch/serialization.py and torch/_utils.py of PyTorch.
/// Memory: of a hostile one of 16 MiB, 1 GB at most.
/// Errors: DataError: damaged, no map of names and tensors, another function or a type that is not
///         known, a tensor that its storage cannot hold, and one that is empty, transposed,
///         strided, negated or conjugated.
[[nodiscard]] std::map<std::string, PickledTensor> read_state_dict(std::string_view pickle,
                                                                   std::string const& path);

}  // namespace offstage::huggingface
