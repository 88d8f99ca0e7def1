// Preloaded into a run (LD_PRELOAD): calls on files below one directory fail.
//   FAULT_PATH=DIR       what is looked at: calls on DIR and what is below it, deleted files too
//   FAULT_FILE=PATH      of those, the calls on this path alone (unset: all)
//   FAULT_CALLS=KIND,... of those, the calls of these kinds alone (unset: all)
//   FAULT_AFTER=N        not the first N of those of each process (0 unless told)
//   FAULT_TIMES=N        so many then (all unless told)
//   FAULT_THEN=KIND,...  once one has failed, all calls of these kinds below FAULT_PATH fail
//   FAULT_ERROR=N        the errno (EIO unless told), or KILL: the process is killed there; or
//                        DELAY: the call takes FAULT_SECONDS (1 unless told) longer; or SHORT: it
//                        moves half of its bytes (of kinds read, write, aio-read-end and
//                        aio-write-end; no fewer than two pages of a direct file, nor a single
//                        byte)
//   FAULT_RANK=N         in this rank of a job alone (all unless told)
//   FAULT_LOG=FILE       a line "KIND PATH" for each call that counts, with " failed" behind it if
//                        it does
//   FAULT_RECORD=FILE    what all ranks change below FAULT_PATH, with the bytes, for power_loss.py
// Kinds: open, create (opens with O_CREAT), opendir, readdir, stat (with access and readlink),
// statfs, read, write, sync, truncate, allocate, rename, link (with symlink), unlink, rmdir, mkdir,
// mmap, close, lock, chmod, direct (asking for O_DIRECT), and of libaio aio-read and aio-write
// (io_submit), aio-read-end and aio-write-end (the completion). A call of two files has the first
// one's path. In a path this process's number between dashes is written PID. close closes and then
// fails; a completion that fails has moved its bytes; all other calls that fail do nothing. After a
// short read the rest of the memory has other bytes than the file. This file has the calls on open
// files and those that open them; faulty_names.cpp those on names.
#include <libaio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "interpose.hpp"
#include "recording.hpp"

namespace {

using faulty::fail_or;
using faulty::fault_of;
using faulty::path_of;
using faulty::Place;
using faulty::real;
using faulty::recorded;
using faulty::Recording;

char const* kind_of_open(int flags) {
  if ((flags & O_CREAT) != 0) {
    return "create";
  }
  return (flags & O_DIRECTORY) != 0 ? "opendir" : "open";
}

/// The last argument of an open that makes a file.
unsigned mode_of(int flags, va_list rest) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, unsigned) : 0;
}

/// An open that makes a file or empties it is a change.
template <class Call>
int opened(Place const& place, int flags, Call const& call) {
  std::string const path = (flags & (O_CREAT | O_TRUNC)) != 0 ? path_of(place) : "";
  if (!faulty::records(path)) {
    return call();
  }
  Recording const recording;
  bool const is_new = faulty::inode_of(place) == 0;
  int const file = call();
  int const error = errno;
  if (file >= 0 && is_new) {
    recording.add({.kind = "create", .file = faulty::inode_of(file), .path = path});
  } else if (file >= 0 && (flags & O_TRUNC) != 0) {
    recording.add({.kind = "truncate", .file = faulty::inode_of(file)});
  }
  errno = error;
  return file;
}

/// A write of these bytes at `offset`; below 0: where the file stands, at its end if it was opened
/// so.
template <class Call>
ssize_t written(int file, void const* memory, off_t offset, Call const& call) {
  return recorded(path_of(file), call, [&](ssize_t size) {
    off_t const at = offset >= 0 ? offset : lseek(file, 0, SEEK_CUR) - size;
    return faulty::Change{
        .kind = "write",
        .file = faulty::inode_of(file),
        .at = at,
        .bytes = {static_cast<std::byte const*>(memory), static_cast<std::size_t>(size)}};
  });
}

constexpr std::size_t page = 4096;

bool is_direct(int file) {
  return (real<int(int, int, ...)>("fcntl")(file, F_GETFL) & O_DIRECT) != 0;
}

/// The bytes of a short transfer. They end within a page where the file is direct.
ssize_t shortened(int file, ssize_t size) {
  if (is_direct(file)) {
    return size > static_cast<ssize_t>(2 * page) ? size / 2 + 1 : size;
  }
  return size > 1 ? size / 2 : size;
}

/// The result of a read into `memory`: the call's, a part of that, or a failure. `moves`: the
/// file's position goes on with the bytes.
template <class Call>
ssize_t read_or_fail(int file, void* memory, bool moves, Call const& call) {
  int const error = fault_of("read", file);
  if (error != 0 && error != faulty::short_transfer) {
    errno = error;
    return -1;
  }
  ssize_t const size = call();
  if (error == 0 || size <= 0) {
    return size;
  }
  ssize_t const part = shortened(file, size);
  std::memset(static_cast<char*>(memory) + part, 0x5a, static_cast<std::size_t>(size - part));
  if (moves && lseek(file, part - size, SEEK_CUR) < 0) {
    return size;  // a pipe or a terminal
  }
  return part;
}

/// The same for a write of `size` bytes at `offset`, as `written` takes it; `call` writes as many
/// as it is told.
template <class Call>
ssize_t write_or_fail(int file, void const* memory, std::size_t size, off_t offset,
                      Call const& call) {
  int const error = fault_of("write", file);
  if (error != 0 && error != faulty::short_transfer) {
    errno = error;
    return -1;
  }
  if (error == 0) {
    return written(file, memory, offset, [&] { return call(size); });
  }
  ssize_t const part = shortened(file, static_cast<ssize_t>(size));
  auto const whole = static_cast<std::size_t>(part);
  bool const ends_within_a_page = is_direct(file) && whole < size;
  ssize_t const done = written(
      file, memory, offset, [&] { return call(ends_within_a_page ? whole / page * page : whole); });
  return done < 0 ? done : std::max(done, part);
}

template <class Call>
int synced(int file, Call const& call) {
  return recorded(path_of(file), call, [&](int) {
    return faulty::Change{.kind = "sync", .file = faulty::inode_of(file)};
  });
}

template <class Call>
int resized(char const* kind, Place const& place, off_t size, Call const& call) {
  return recorded(path_of(place), call, [&](int) {
    return faulty::Change{.kind = kind, .file = faulty::inode_of(place), .at = size};
  });
}

/// A request in flight. Its completion finds it by the context and the word that the caller gave
/// it. The caller may reuse its block once it is submitted.
struct Request {
  char const* kind;
  int descriptor;
  char* memory;
  std::string path;
  std::uint64_t number;
};
std::mutex requests_mutex;
std::map<std::pair<io_context_t, void*>, Request> requests;

/// A number that no other request of a rank has.
std::uint64_t next_request() {
  static std::uint64_t count = 0;
  return (static_cast<std::uint64_t>(getpid()) << 32U) + ++count;
}

/// What a write that has begun may leave on the disk from now on.
void note_begun(iocb const& block, Request const& request) {
  if (!faulty::records(request.path) || block.aio_lio_opcode != IO_CMD_PWRITE) {
    return;
  }
  Recording{}.add({.kind = "write",
                   .file = faulty::inode_of(static_cast<int>(block.aio_fildes)),
                   .at = block.u.c.offset,
                   .request = request.number,
                   .bytes = {static_cast<std::byte const*>(block.u.c.buf), block.u.c.nbytes}});
}

void note_ended(Request const& request) {
  if (faulty::records(request.path) && std::string_view{request.kind} == "aio-write-end") {
    Recording{}.add({.kind = "end", .request = request.number});
  }
}

/// Makes a completion short. After a read the rest of the memory has other bytes than the file; a
/// write is there whole.
void shorten(io_event& event, Request const& request) {
  auto const size = static_cast<ssize_t>(event.res);
  if (size <= 0) {
    return;
  }
  ssize_t const part = shortened(request.descriptor, size);
  if (std::string_view{request.kind} == "aio-read-end") {
    std::memset(request.memory + part, 0x5a, static_cast<std::size_t>(size - part));
  }
  event.res = static_cast<unsigned long>(part);
}

}  // namespace

extern "C" {

int open(char const* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  unsigned const mode = mode_of(flags, rest);
  va_end(rest);
  return fail_or(kind_of_open(flags), path, [&] {
    return opened(path, flags,
                  [&] { return real<int(char const*, int, ...)>("open")(path, flags, mode); });
  });
}

int open64(char const* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  unsigned const mode = mode_of(flags, rest);
  va_end(rest);
  return fail_or(kind_of_open(flags), path, [&] {
    return opened(path, flags,
                  [&] { return real<int(char const*, int, ...)>("open64")(path, flags, mode); });
  });
}

int openat(int directory, char const* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  unsigned const mode = mode_of(flags, rest);
  va_end(rest);
  return fail_or(kind_of_open(flags), {directory, path}, [&] {
    return opened({directory, path}, flags, [&] {
      return real<int(int, char const*, int, ...)>("openat")(directory, path, flags, mode);
    });
  });
}

int openat64(int directory, char const* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  unsigned const mode = mode_of(flags, rest);
  va_end(rest);
  return fail_or(kind_of_open(flags), {directory, path}, [&] {
    return opened({directory, path}, flags, [&] {
      return real<int(int, char const*, int, ...)>("openat64")(directory, path, flags, mode);
    });
  });
}

int __open_2(char const* path, int flags) {
  return fail_or(kind_of_open(flags), path,
                 [&] { return real<int(char const*, int)>("__open_2")(path, flags); });
}

int __open64_2(char const* path, int flags) {
  return fail_or(kind_of_open(flags), path,
                 [&] { return real<int(char const*, int)>("__open64_2")(path, flags); });
}

int __openat_2(int directory, char const* path, int flags) {
  return fail_or(kind_of_open(flags), {directory, path}, [&] {
    return real<int(int, char const*, int)>("__openat_2")(directory, path, flags);
  });
}

int __openat64_2(int directory, char const* path, int flags) {
  return fail_or(kind_of_open(flags), {directory, path}, [&] {
    return real<int(int, char const*, int)>("__openat64_2")(directory, path, flags);
  });
}

int creat(char const* path, mode_t mode) {
  return fail_or("create", path, [&] {
    return opened(path, O_CREAT | O_TRUNC,
                  [&] { return real<int(char const*, mode_t)>("creat")(path, mode); });
  });
}

int creat64(char const* path, mode_t mode) {
  return fail_or("create", path, [&] {
    return opened(path, O_CREAT | O_TRUNC,
                  [&] { return real<int(char const*, mode_t)>("creat64")(path, mode); });
  });
}

std::FILE* fopen(char const* path, char const* mode) {
  return fail_or(*mode == 'r' ? "open" : "create", path,
                 [&] { return real<std::FILE*(char const*, char const*)>("fopen")(path, mode); });
}

std::FILE* fopen64(char const* path, char const* mode) {
  return fail_or(*mode == 'r' ? "open" : "create", path,
                 [&] { return real<std::FILE*(char const*, char const*)>("fopen64")(path, mode); });
}

ssize_t read(int file, void* memory, std::size_t size) {
  return read_or_fail(file, memory, true, [&] {
    return real<ssize_t(int, void*, std::size_t)>("read")(file, memory, size);
  });
}

ssize_t __read_chk(int file, void* memory, std::size_t size, std::size_t room) {
  return read_or_fail(file, memory, true, [&] {
    return real<ssize_t(int, void*, std::size_t, std::size_t)>("__read_chk")(file, memory, size,
                                                                             room);
  });
}

ssize_t pread(int file, void* memory, std::size_t size, off_t offset) {
  return read_or_fail(file, memory, false, [&] {
    return real<ssize_t(int, void*, std::size_t, off_t)>("pread")(file, memory, size, offset);
  });
}

ssize_t __pread_chk(int file, void* memory, std::size_t size, off_t offset, std::size_t room) {
  return read_or_fail(file, memory, false, [&] {
    return real<ssize_t(int, void*, std::size_t, off_t, std::size_t)>("__pread_chk")(
        file, memory, size, offset, room);
  });
}

ssize_t pread64(int file, void* memory, std::size_t size, off_t offset) {
  return read_or_fail(file, memory, false, [&] {
    return real<ssize_t(int, void*, std::size_t, off_t)>("pread64")(file, memory, size, offset);
  });
}

ssize_t __pread64_chk(int file, void* memory, std::size_t size, off_t offset, std::size_t room) {
  return read_or_fail(file, memory, false, [&] {
    return real<ssize_t(int, void*, std::size_t, off_t, std::size_t)>("__pread64_chk")(
        file, memory, size, offset, room);
  });
}

ssize_t readv(int file, iovec const* parts, int count) {
  return fail_or("read", file, [&] {
    return real<ssize_t(int, iovec const*, int)>("readv")(file, parts, count);
  });
}

ssize_t write(int file, void const* memory, std::size_t size) {
  return write_or_fail(file, memory, size, -1, [&](std::size_t part) {
    return real<ssize_t(int, void const*, std::size_t)>("write")(file, memory, part);
  });
}

ssize_t pwrite(int file, void const* memory, std::size_t size, off_t offset) {
  return write_or_fail(file, memory, size, offset, [&](std::size_t part) {
    return real<ssize_t(int, void const*, std::size_t, off_t)>("pwrite")(file, memory, part,
                                                                         offset);
  });
}

ssize_t pwrite64(int file, void const* memory, std::size_t size, off_t offset) {
  return write_or_fail(file, memory, size, offset, [&](std::size_t part) {
    return real<ssize_t(int, void const*, std::size_t, off_t)>("pwrite64")(file, memory, part,
                                                                           offset);
  });
}

ssize_t writev(int file, iovec const* parts, int count) {
  return fail_or("write", file, [&] {
    std::vector<char> joined;
    for (int i = 0; i < count; ++i) {
      auto const* const part = static_cast<char const*>(parts[i].iov_base);
      joined.insert(joined.end(), part, part + parts[i].iov_len);
    }
    return written(file, joined.data(), -1, [&] {
      return real<ssize_t(int, iovec const*, int)>("writev")(file, parts, count);
    });
  });
}

/// A line of a recorded run that says that a checkpoint is saved is an event between the changes.
std::size_t fwrite(void const* memory, std::size_t size, std::size_t count, std::FILE* file) {
  static bool const is_recorded = faulty::is_active() && std::getenv("FAULT_RECORD") != nullptr;
  auto const* const text = static_cast<char const*>(memory);
  if (is_recorded && file == stdout &&
      std::string_view{text, size * count}.find("  saved ") != std::string_view::npos) {
    Recording{}.add(
        {.kind = "said", .bytes = {static_cast<std::byte const*>(memory), size * count}});
  }
  return real<std::size_t(void const*, std::size_t, std::size_t, std::FILE*)>("fwrite")(
      memory, size, count, file);
}

int fsync(int file) {
  return fail_or("sync", file,
                 [&] { return synced(file, [&] { return real<int(int)>("fsync")(file); }); });
}

int fdatasync(int file) {
  return fail_or("sync", file,
                 [&] { return synced(file, [&] { return real<int(int)>("fdatasync")(file); }); });
}

int truncate(char const* path, off_t size) noexcept {
  return fail_or("truncate", path, [&] {
    return resized("truncate", path, size,
                   [&] { return real<int(char const*, off_t)>("truncate")(path, size); });
  });
}

int ftruncate(int file, off_t size) noexcept {
  return fail_or("truncate", file, [&] {
    return resized("truncate", file, size,
                   [&] { return real<int(int, off_t)>("ftruncate")(file, size); });
  });
}

int fallocate(int file, int mode, off_t offset, off_t size) {
  return fail_or("allocate", file, [&] {
    return resized("allocate", file, offset + size, [&] {
      return real<int(int, int, off_t, off_t)>("fallocate")(file, mode, offset, size);
    });
  });
}

int truncate64(char const* path, off_t size) noexcept {
  return fail_or("truncate", path, [&] {
    return resized("truncate", path, size,
                   [&] { return real<int(char const*, off_t)>("truncate64")(path, size); });
  });
}

int ftruncate64(int file, off_t size) noexcept {
  return fail_or("truncate", file, [&] {
    return resized("truncate", file, size,
                   [&] { return real<int(int, off_t)>("ftruncate64")(file, size); });
  });
}

int fallocate64(int file, int mode, off_t offset, off_t size) {
  return fail_or("allocate", file, [&] {
    return resized("allocate", file, offset + size, [&] {
      return real<int(int, int, off_t, off_t)>("fallocate64")(file, mode, offset, size);
    });
  });
}

int flock(int file, int operation) noexcept {
  return fail_or("lock", file, [&] { return real<int(int, int)>("flock")(file, operation); });
}

int fcntl(int file, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  auto const call = [&] { return real<int(int, int, ...)>("fcntl")(file, command, argument); };
  bool const locks = command == F_OFD_SETLK || command == F_OFD_SETLKW || command == F_SETLK ||
                     command == F_SETLKW;
  if (command == F_SETFL && (reinterpret_cast<std::intptr_t>(argument) & O_DIRECT) != 0) {
    return fail_or("direct", file, call);
  }
  return locks ? fail_or("lock", file, call) : call();
}

int close(int file) {
  int const error = fault_of("close", file);
  int const result = real<int(int)>("close")(file);
  if (error != 0) {
    errno = error;
    return -1;
  }
  return result;
}

int fclose(std::FILE* file) {
  int const error = fault_of("close", file);
  int const result = real<int(std::FILE*)>("fclose")(file);
  if (error != 0) {
    errno = error;
    return EOF;
  }
  return result;
}

void* mmap(void* address, std::size_t size, int protection, int flags, int file,
           off_t offset) noexcept {
  if (int const error = file >= 0 ? fault_of("mmap", file) : 0; error != 0) {
    errno = error;
    return MAP_FAILED;
  }
  return real<void*(void*, std::size_t, int, int, int, off_t)>("mmap")(address, size, protection,
                                                                       flags, file, offset);
}

void* mmap64(void* address, std::size_t size, int protection, int flags, int file,
             off_t offset) noexcept {
  if (int const error = file >= 0 ? fault_of("mmap", file) : 0; error != 0) {
    errno = error;
    return MAP_FAILED;
  }
  return real<void*(void*, std::size_t, int, int, int, off_t)>("mmap64")(address, size, protection,
                                                                         flags, file, offset);
}

int io_submit(io_context_t context, long count, iocb** blocks) {
  long good = 0;
  int error = 0;
  for (; good < count && error == 0; good += error == 0 ? 1 : 0) {
    iocb const& block = *blocks[good];
    bool const reads = block.aio_lio_opcode == IO_CMD_PREAD;
    Place const place{static_cast<int>(block.aio_fildes)};
    error = fault_of(reads ? "aio-read" : "aio-write", place);
    if (error == 0 && faulty::is_active()) {
      std::scoped_lock const lock{requests_mutex};
      Request const request{reads ? "aio-read-end" : "aio-write-end",
                            static_cast<int>(block.aio_fildes), static_cast<char*>(block.u.c.buf),
                            path_of(place), next_request()};
      note_begun(block, request);
      requests[{context, block.data}] = request;
    }
  }
  return error != 0 && good == 0
             ? -error
             : real<int(io_context_t, long, iocb**)>("io_submit")(context, good, blocks);
}

int io_getevents(io_context_t context, long least, long most, io_event* events, timespec* timeout) {
  int const count = real<int(io_context_t, long, long, io_event*, timespec*)>("io_getevents")(
      context, least, most, events, timeout);
  for (int i = 0; i < count; ++i) {
    std::scoped_lock const lock{requests_mutex};
    auto const request = requests.extract({context, events[i].data});
    if (request.empty()) {
      continue;
    }
    note_ended(request.mapped());
    int const error = fault_of(request.mapped().kind, request.mapped().path);
    if (error == faulty::short_transfer) {
      shorten(events[i], request.mapped());
    } else if (error != 0) {
      events[i].res = static_cast<unsigned long>(-static_cast<long>(error));
    }
  }
  return count;
}

}  // extern "C"
