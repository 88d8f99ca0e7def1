// Preloaded into a run (LD_PRELOAD): calls on files under one directory fail.
//   FAULT_CALL=write|read|sync|grow   io_submit of a write or a read; fsync and fdatasync; fallocate
//   FAULT_PATH=DIR                    of files whose path begins so, deleted ones too
//   FAULT_AFTER=N                     not the first N calls of each process
//   FAULT_TIMES=N                     so many calls then (all unless told)
//   FAULT_ERROR=N                     the errno
//   FAULT_LOG=FILE                    a line with the file's path for each such call, failed or not
#include <dlfcn.h>
#include <fcntl.h>
#include <libaio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

namespace {

std::atomic<long> calls = 0;

char const* text_of(char const* name) {
  char const* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}
long number_of(char const* name, long otherwise) {
  char const* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtol(value, nullptr, 10);
}

void note(std::string const& line) {
  if (char const* const log = std::getenv("FAULT_LOG"); log != nullptr) {
    int const file = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    (void)!write(file, line.data(), line.size());
    close(file);
  }
}

/// The errno that this call shall meet, or 0.
int fault_of(char const* call, int descriptor) {
  if (std::strcmp(text_of("FAULT_CALL"), call) != 0) {
    return 0;
  }
  char target[4096];
  std::string const link = "/proc/self/fd/" + std::to_string(descriptor);
  ssize_t const length = readlink(link.c_str(), target, sizeof target);
  std::string const path{target, length > 0 ? static_cast<std::size_t>(length) : 0};
  if (path.rfind(text_of("FAULT_PATH"), 0) != 0) {
    return 0;
  }
  long const call_number = calls++;
  long const after = number_of("FAULT_AFTER", 0);
  bool const fails =
      call_number >= after &&
      call_number - after < number_of("FAULT_TIMES", std::numeric_limits<long>::max());
  note(path + (fails ? " failed\n" : "\n"));
  return fails ? static_cast<int>(number_of("FAULT_ERROR", EIO)) : 0;
}

template <class Function>
Function* real(char const* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

int fail_or(int error, auto const& call) {
  if (error != 0) {
    errno = error;
    return -1;
  }
  return call();
}

}  // namespace

extern "C" {

int io_submit(io_context_t context, long count, iocb** blocks) {
  for (long i = 0; i < count; ++i) {
    bool const reads = blocks[i]->aio_lio_opcode == IO_CMD_PREAD;
    int const error = fault_of(reads ? "read" : "write", blocks[i]->aio_fildes);
    if (error != 0) {
      return -error;
    }
  }
  return real<int(io_context_t, long, iocb**)>("io_submit")(context, count, blocks);
}

int fsync(int descriptor) {
  return fail_or(fault_of("sync", descriptor), [&] { return real<int(int)>("fsync")(descriptor); });
}

int fdatasync(int descriptor) {
  return fail_or(fault_of("sync", descriptor),
                 [&] { return real<int(int)>("fdatasync")(descriptor); });
}

int fallocate(int descriptor, int mode, off_t offset, off_t length) {
  return fail_or(fault_of("grow", descriptor), [&] {
    return real<int(int, int, off_t, off_t)>("fallocate")(descriptor, mode, offset, length);
  });
}

}  // extern "C"
