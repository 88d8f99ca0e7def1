#pragma once

#include <dirent.h>
#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <string>

/// Which calls of this process fail, by the environment; see faulty_files.cpp.
namespace faulty {

/// A file as a call names it: an open descriptor, or a name relative to a directory's descriptor.
struct Place {
  int descriptor = AT_FDCWD;
  char const* name = nullptr;

  Place(int of) : descriptor{of} {}
  Place(char const* path) : name{path} {}
  Place(int directory, char const* path) : descriptor{directory}, name{path} {}
  Place(DIR* directory) : descriptor{dirfd(directory)} {}
  Place(std::FILE* file) : descriptor{fileno(file)} {}
};

/// The file's absolute path, without links in the name followed; of a descriptor, what it was
/// opened as or renamed to since, without the mark of a deleted one. Empty if there is none.
std::string path_of(Place const& place);

/// In place of an errno: the call moves a part of its bytes (FAULT_ERROR=SHORT).
constexpr int short_transfer = 1 << 20;

/// The errno that a call of this kind on this path shall meet, or 0, or short_transfer. Counts and
/// notes the call.
int fault_of(char const* kind, std::string const& path);

/// True if this process has a fault to come or a log to write: without, paths need not be looked
/// up.
bool is_active();

/// True for a path that is FAULT_PATH or below it.
bool is_looked_at(std::string const& path);

inline int fault_of(char const* kind, Place const& place) {
  return is_active() ? fault_of(kind, path_of(place)) : 0;
}

}  // namespace faulty
