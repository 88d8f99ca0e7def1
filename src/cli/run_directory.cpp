#include "cli/run_directory.hpp"

#include <filesystem>

#include "base/regular_file.hpp"
#include "base/text.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/listing.hpp"
#include "cli/recorded_settings.hpp"
#include "config/effective_config.hpp"
#include "convert/convert.hpp"

namespace offstage::cli {
namespace {

/// The lines that give a value: a run comments out defaults that derive from other keys.
std::string without_comments(std::string_view text) {
  std::string given;
  while (!text.empty()) {
    auto const line = take_until('\n', text);
    if (!trimmed(line).starts_with('#')) {
      given.append(line).push_back('\n');
    }
  }
  return given;
}

}  // namespace

std::string given_checkpoints(std::string const& path) {
  namespace fs = std::filesystem;
  if (auto const run = convert::run_of_best(path); !run.empty()) {
    return (fs::path{given_checkpoints(run)} / "best").string();
  }
  fs::path const config = fs::path{path} / config::effective_config_name;
  if (!is_visible(config.string()) || checkpoint::holds_any(path)) {
    return path;
  }
  // The keys may be those of another version, and the file may be a link.
  auto const values = read_recorded_settings(
      without_comments(checkpoint::read_text(checkpoint::canonical(config.string()))));
  // A relative place counts as none: nobody knows where the run was started.
  auto const place_of = [&](char const* key) {
    auto const found = values.find(key);
    fs::path place = found != values.end() ? found->second : std::string{};
    return place.is_absolute() ? place : fs::path{};
  };
  fs::path const run = place_of("run.dir");
  bool const is_copy = is_visible(run.string()) && !lead_to_one(run.string(), path);
  fs::path const given = place_of("checkpoint.dir");
  return !is_copy && is_visible(given.string()) && is_directory(given.string()) ? given.string()
                                                                                : path;
}

}  // namespace offstage::cli
