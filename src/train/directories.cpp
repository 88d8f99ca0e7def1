#include "train/directories.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <ranges>

#include "base/error.hpp"

namespace offstage::train {

namespace fs = std::filesystem;

Directories::Directories(RunConfig const& config) {
  try {
    make(config.run_dir, "run.dir");
    run_lock_ = std::make_unique<RunLock>(config.run_dir, "run.dir");
    make(config.checkpoint.dir, "checkpoint.dir");
    if (!fs::equivalent(config.checkpoint.dir, config.run_dir)) {
      checkpoint_lock_ = std::make_unique<RunLock>(config.checkpoint.dir, "checkpoint.dir");
    }
  } catch (...) {
    undo();
    throw;
  }
}

Directories::~Directories() {
  if (!kept_) {
    undo();
  }
}

void Directories::undo() noexcept {
  checkpoint_lock_.reset();
  run_lock_.reset();
  std::error_code ignored;  // a directory that is not empty stays
  for (std::string const& path : new_locks_) {
    fs::remove(path, ignored);
  }
  for (std::string const& path : created_ | std::views::reverse) {
    fs::remove(path, ignored);
  }
}

void Directories::make(std::string const& path, char const* key) {
  std::vector<fs::path> missing;
  for (fs::path part = fs::absolute(path); !fs::exists(part); part = part.parent_path()) {
    missing.push_back(part);
  }
  for (fs::path const& part : missing | std::views::reverse) {
    std::error_code error;
    if (!fs::create_directory(part, error) && error) {
      throw IoError{fmt::format("{}: cannot create directory", key), part.string(), error.value()};
    }
    created_.push_back(part.string());
  }
  if (!fs::is_directory(path)) {
    throw IoError{fmt::format("{}={} is not a directory", key, path)};
  }
  if (access(path.c_str(), W_OK) != 0) {
    throw IoError{fmt::format("{}: cannot write to directory", key), path, errno};
  }
  auto const lock = (fs::path{path} / "lock").string();
  if (!fs::exists(lock)) {
    new_locks_.push_back(lock);
  }
}

}  // namespace offstage::train
