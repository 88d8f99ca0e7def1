#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>

namespace offstage {

/// A file in memory that has a path: an input of a fuzz target.
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

}  // namespace offstage
