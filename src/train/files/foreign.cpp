#include "train/files/foreign.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.hpp"
#include "base/users.hpp"

namespace offstage::train {
namespace {

constexpr uid_t root = 0;

/// The owner of a file that this process makes in a directory; none if it may not make one.
std::optional<uid_t> owner_of_new_file(std::string const& directory) {
  std::string const path = fmt::format("{}/.owner-{}", directory, ::getpid());
  int const descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (descriptor < 0) {
    return std::nullopt;
  }
  struct stat status {};
  bool const known = ::fstat(descriptor, &status) == 0;
  ::close(descriptor);
  ::unlink(path.c_str());
  return known ? std::optional{status.st_uid} : std::nullopt;
}

}  // namespace

std::optional<std::string> foreign_owner(std::string const& directory, uid_t me) {
  struct stat status {};
  if (::stat(directory.c_str(), &status) != 0) {
    throw IoError{"cannot look at", directory, errno};
  }
  uid_t const owner = status.st_uid;
  if (owner == me || owner == root || owner == owner_of_new_file(directory)) {
    return std::nullopt;
  }
  return words_for_user(owner);
}

IoError not_yours(std::string const& what, std::string const& owner) {
  return IoError{fmt::format(
      "{} belongs to {}, not to you ({}): its files decide what this run loads and writes; name a "
      "directory of your own, or set run.allow-foreign=true if you trust them",
      what, owner, ::geteuid())};
}

}  // namespace offstage::train
