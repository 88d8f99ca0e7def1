#include "data/globs.hpp"

#include <dirent.h>
#include <fmt/format.h>
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <string_view>

#include "base/error.hpp"
#include "data/input_file.hpp"

namespace offstage::data {
namespace {

// The errno of the last look that failed; 0 if none did. glob(3) gives its functions no context.
thread_local int looking_failed = 0;

/// Notes why a call failed, unless it is what a pattern has to expect.
template <class Result>
Result noted(Result result, bool failed) {
  bool const is_usual = errno == 0 || errno == ENOENT || errno == ENOTDIR || errno == EACCES ||
                        errno == ELOOP || errno == ENAMETOOLONG;
  if (failed && !is_usual) {
    looking_failed = errno;
  }
  return result;
}

/// A glob(3) that notes what it could not look at. By itself it takes a directory that fails midway
/// for a shorter one, and data would be left out.
int noting_glob(char const* pattern, glob_t& found) {
  found.gl_opendir = [](char const* path) -> void* {
    DIR* const directory = opendir(path);
    return noted(directory, directory == nullptr);
  };
  found.gl_readdir = [](void* directory) {
    errno = 0;
    dirent* const entry = readdir(static_cast<DIR*>(directory));
    return noted(entry, entry == nullptr);
  };
  found.gl_closedir = [](void* directory) { closedir(static_cast<DIR*>(directory)); };
  found.gl_stat = [](char const* path, struct stat* status) {
    int const code = stat(path, status);
    return noted(code, code != 0);
  };
  found.gl_lstat = [](char const* path, struct stat* status) {
    int const code = lstat(path, status);
    return noted(code, code != 0);
  };
  looking_failed = 0;
  return glob(pattern, GLOB_NOSORT | GLOB_ALTDIRFUNC, nullptr, &found);
}

}  // namespace

std::vector<std::string> expand(std::string const& name, std::string const& key) {
  if (name.find_first_of("*?[") == std::string::npos || input_is_there(name, key)) {
    return {name};
  }
  glob_t found{};
  int const code = noting_glob(name.c_str(), found);
  std::vector<std::string> paths;
  if (code == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  globfree(&found);
  if (code == GLOB_NOSPACE) {
    throw std::bad_alloc{};
  }
  if (looking_failed != 0) {
    throw IoError{fmt::format("{}: cannot look for", key.empty() ? "pattern" : key), name,
                  looking_failed};
  }
  if (paths.empty()) {
    throw DataError{fmt::format("{}{}{}: no file matches", key, key.empty() ? "" : "=", name)};
  }
  std::ranges::sort(paths);
  return paths;
}

std::vector<std::string> expand_tokens(std::string const& name, std::string const& key) {
  if (input_is_there(name + ".idx", key)) {
    return {name};
  }
  auto paths = expand(name, key);
  auto const sorted = paths;
  std::erase_if(paths, [&](std::string const& path) {
    auto const dot = std::min(path.rfind('.'), path.size());
    auto const suffix = std::string_view{path}.substr(dot);
    return (suffix == ".idx" || suffix == ".mask" || suffix == ".tokenizer") &&
           std::ranges::binary_search(sorted, path.substr(0, dot) + ".bin");
  });
  return paths;
}

}  // namespace offstage::data
