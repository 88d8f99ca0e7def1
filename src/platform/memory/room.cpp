#include "platform/memory/room.hpp"

#include <sys/mman.h>
#include <sys/resource.h>

#include "base/cgroup.hpp"
#include "base/error.hpp"

namespace offstage::memory {
namespace {

bool has_limit(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

/// As it was when this was first asked.
bool is_limited() {
  constexpr int strict = 2;
  static bool const limited = has_limit(RLIMIT_AS) || has_limit(RLIMIT_DATA) ||
                              number_in("/proc/sys/vm/overcommit_memory") == strict;
  return limited;
}

}  // namespace

void require_room(Bytes bytes, std::string const& user) {
  if (!is_limited()) {
    return;
  }
  auto const size = static_cast<std::size_t>(bytes);
  void* const room =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) {
    throw Error{ExitCode::other,
                "out of memory: " + user + " may need " + format_bytes(bytes) +
                    ", which cannot be mapped; raise ulimit -v or ulimit -d (or "
                    "vm.overcommit_ratio), use a smaller model or batch, or state on storage"};
  }
  munmap(room, size);
}

}  // namespace offstage::memory
