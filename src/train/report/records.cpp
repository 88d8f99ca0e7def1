#include "train/report/records.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "base/error.hpp"
#include "base/printable.hpp"
#include "base/regular_file.hpp"
#include "config/effective_config.hpp"

namespace offstage::train {
namespace {

constexpr char const* fresh_suffix = ".new";

/// The contents of the file; empty if there is none.
std::string old_text(std::string const& path) {
  int const descriptor = open_regular("run.dir: cannot open", path, O_RDONLY);
  if (descriptor < 0) {
    return {};
  }
  ::close(descriptor);
  std::ostringstream text;
  text << std::ifstream{path}.rdbuf();
  return text.str();
}

}  // namespace

std::string working_directory() {
  std::error_code unknown;
  return std::filesystem::current_path(unknown).string();
}

void require_records(config::RunConfig const& config) {
  for (char const* const name : {header_name, config::effective_config_name}) {
    std::string const path = (std::filesystem::path{config.run_dir} / name).string();
    (void)old_text(path);
    (void)old_text(path + fresh_suffix);
  }
}

void write_records(config::RunConfig const& config, Header const& header, int ranks) {
  std::string text;
  for (std::string const& line : header.full) {
    text += printable(line) + '\n';
  }
  write_run_file(config, header_name, text);
  write_run_file(config, config::effective_config_name,
                 fmt::format("# relative paths count from {}\n{}", printable(working_directory()),
                             config::effective_config(config)));
  for (char const* const what : {"trace", "foreseen"}) {
    bool found = config.trace;
    for (int rank = ranks; found; ++rank) {
      auto const name = fmt::format("{}-{}.json", what, rank);
      std::error_code left;
      found = std::filesystem::remove(std::filesystem::path{config.run_dir} / name, left);
    }
  }
}

void write_run_file(config::RunConfig const& config, std::string const& name,
                    std::string const& text) {
  std::string const path = (std::filesystem::path{config.run_dir} / name).string();
  if (old_text(path) == text) {
    return;
  }
  std::string const fresh = path + fresh_suffix;
  OutputFile file{"run.dir", fresh, O_TRUNC};
  try {
    file.write(text);
    file.sync();
    file.close();
    rename_file("run.dir: cannot replace", fresh, path);
  } catch (...) {
    std::error_code left;
    std::filesystem::remove(fresh, left);
    throw;
  }
}

}  // namespace offstage::train
