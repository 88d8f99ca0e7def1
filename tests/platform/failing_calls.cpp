#include "platform/failing_calls.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <string>

#include "base/error.hpp"

namespace offstage {
namespace {

// libc knows no objects: what its names answer with has to be global.
std::atomic<FailingCalls::Plan const*> active{};
std::atomic<std::int64_t> calls{};
std::atomic<std::int64_t> failures{};

bool fails(Call call, std::string_view path) {
  FailingCalls::Plan const* const plan = active.load();
  if (plan == nullptr || (plan->kinds | call) != plan->kinds ||
      path.find(plan->name) == std::string_view::npos || path.find("/dev/") == 0) {
    return false;
  }
  std::int64_t const number = ++calls;
  if (plan->before) {
    plan->before(number);
  }
  if (number < plan->first || number - plan->first >= plan->times) {
    return false;
  }
  ++failures;
  errno = plan->error_number;
  return true;
}

bool fails(Call call, int descriptor) {
  if (active.load() == nullptr) {
    return false;
  }
  std::array<char, 64> link{};
  std::array<char, 4096> path{};
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", descriptor);
  ssize_t const length = ::readlink(link.data(), path.data(), path.size());
  std::string_view const found{path.data(), static_cast<std::size_t>(length > 0 ? length : 0)};
  // Pipes and sockets of MPI are none of a test's business.
  return found.starts_with('/') && fails(call, found);
}

template <class Function>
Function* real(char const* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

FailingCalls::Plan current;

}  // namespace

FailingCalls::FailingCalls(Plan const& plan) {
  require(active.load() == nullptr, "FailingCalls: one at a time");
  current = plan;
  calls = 0;
  failures = 0;
  active = &current;
}

FailingCalls::~FailingCalls() {
  active = nullptr;
}

std::int64_t FailingCalls::failed() const {
  return failures;
}

}  // namespace offstage

extern "C" {

using offstage::Call;
using offstage::fails;
using offstage::real;

int open(char const* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  mode_t const mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return fails(Call::open, path) ? -1 : real<int(char const*, int, ...)>("open")(path, flags, mode);
}
ssize_t read(int file, void* bytes, size_t count) {
  return fails(Call::read, file) ? -1
                                 : real<ssize_t(int, void*, size_t)>("read")(file, bytes, count);
}
ssize_t pread(int file, void* bytes, size_t count, off_t offset) {
  return fails(Call::read, file)
             ? -1
             : real<ssize_t(int, void*, size_t, off_t)>("pread")(file, bytes, count, offset);
}
ssize_t write(int file, void const* bytes, size_t count) {
  return fails(Call::write, file)
             ? -1
             : real<ssize_t(int, void const*, size_t)>("write")(file, bytes, count);
}
ssize_t pwrite(int file, void const* bytes, size_t count, off_t offset) {
  return fails(Call::write, file)
             ? -1
             : real<ssize_t(int, void const*, size_t, off_t)>("pwrite")(file, bytes, count, offset);
}
int stat(char const* path, struct stat* status) {
  return fails(Call::size, path) ? -1 : real<int(char const*, struct stat*)>("stat")(path, status);
}
int lstat(char const* path, struct stat* status) {
  return fails(Call::size, path) ? -1 : real<int(char const*, struct stat*)>("lstat")(path, status);
}
int fstat(int file, struct stat* status) {
  return fails(Call::size, file) ? -1 : real<int(int, struct stat*)>("fstat")(file, status);
}
int ftruncate(int file, off_t size) {
  return fails(Call::truncate, file) ? -1 : real<int(int, off_t)>("ftruncate")(file, size);
}
int fsync(int file) {
  return fails(Call::sync, file) ? -1 : real<int(int)>("fsync")(file);
}
int fdatasync(int file) {
  return fails(Call::sync, file) ? -1 : real<int(int)>("fdatasync")(file);
}
int rename(char const* from, char const* to) {
  return fails(Call::rename, to) ? -1 : real<int(char const*, char const*)>("rename")(from, to);
}

}  // extern "C"
