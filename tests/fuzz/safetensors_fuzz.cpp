// A safetensors file, as bytes: its header, and the first elements of every tensor.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/error.hpp"
#include "huggingface/safetensors.hpp"

namespace {

/// A file in memory, which has a path, too.
class MemoryFile {
 public:
  MemoryFile(std::uint8_t const* data, std::size_t size)
      : descriptor_{memfd_create("fuzz", MFD_CLOEXEC)} {
    if (descriptor_ < 0 || write(descriptor_, data, size) != static_cast<ssize_t>(size)) {
      __builtin_trap();
    }
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(MemoryFile const&) = delete;
  MemoryFile& operator=(MemoryFile const&) = delete;
  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace offstage;
  MemoryFile const memory{data, size};
  try {
    huggingface::SafetensorsFile const file{memory.path()};
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
