#include "cli/run_directory.hpp"

#include <filesystem>
#include <system_error>

#include "checkpoint/store.hpp"
#include "cli/given_values.hpp"
#include "config/effective_config.hpp"

namespace offstage::cli {

std::string given_checkpoints(std::string const& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  fs::path const config = fs::path{path} / config::effective_config_name;
  if (!fs::exists(config, ignored) || checkpoint::holds_any(path)) {
    return path;
  }
  auto const values = read_config_file(config.string());
  auto const value_of = [&](char const* key) {
    auto const found = values.find(key);
    return found != values.end() ? found->second.front().value : std::string{};
  };
  std::string const run = value_of("run.dir");
  bool const is_copy = fs::exists(run, ignored) && !fs::equivalent(run, path, ignored);
  std::string given = value_of("checkpoint.dir");
  return !is_copy && fs::is_directory(given, ignored) ? given : path;
}

}  // namespace offstage::cli
