#include "data/globs.hpp"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <new>
#include <string_view>
#include <system_error>

#include "base/error.hpp"

namespace offstage::data {

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
    throw DataError{fmt::format("{}{}{}: no file matches", key, key.empty() ? "" : "=", name)};
  }
  std::ranges::sort(paths);
  return paths;
}

std::vector<std::string> expand_tokens(std::string const& name, std::string const& key) {
  std::error_code none;
  if (std::filesystem::exists(name + ".idx", none)) {
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
