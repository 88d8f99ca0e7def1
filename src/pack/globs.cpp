#include "pack/globs.hpp"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <new>
#include <system_error>

#include "base/error.hpp"

namespace offstage::pack {

std::vector<std::string> expand(std::string const& name, std::string const& key) {
  std::error_code none;
  if (name.find_first_of("*?[") == std::string::npos || std::filesystem::exists(name, none)) {
    return {name};
  }
  glob_t found{};
  int const code = glob(name.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> paths;
  if (code == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  globfree(&found);
  if (code == GLOB_NOSPACE) {
    throw std::bad_alloc{};
  }
  if (paths.empty()) {
    throw DataError{fmt::format("{}={}: no file matches", key, name)};
  }
  std::ranges::sort(paths);
  return paths;
}

}  // namespace offstage::pack
