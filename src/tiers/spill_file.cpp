#include "tiers/spill_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
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

void check_directory(std::string const& directory, Bytes needed) {
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
  if (needed > free) {
    refuse(directory, "what this rank offloads needs " + format_bytes(needed) + " there, but " +
                          format_bytes(free) + " is free; make space or name another directory");
  }
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
  refuse(directory, "cannot create " + path + ": " + text_of(errno));
}

}  // namespace

aio::File make_spill_file(std::string const& directory, std::string const& name, Bytes size) {
  check_directory(directory, size);
  std::string const nest = directory + "/" + name;
  remove_namesake(directory, name);
  make_directory(directory, nest);
  std::string const path = nest + "/" + spill_file_name;
  try {
    aio::File file = aio::File::create(path);
    unlink(path.c_str());
    rmdir(nest.c_str());
    file.allocate(size);
    return file;
  } catch (IoError const& error) {
    rmdir(nest.c_str());
    refuse(directory, error.what());
  }
}

}  // namespace offstage::tiers
