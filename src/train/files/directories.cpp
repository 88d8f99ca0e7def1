#include "train/files/directories.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <ranges>
#include <string_view>
#include <system_error>

#include "base/error.hpp"
#include "base/regular_file.hpp"
#include "base/users.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/extent_file.hpp"
#include "platform/aio/file.hpp"
#include "train/files/foreign.hpp"

namespace offstage::train {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view run_key = "run.dir";

[[noreturn]] void fail(char const* key, std::string const& path, std::string const& problem) {
  throw IoError{
      fmt::format("{}={}: {}; name a directory in which you may create files", key, path, problem)};
}

void check(std::error_code const& error, char const* key, std::string const& path,
           fs::path const& part) {
  if (error) {
    fail(key, path, fmt::format("cannot look at {}: {}", part.string(), error.message()));
  }
}

/// The parts of `path` that do not exist, the innermost first.
std::vector<fs::path> missing_parts(std::string const& path, char const* key) {
  std::error_code error;
  fs::path part = fs::absolute(path, error);
  check(error, key, path, path);
  std::vector<fs::path> missing;
  while (!fs::exists(part, error)) {
    check(error, key, path, part);
    missing.push_back(part);
    part = part.parent_path();
  }
  return missing;
}

void sync_parent(fs::path const& created, std::string const& path, char const* key) {
  try {
    aio::sync_name(created.string());
  } catch (IoError const& error) {
    throw IoError{fmt::format("{}={}: {}; create {} yourself or use another directory", key, path,
                              error.what(), created.string())};
  }
}

/// Refuses a run or checkpoints inside a checkpoint, because a run would not find the one that its
/// user means.
void refuse_checkpoint(std::string const& path, char const* key) {
  if (checkpoint::has_master(path)) {
    throw UsageError{fmt::format(
        "{}={} is a checkpoint itself; name the directory {}, or start from it with "
        "checkpoint.resume or train.init-from",
        key, path, key == run_key ? "of its run, which goes on then" : "that it lies in")};
  }
}

/// Refuses a run that would begin among the checkpoints of another one, where it finds none.
void refuse_checkpoints(std::string const& run_dir) {
  for (std::string const& name : checkpoint::names_of(run_dir)) {
    if (checkpoint::step_of(name) && checkpoint::has_master(run_dir + "/" + name)) {
      throw UsageError{fmt::format(
          "{}={} holds checkpoints, {} for one; name the directory of their run, which goes on "
          "then, or another one with checkpoint.resume={}/{}",
          run_key, run_dir, name, run_dir, name)};
    }
  }
}

/// Checkpoints of others are refused in a directory that is not this user's, such as root's that
/// everybody may write.
void refuse_foreign_checkpoints(std::string const& checkpoints) {
  struct stat status {};
  if (::stat(checkpoints.c_str(), &status) != 0 || status.st_uid == ::geteuid()) {
    return;
  }
  for (std::string const& name : checkpoint::names_of(checkpoints)) {
    if (!checkpoint::step_of(name)) {
      continue;
    }
    if (auto const owner = foreign_owner(checkpoints + "/" + name, ::geteuid())) {
      throw not_yours(fmt::format("checkpoint.dir={}: {} in it", checkpoints, name), *owner);
    }
  }
}

void refuse_foreign(std::string const& path, char const* key) {
  if (auto const owner = foreign_owner(path, ::geteuid())) {
    throw not_yours(fmt::format("{}={}", key, path), *owner);
  }
}

/// Refuses links in checkpoint.dir. A run makes, renames and removes files there by name, which
/// through a link would be somebody else's.
void refuse_links(std::string const& checkpoints) {
  refuse_link("checkpoint.dir: cannot use", checkpoints + "/" + checkpoint::slots_name);
  for (std::string const& name : checkpoint::names_of(checkpoints)) {
    if (checkpoint::step_of(name) && is_link(checkpoints + "/" + name)) {
      throw IoError{fmt::format(
          "checkpoint.dir={}: {} is a symbolic link, which is no checkpoint of a run; move what it "
          "leads to here, or remove it and begin there with checkpoint.resume=PATH",
          checkpoints, name)};
    }
  }
}

}  // namespace

Directories::Directories(config::RunConfig const& config) : allow_foreign_{config.allow_foreign} {
  try {
    make(config.run_dir, "run.dir");
    refuse_checkpoint(config.run_dir, "run.dir");
    run_lock_ = std::make_unique<RunLock>(config.run_dir, "run.dir");
    std::string const& checkpoints = config.checkpoint.dir;
    make(checkpoints, "checkpoint.dir");
    refuse_checkpoint(checkpoints, "checkpoint.dir");
    refuse_links(checkpoints);
    if (!allow_foreign_) {
      refuse_foreign_checkpoints(checkpoints);
    }
    slots_ = checkpoints + "/" + checkpoint::slots_name;
    std::error_code error;
    bool const same = fs::equivalent(checkpoints, config.run_dir, error);
    check(error, "checkpoint.dir", checkpoints, checkpoints);
    if (!same) {
      refuse_checkpoints(config.run_dir);
      checkpoint_lock_ = std::make_unique<RunLock>(checkpoints, "checkpoint.dir");
    }
  } catch (...) {
    undo();
    throw;
  }
}

Directories::~Directories() {
  if (!slots_.empty()) {
    rmdir(slots_.c_str());  // it stays while another rank has slots there
  }
  if (!kept_) {
    undo();
  }
}

void Directories::look_at_run() {
  run_lock_->look_again();
}

void Directories::look_at_checkpoints() {
  (checkpoint_lock_ ? checkpoint_lock_ : run_lock_)->look_again();
}

void Directories::undo() noexcept {
  for (auto* const lock : {&checkpoint_lock_, &run_lock_}) {
    if (*lock) {
      (*lock)->remove();
      lock->reset();
    }
  }
  std::error_code ignored;  // a directory that is not empty stays
  for (std::string const& path : created_ | std::views::reverse) {
    fs::remove(path, ignored);
  }
}

void Directories::make(std::string const& path, char const* key) {
  create_missing(path, key);
  std::error_code error;
  bool const is_directory = fs::is_directory(path, error);
  check(error, key, path, path);
  if (!is_directory) {
    fail(key, path, "not a directory");
  }
  if (access(path.c_str(), W_OK | X_OK) != 0) {
    auto const reason = std::generic_category().message(errno);
    fail(key, path, fmt::format("cannot write: {}{}", reason, foreign_words(path)));
  }
  if (!allow_foreign_) {
    refuse_foreign(path, key);
  }
}

void Directories::create_missing(std::string const& path, char const* key) {
  auto const parts = missing_parts(path, key);
  for (fs::path const& part : parts | std::views::reverse) {
    std::error_code error;
    if (is_link(part.string())) {
      fail(key, path,
           fmt::format("{} is a symbolic link to {}, which is not there", part.string(),
                       fs::read_symlink(part, error).string()));
    }
    bool const is_new = fs::create_directory(part, error);
    if (error) {
      fail(key, path,
           fmt::format("cannot create {}: {}", part.string(),
                       error_text(error.value(), part.string())));
    }
    if (is_new) {
      created_.push_back(part.string());
      sync_parent(part, path, key);
    }
  }
}

}  // namespace offstage::train
