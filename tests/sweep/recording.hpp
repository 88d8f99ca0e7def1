#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "fault_plan.hpp"

/// What the processes of a run did to files, in order, with all bytes that they wrote:
/// power_loss.py makes of it what a disk may hold after a loss of power.
namespace faulty {

/// One change of a file or a directory. Numbers and names that a kind has not are 0 and empty.
struct Change {
  char const* kind;
  std::uint64_t file{};     ///< its inode
  std::int64_t at{};        ///< offset or size in bytes
  std::uint64_t request{};  ///< of a write that has not ended when the call returns
  std::string path{};
  std::string to{};
  std::span<std::byte const> bytes{};
};

/// True if the environment asks for a recording and the path is below FAULT_PATH.
bool records(std::string const& path);

/// The inode of an open file or of a name, which is not followed; 0 if there is none.
std::uint64_t inode_of(Place const& place);

/// Between construction and end no other thread or rank changes what is recorded.
class Recording {
 public:
  Recording();
  ~Recording();
  Recording(Recording const&) = delete;
  Recording& operator=(Recording const&) = delete;
  void add(Change const& change) const;
};

/// Makes the call and, if it succeeded, records change(result). Nothing else is recorded in
/// between.
template <class Call, class Describe>
auto recorded(std::string const& path, Call const& call, Describe const& change) {
  if (!records(path)) {
    return call();
  }
  Recording const recording;
  auto const result = call();
  int const error = errno;
  if (result >= 0) {
    recording.add(change(result));
  }
  errno = error;
  return result;
}

}  // namespace faulty
