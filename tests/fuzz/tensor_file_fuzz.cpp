// A file of tensors, as bytes: what safetensors or a file of torch.save has, and the first elements
// of every tensor.
#include <algorithm>
#include <array>

#include "base/error.hpp"
#include "huggingface/tensor_file.hpp"
#include "memory_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace offstage;
  MemoryFile const memory{data, size};
  try {
    huggingface::TensorFile const file{memory.path()};
    for (auto const& [name, tensor] : file.tensors()) {
      if (tensor.begin < 0 || tensor.end < tensor.begin || tensor.end > static_cast<Bytes>(size)) {
        __builtin_trap();
      }
      if (tensor.dtype != "F32" && tensor.dtype != "BF16" && tensor.dtype != "F16") {
        continue;
      }
      std::int64_t const elements = (tensor.end - tensor.begin) / (tensor.dtype == "F32" ? 4 : 2);
      std::array<float, 64> values{};
      auto const count = static_cast<std::size_t>(std::min<std::int64_t>(elements, 64));
      file.read(tensor, 0, std::span{values}.first(count));
    }
  } catch (DataError const&) {
  }
  return 0;
}
