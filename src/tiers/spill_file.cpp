#include "tiers/spill_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "base/error.hpp"
#include "tiers/spill_directory.hpp"

namespace offstage::tiers {
namespace {

[[noreturn]] void refuse(std::string const& directory, std::string const& why) {
  throw IoError{"tiers.path = " + directory + ": " + why};
}

std::string text_of(int error_number) {
  return std::generic_category().message(error_number);
}

/// rmdir tells an empty directory from all else, and takes none that belongs to others.
void make_directory(std::string const& directory, std::string const& path) {
  if (mkdir(path.c_str(), 0700) == 0) {
    return;
  }
  if (errno == EEXIST) {
    if (rmdir(path.c_str()) != 0) {
      refuse(directory, path + " is in the way (" + text_of(errno) +
                            "): it is not this run's; remove it if no run uses it");
    }
    if (mkdir(path.c_str(), 0700) == 0) {
      return;
    }
  }
  refuse(directory, "cannot create " + path + ": " + error_text(errno, path));
}

/// Makes the spill directory `path` of a place.
void make_nest(SpillPlace const& place, std::string const& path) {
  if (!remove_namesake(place.directory, place.name)) {
    make_directory(place.directory, path);
  }
}

}  // namespace

SpillFile::~SpillFile() {
  reset();
  if (!directory_.empty()) {
    rmdir(directory_.c_str());
  }
}

SpillMark::SpillMark(SpillPlace const& place) : path_{place.directory + "/" + place.name} {
  require_space(place.directory, 0);
  make_nest(place, path_);
}

SpillMark::~SpillMark() {
  rmdir(path_.c_str());
}

bool is_there(SpillPlace const& place) {
  struct stat status {};
  return lstat((place.directory + "/" + place.name).c_str(), &status) == 0;
}

bool on_one_file_system(std::string const& one, std::string const& other) {
  struct stat first {};
  struct stat second {};
  return stat(one.c_str(), &first) == 0 && stat(other.c_str(), &second) == 0 &&
         first.st_dev == second.st_dev;
}

void require_space(std::string const& directory, Bytes size) {
  struct stat status {};
  if (stat(directory.c_str(), &status) != 0) {
    if (errno == ENOENT) {
      refuse(directory, "the directory does not exist; create it or name another");
    }
    refuse(directory, text_of(errno));
  }
  if (!S_ISDIR(status.st_mode)) {
    refuse(directory, "is not a directory; name one");
  }
  if (faccessat(AT_FDCWD, directory.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    refuse(directory, "the directory is not writable (" + text_of(errno) + "); name another");
  }
  Bytes const free = aio::free_bytes(directory);
  if (size > free) {
    refuse(directory, "what this rank offloads needs " + format_bytes(size) + " there, but " +
                          format_bytes(free) + " is free; make space or name another directory");
  }
}

namespace {

/// Calls make(path) with the path of a file that may be made in a new spill directory, which is
/// gone when it returns.
template <class Make>
auto in_spill_directory(SpillPlace const& place, Bytes size, Make const& make) {
  require_space(place.directory, size);
  std::string const nest = place.directory + "/" + place.name;
  std::string const path = nest + "/" + spill_file_name;
  auto const clear = [&] {
    unlink(path.c_str());
    rmdir(nest.c_str());
  };
  make_nest(place, nest);
  try {
    return make(path, nest);
  } catch (IoError const& error) {
    clear();
    refuse(place.directory, error.what());
  } catch (...) {
    clear();
    throw;
  }
}

}  // namespace

SpillFile make_spill_file(std::string const& directory, std::string const& name, Bytes size) {
  return in_spill_directory({directory, name}, size,
                            [&](std::string const& path, std::string const& nest) {
                              SpillFile file{aio::File::create(path), nest};
                              unlink(path.c_str());
                              rmdir(nest.c_str());
                              file.allocate(size);
                              return file;
                            });
}

void make_named_file(SpillPlace const& place, Bytes size,
                     std::function<void(std::string const& path)> const& fill,
                     std::string const& target) {
  in_spill_directory(place, size, [&](std::string const& path, std::string const& nest) {
    aio::File::create(path).allocate(size);
    fill(path);
    if (std::rename(path.c_str(), target.c_str()) != 0) {
      throw IoError{errno == EXDEV
                        ? target +
                              " lies on another file system, so that no file of this path can "
                              "become a checkpoint's; put checkpoint.dir on the same one, or "
                              "leave persistent out"
                        : "cannot rename " + path + " to " + target + ": " + text_of(errno)};
    }
    rmdir(nest.c_str());
  });
}

}  // namespace offstage::tiers
