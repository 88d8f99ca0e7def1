// Calls on names of files and on directories; see faulty_files.cpp.
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "interpose.hpp"
#include "recording.hpp"

using faulty::fail_or;
using faulty::path_of;
using faulty::Place;
using faulty::real;
using faulty::recorded;

namespace {

/// A name comes, goes or changes. `to`: the second one of a call of two.
template <class Call>
int named(char const* kind, Place const& place, std::string const& to, Call const& call) {
  std::string const path = path_of(place);
  return recorded(path, call,
                  [&](int) { return faulty::Change{.kind = kind, .path = path, .to = to}; });
}

template <class Call>
int made_directory(Place const& place, Call const& call) {
  std::string const path = path_of(place);
  return recorded(path, call, [&](int) {
    return faulty::Change{.kind = "mkdir", .file = faulty::inode_of(place), .path = path};
  });
}

}  // namespace

extern "C" {

DIR* opendir(char const* path) {
  return fail_or("opendir", path, [&] { return real<DIR*(char const*)>("opendir")(path); });
}

dirent* readdir(DIR* directory) {
  return fail_or("readdir", directory, [&] { return real<dirent*(DIR*)>("readdir")(directory); });
}

dirent64* readdir64(DIR* directory) {
  return fail_or("readdir", directory,
                 [&] { return real<dirent64*(DIR*)>("readdir64")(directory); });
}

int stat(char const* path, struct stat* status) noexcept {
  return fail_or("stat", path,
                 [&] { return real<int(char const*, struct stat*)>("stat")(path, status); });
}

int stat64(char const* path, struct stat64* status) noexcept {
  return fail_or("stat", path,
                 [&] { return real<int(char const*, struct stat64*)>("stat64")(path, status); });
}

int lstat(char const* path, struct stat* status) noexcept {
  return fail_or("stat", path,
                 [&] { return real<int(char const*, struct stat*)>("lstat")(path, status); });
}

int lstat64(char const* path, struct stat64* status) noexcept {
  return fail_or("stat", path,
                 [&] { return real<int(char const*, struct stat64*)>("lstat64")(path, status); });
}

int fstat(int file, struct stat* status) noexcept {
  return fail_or("stat", file, [&] { return real<int(int, struct stat*)>("fstat")(file, status); });
}

int fstatat(int directory, char const* path, struct stat* status, int flags) noexcept {
  return fail_or("stat", {directory, path}, [&] {
    return real<int(int, char const*, struct stat*, int)>("fstatat")(directory, path, status,
                                                                     flags);
  });
}

int fstat64(int file, struct stat64* status) noexcept {
  return fail_or("stat", file,
                 [&] { return real<int(int, struct stat64*)>("fstat64")(file, status); });
}

int fstatat64(int directory, char const* path, struct stat64* status, int flags) noexcept {
  return fail_or("stat", {directory, path}, [&] {
    return real<int(int, char const*, struct stat64*, int)>("fstatat64")(directory, path, status,
                                                                         flags);
  });
}

int statx(int directory, char const* path, int flags, unsigned mask,
          struct statx* status) noexcept {
  return fail_or("stat", {directory, path}, [&] {
    return real<int(int, char const*, int, unsigned, struct statx*)>("statx")(directory, path,
                                                                              flags, mask, status);
  });
}

int access(char const* path, int mode) noexcept {
  return fail_or("stat", path, [&] { return real<int(char const*, int)>("access")(path, mode); });
}

int faccessat(int directory, char const* path, int mode, int flags) noexcept {
  return fail_or("stat", {directory, path}, [&] {
    return real<int(int, char const*, int, int)>("faccessat")(directory, path, mode, flags);
  });
}

int euidaccess(char const* path, int mode) noexcept {
  return fail_or("stat", path,
                 [&] { return real<int(char const*, int)>("euidaccess")(path, mode); });
}

ssize_t readlink(char const* path, char* target, std::size_t size) noexcept {
  return fail_or("stat", path, [&] {
    return real<ssize_t(char const*, char*, std::size_t)>("readlink")(path, target, size);
  });
}

char* realpath(char const* path, char* target) noexcept {
  return fail_or("stat", path,
                 [&] { return real<char*(char const*, char*)>("realpath")(path, target); });
}

int statfs(char const* path, struct statfs* status) noexcept {
  return fail_or("statfs", path,
                 [&] { return real<int(char const*, struct statfs*)>("statfs")(path, status); });
}

int fstatfs(int file, struct statfs* status) noexcept {
  return fail_or("statfs", file,
                 [&] { return real<int(int, struct statfs*)>("fstatfs")(file, status); });
}

int statfs64(char const* path, struct statfs64* status) noexcept {
  return fail_or("statfs", path, [&] {
    return real<int(char const*, struct statfs64*)>("statfs64")(path, status);
  });
}

int fstatfs64(int file, struct statfs64* status) noexcept {
  return fail_or("statfs", file,
                 [&] { return real<int(int, struct statfs64*)>("fstatfs64")(file, status); });
}

int statvfs(char const* path, struct statvfs* status) noexcept {
  return fail_or("statfs", path,
                 [&] { return real<int(char const*, struct statvfs*)>("statvfs")(path, status); });
}

int fstatvfs(int file, struct statvfs* status) noexcept {
  return fail_or("statfs", file,
                 [&] { return real<int(int, struct statvfs*)>("fstatvfs")(file, status); });
}

int statvfs64(char const* path, struct statvfs64* status) noexcept {
  return fail_or("statfs", path, [&] {
    return real<int(char const*, struct statvfs64*)>("statvfs64")(path, status);
  });
}

int fstatvfs64(int file, struct statvfs64* status) noexcept {
  return fail_or("statfs", file,
                 [&] { return real<int(int, struct statvfs64*)>("fstatvfs64")(file, status); });
}

int rename(char const* from, char const* to) noexcept {
  return fail_or("rename", from, [&] {
    return named("rename", from, path_of(to),
                 [&] { return real<int(char const*, char const*)>("rename")(from, to); });
  });
}

int renameat(int old_directory, char const* from, int directory, char const* to) noexcept {
  return fail_or("rename", {old_directory, from}, [&] {
    return named("rename", {old_directory, from}, path_of({directory, to}), [&] {
      return real<int(int, char const*, int, char const*)>("renameat")(old_directory, from,
                                                                       directory, to);
    });
  });
}

int renameat2(int old_directory, char const* from, int directory, char const* to,
              unsigned flags) noexcept {
  return fail_or("rename", {old_directory, from}, [&] {
    return named("rename", {old_directory, from}, path_of({directory, to}), [&] {
      return real<int(int, char const*, int, char const*, unsigned)>("renameat2")(
          old_directory, from, directory, to, flags);
    });
  });
}

int link(char const* from, char const* to) noexcept {
  return fail_or("link", from, [&] {
    return named("link", from, path_of(to),
                 [&] { return real<int(char const*, char const*)>("link")(from, to); });
  });
}

int linkat(int old_directory, char const* from, int directory, char const* to, int flags) noexcept {
  return fail_or("link", {old_directory, from}, [&] {
    return named("link", {old_directory, from}, path_of({directory, to}), [&] {
      return real<int(int, char const*, int, char const*, int)>("linkat")(old_directory, from,
                                                                          directory, to, flags);
    });
  });
}

int symlink(char const* target, char const* path) noexcept {
  return fail_or("link", path,
                 [&] { return real<int(char const*, char const*)>("symlink")(target, path); });
}

int unlink(char const* path) noexcept {
  return fail_or("unlink", path, [&] {
    return named("unlink", path, "", [&] { return real<int(char const*)>("unlink")(path); });
  });
}

int unlinkat(int directory, char const* path, int flags) noexcept {
  char const* const kind = (flags & AT_REMOVEDIR) != 0 ? "rmdir" : "unlink";
  return fail_or(kind, {directory, path}, [&] {
    return named(kind, {directory, path}, "", [&] {
      return real<int(int, char const*, int)>("unlinkat")(directory, path, flags);
    });
  });
}

int remove(char const* path) noexcept {
  return fail_or("unlink", path, [&] {
    return named("unlink", path, "", [&] { return real<int(char const*)>("remove")(path); });
  });
}

int rmdir(char const* path) noexcept {
  return fail_or("rmdir", path, [&] {
    return named("rmdir", path, "", [&] { return real<int(char const*)>("rmdir")(path); });
  });
}

int mkdir(char const* path, mode_t mode) noexcept {
  return fail_or("mkdir", path, [&] {
    return made_directory(path,
                          [&] { return real<int(char const*, mode_t)>("mkdir")(path, mode); });
  });
}

int mkdirat(int directory, char const* path, mode_t mode) noexcept {
  return fail_or("mkdir", {directory, path}, [&] {
    return made_directory({directory, path}, [&] {
      return real<int(int, char const*, mode_t)>("mkdirat")(directory, path, mode);
    });
  });
}

int chmod(char const* path, mode_t mode) noexcept {
  return fail_or("chmod", path,
                 [&] { return real<int(char const*, mode_t)>("chmod")(path, mode); });
}

int fchmod(int file, mode_t mode) noexcept {
  return fail_or("chmod", file, [&] { return real<int(int, mode_t)>("fchmod")(file, mode); });
}

int fchmodat(int directory, char const* path, mode_t mode, int flags) noexcept {
  return fail_or("chmod", {directory, path}, [&] {
    return real<int(int, char const*, mode_t, int)>("fchmodat")(directory, path, mode, flags);
  });
}

}  // extern "C"
