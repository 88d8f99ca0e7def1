#include "checkpoint/local_directory.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <istream>
#include <iterator>
#include <random>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/path.hpp"
#include "base/regular_file.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/directory.hpp"
#include "platform/aio/file.hpp"

namespace offstage::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view name_prefix = "level-1-";
constexpr std::string_view copies_prefix = "level-3-";
constexpr std::size_t digits = 16;

constexpr std::size_t most_starts = 64;

/// The starts of the first half of such a file, whose next line is the first one.
std::vector<Start> read_starts(std::istream& lines, std::string const& name) {
  std::vector<Start> starts;
  for (std::string line; std::getline(lines, line) && line != name;) {
    std::istringstream words{line};
    std::string id;
    Start start;
    words >> id >> start.step;
    start.id = parse_hex(id).value_or(0);
    starts.push_back(start);
  }
  return starts;
}

/// Errors: DataError if the file is damaged; IoError.
std::optional<LocalDirectory> read_record(std::string const& path) {
  if (!size_of_file(path)) {
    return std::nullopt;
  }
  auto found = parse_local_directory(read_text(path, MiB));
  if (!found) {
    throw DataError{path + ": its two records of the directory differ; the file is damaged"};
  }
  return found;
}

/// The file that names the directory of a start that has not come to its first step.
std::string announcement(std::string const& checkpoints) {
  return local_record(checkpoints) + ".next";
}

/// Replaces the file durably. An error leaves the file as it was, and nothing beside it.
void write_record(std::string const& path, LocalDirectory const& directory) {
  std::string const unfinished = path + ".tmp";
  remove_file(unfinished);
  try {
    write_text(unfinished, text_of(directory));
    rename_file("cannot rename to", unfinished, path);
  } catch (IoError const&) {
    unlink(unfinished.c_str());
    throw;
  }
  aio::sync_name(path);
}

LocalDirectory fresh(std::string const& parent, std::string const& owner) {
  return {parent, std::string{name_prefix} + to_hex(random_id()), owner};
}

bool is_name(std::string_view name, std::string_view prefix) {
  return name.starts_with(prefix) && name.size() == prefix.size() + digits &&
         parse_hex(std::string{name.substr(prefix.size())});
}

}  // namespace

std::uint64_t random_id() {
  std::random_device random;
  return (std::uint64_t{random()} << 32U) | random();
}

/// Name, parent, owner and each start, a line each, and the same lines again. So damage shows, and
/// a user can write such a file by hand.
std::string text_of(LocalDirectory const& directory) {
  std::string text = fmt::format("{}\n{}\n{}\n", directory.name, directory.parent, directory.owner);
  for (Start const& start : directory.starts) {
    text += fmt::format("{} {}\n", to_hex(start.id), start.step);
  }
  return text + text;
}

std::optional<LocalDirectory> parse_local_directory(std::string const& text) {
  std::istringstream lines{text};
  LocalDirectory found;
  std::getline(lines, found.name);
  std::getline(lines, found.parent);
  std::getline(lines, found.owner);
  found.starts = read_starts(lines, found.name);
  bool const is_whole = is_local_name(found.name) && text == text_of(found);
  return is_whole ? std::optional{std::move(found)} : std::nullopt;
}

std::string LocalDirectory::copies_path() const {
  return fmt::format("{}/{}{}", parent, copies_prefix, name.substr(name_prefix.size()));
}

bool is_in_history(std::vector<Start> const& starts, std::uint64_t id, std::int64_t step) {
  auto const own = std::ranges::find(starts, id, &Start::id);
  auto const later = own == starts.end() ? starts.begin() : std::next(own);
  return std::all_of(later, starts.end(), [&](Start const& each) { return each.step >= step; });
}

void add_start(std::vector<Start>& starts, Start const& start) {
  std::erase_if(starts, [&](Start const& each) { return each.step > start.step; });
  starts.push_back(start);
  if (starts.size() > most_starts) {
    starts.erase(starts.begin());
  }
}

std::string local_record(std::string const& checkpoints) {
  return checkpoints + "/level-1";
}

bool is_local_name(std::string_view name) {
  return is_name(name, name_prefix);
}

bool is_copies_name(std::string_view name) {
  return is_name(name, copies_prefix);
}

int level_of(std::string const& step_directory) {
  fs::path const step = without_slash(fs::absolute(step_directory).lexically_normal());
  std::string const parent = step.parent_path().filename().string();
  return is_local_name(parent) ? 1 : is_copies_name(parent) ? 3 : 2;
}

std::optional<LocalDirectory> read_local_directory(std::string const& checkpoints) {
  return read_record(local_record(checkpoints));
}

LocalDirectory choose_local_directory(std::string const& checkpoints, std::string const& parent) {
  std::string const owner = canonical(checkpoints);
  try {
    auto const found = read_local_directory(checkpoints);
    if (found && found->parent == parent && found->owner == owner) {
      return *found;
    }
    if (found && found->owner != owner) {
      log::warning(
          "{} is a copy, made for checkpoint.dir={}: level 1 in {} is not looked at, as it may be "
          "that run's; if that directory was moved here, checkpoint.resume={}/step-N takes it",
          local_record(checkpoints), found->owner, found->path(), found->path());
    } else if (found) {
      log::warning(
          "checkpoint.local was {}: level 1 in {} is not looked at; it is given up once this run "
          "begins, remove it then",
          found->parent, found->path());
    }
  } catch (DataError const& error) {
    log::warning("{}; level 1 of earlier runs is not looked at", error.what());
  }
  try {
    auto const found = read_record(announcement(checkpoints));
    if (found && found->parent == parent && found->owner == owner) {
      return *found;
    }
    if (found) {
      log::warning("a start that was killed may have left {}; remove it", found->path());
    }
  } catch (DataError const& error) {
    log::warning("{}", error.what());
  }
  return fresh(parent, owner);
}

void announce_local_directory(std::string const& checkpoints, LocalDirectory const& directory) {
  write_record(announcement(checkpoints), directory);
}

void withdraw_local_directory(std::string const& checkpoints) noexcept {
  unlink(announcement(checkpoints).c_str());
}

void record_local_directory(std::string const& checkpoints, LocalDirectory const& directory) {
  write_record(local_record(checkpoints), directory);
  withdraw_local_directory(checkpoints);
}

void forget_local_directory(std::string const& checkpoints) {
  for (std::string const& path : {local_record(checkpoints), announcement(checkpoints)}) {
    if (!size_of_file(path)) {
      continue;
    }
    try {
      auto const found = read_record(path);
      std::error_code none;
      if (found && found->owner == canonical(checkpoints) &&
          std::filesystem::exists(found->path(), none)) {
        log::warning(
            "this run has no level 1: the one in {} is not looked at, now or later; remove it",
            found->path());
      }
    } catch (DataError const& error) {
      log::warning("{}", error.what());
    }
    remove_file(path);
    aio::sync_directory(checkpoints);
  }
}

}  // namespace offstage::checkpoint
