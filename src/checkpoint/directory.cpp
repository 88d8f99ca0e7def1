#include "checkpoint/directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <limits>
#include <ranges>
#include <system_error>
#include <tuple>

#include "base/error.hpp"
#include "base/path.hpp"
#include "base/regular_file.hpp"
#include "base/text.hpp"
#include "base/watch.hpp"
#include "platform/aio/descriptor.hpp"
#include "platform/aio/file.hpp"

namespace offstage::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view step_prefix = "step-";

void sync(aio::Descriptor const& file) {
  Waiting const waiting{"fsync"};
  if (TEMP_FAILURE_RETRY(fsync(file.descriptor())) != 0) {
    throw IoError{"cannot sync", file.path(), errno};
  }
}

/// Returns `status`. Errors: IoError if the system could not tell what kind of file `path` is.
fs::file_status known(fs::file_status status, fs::path const& path, std::error_code const& error) {
  if (!fs::status_known(status)) {
    throw IoError{"cannot look at", path.string(), error.value()};
  }
  return status;
}

/// True if there is nothing of this name: neither it is there, nor a directory that could have it.
bool is_absence(int error_number) {
  return error_number == ENOENT || error_number == ENOTDIR;
}

bool all_digits(std::string_view text) {
  return !text.empty() &&
         std::ranges::all_of(text, [](char digit) { return digit >= '0' && digit <= '9'; });
}

/// The part of a name that follows `prefix` and ends before `ending`, if it has both.
std::optional<std::string_view> between(std::string_view prefix, std::string_view name,
                                        std::string_view ending) {
  if (!name.starts_with(prefix) || !name.ends_with(ending) ||
      name.size() < prefix.size() + ending.size()) {
    return std::nullopt;
  }
  return name.substr(prefix.size(), name.size() - prefix.size() - ending.size());
}

/// Returns true for names that this program gives to the files of a checkpoint.
bool is_ours(std::string_view name) {
  if (name.ends_with(unfinished_suffix)) {
    name.remove_suffix(std::string_view{unfinished_suffix}.size());
  }
  if (name == master_name || name == unfinished_master_name || name == passed_over_name ||
      is_extent_file_name(name)) {
    return true;
  }
  auto const has_rank = [&](std::string_view prefix, std::string_view ending) {
    auto const rank = between(prefix, name, ending);
    return rank && all_digits(*rank);
  };
  return has_rank("rank-", ".h5") || has_rank("node-", ".h5") || has_rank("rank-", ".json") ||
         has_rank("head-", "");
}

std::vector<fs::path> entries_of(std::string const& directory) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator it{directory, error}, end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path());
  }
  if (error) {
    throw IoError{"cannot read the directory", directory, error.value()};
  }
  return entries;
}

}  // namespace

std::string step_name(std::int64_t step) {
  return fmt::format("step-{:09}", step);
}
std::string rank_file_name(int rank) {
  return fmt::format("rank-{:04}.h5", rank);
}
std::string node_file_name(int node) {
  return fmt::format("node-{:04}.h5", node);
}
std::string manifest_name(int rank) {
  return fmt::format("rank-{:04}.json", rank);
}

std::string extent_file_name(int rank, std::size_t subgroup) {
  return fmt::format("extent-{:04}-{:06}.h5", rank, subgroup);
}

std::string head_file_name(int rank) {
  return fmt::format("head-{:04}", rank);
}

std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(step_prefix)) {
    return std::nullopt;
  }
  name.remove_prefix(step_prefix.size());
  return all_digits(name) ? number_in<std::int64_t>(name) : std::nullopt;
}

bool is_node_file_name(std::string_view name, std::int64_t nodes) {
  auto const number = between("node-", name, ".h5");
  auto const node = number && all_digits(*number) ? number_in<int>(*number) : std::nullopt;
  return node && *node < nodes && node_file_name(*node) == name;
}

bool is_extent_file_name(std::string_view name) {
  auto const numbers = between("extent-", name, ".h5");
  std::size_t const dash = numbers ? numbers->find('-') : std::string_view::npos;
  return dash != std::string_view::npos && all_digits(numbers->substr(0, dash)) &&
         all_digits(numbers->substr(dash + 1));
}

std::int64_t rank_of_extent_file(std::string_view name) {
  auto const numbers = between("extent-", name, ".h5").value_or("");
  std::int64_t rank = std::numeric_limits<std::int64_t>::max();
  std::from_chars(numbers.data(), numbers.data() + numbers.size(), rank);
  return rank;
}

std::vector<std::string> files_of(std::string const& step_directory, int rank) {
  std::vector<std::string> files{rank_file_name(rank), manifest_name(rank)};
  for (fs::path const& path : entries_of(step_directory)) {
    std::string const name = path.filename().string();
    if (is_extent_file_name(name) && rank_of_extent_file(name) == rank) {
      files.push_back(name);
    }
  }
  return files;
}

std::vector<StepDirectory> step_directories(std::string const& directory) {
  std::vector<StepDirectory> found;
  std::error_code error;
  if (!fs::exists(known(fs::symlink_status(directory, error), directory, error))) {
    return found;
  }
  for (fs::path const& path : entries_of(directory)) {
    auto const step = step_of(path.filename().string());
    // A link could lead to somebody else's files, which this program must not replace or remove.
    if (step && fs::is_directory(known(fs::symlink_status(path, error), path, error))) {
      found.push_back({*step, path.string()});
    }
  }
  std::ranges::sort(found, [](StepDirectory const& a, StepDirectory const& b) {
    return std::tie(a.step, a.path) < std::tie(b.step, b.path);
  });
  return found;
}

std::string why_no_checkpoint(std::string const& path, std::string const& directory) {
  constexpr std::size_t most_named = 4;
  std::vector<std::string> known;
  std::error_code ignored;
  std::vector<std::string> places{path, path + "/checkpoints"};
  if (std::ranges::none_of(
          places, [&](auto const& place) { return fs::equivalent(place, directory, ignored); })) {
    places.push_back(directory);
  }
  for (std::string const& place : places) {
    if (!fs::is_directory(place, ignored)) {
      continue;
    }
    auto const steps = step_directories(place);
    for (StepDirectory const& found : steps | std::views::reverse) {
      if (known.size() < most_named && has_master(found.path)) {
        known.push_back(found.path);
      }
    }
  }
  auto const kind = fs::status(path, ignored).type();
  std::string const why = kind == fs::file_type::directory
                              ? fmt::format("no complete checkpoint, as it has no {}", master_name)
                          : kind == fs::file_type::not_found ? "there is no such directory"
                                                             : "it is no directory";
  return fmt::format("{}: {}; {}", path, why,
                     known.empty() ? "auto takes the newest of checkpoint.dir, none begins afresh"
                                   : fmt::format("name one, such as {}", fmt::join(known, ", ")));
}

std::vector<std::string> names_of(std::string const& directory) {
  std::vector<std::string> names;
  for (fs::path const& path : entries_of(directory)) {
    names.push_back(path.filename().string());
  }
  return names;
}

std::string canonical(std::string const& path) {
  std::error_code error;
  fs::path const found = fs::weakly_canonical(path, error);
  if (error) {
    throw IoError{"cannot look at", path, error.value()};
  }
  return without_slash(found).string();
}

std::optional<Bytes> size_of(std::string const& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) == 0) {
    return status.st_size;
  }
  if (is_absence(errno)) {
    return std::nullopt;
  }
  throw IoError{"cannot look at", path, errno};
}

bool has_master(std::string const& step_directory) {
  return size_of(step_directory + "/" + master_name).has_value();
}

std::optional<Bytes> size_of_file(std::string const& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) == 0) {
    if (!S_ISREG(status.st_mode)) {
      throw DataError{path + " is no regular file"};
    }
    return status.st_size;
  }
  if (is_absence(errno)) {
    return std::nullopt;
  }
  throw IoError{"cannot look at", path, errno};
}

std::string read_part(std::string const& path, Bytes offset, Bytes most) {
  // A pipe in the file's place must not block open(), and a link must not lead elsewhere.
  aio::Descriptor const file{path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW, 0};
  std::string text(static_cast<std::size_t>(std::clamp<Bytes>(file.size() - offset, 0, most)), 0);
  Bytes const done = read_fully(file.descriptor(), std::as_writable_bytes(std::span{text}), offset);
  if (done < std::ssize(text) && errno != 0) {
    throw IoError{"cannot read", path, errno};
  }
  text.resize(static_cast<std::size_t>(done));
  return text;
}

std::string read_text(std::string const& path, Bytes limit) {
  if (auto const size = size_of_file(path); size && *size > limit) {
    throw DataError{fmt::format("{} has {} bytes, which is beyond the limit of {}", path, *size,
                                format_bytes(limit))};
  }
  return read_part(path, 0, limit);
}

void write_parts(std::string const& path, std::span<FilePart const> parts) {
  aio::Descriptor const file{path, O_WRONLY | O_NOFOLLOW, 0};
  for (FilePart const& part : parts) {
    if (write_fully(file.descriptor(), part.bytes, part.offset) < std::ssize(part.bytes)) {
      throw IoError{"cannot write", path, errno};
    }
  }
  sync(file);  // NFS tells of a full quota only the descriptor that has written
}

void write_text(std::string const& path, std::string const& text) {
  aio::Descriptor const file{path, O_WRONLY | O_CREAT | O_EXCL, 0666};
  if (write_fully(file.descriptor(), text) < std::ssize(text)) {
    throw IoError{"cannot write", path, errno};
  }
  sync(file);
}

void sync_file(std::string const& path) {
  sync({path, O_RDONLY, 0});
}

void remove_file(std::string const& path) {
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    throw IoError{"cannot remove", path, errno};
  }
}

void remove_checkpoint(std::string const& step_directory) try {
  refuse_link("cannot remove", step_directory);
  fs::path const directory{step_directory};
  if (has_master(step_directory)) {
    remove_file(directory / master_name);
    // On disk, too, the master goes before the files that it names.
    aio::sync_directory(step_directory);
  }
  for (fs::path const& path : entries_of(step_directory)) {
    if (is_ours(path.filename().string())) {
      remove_file(path);
    }
  }
  if (rmdir(directory.c_str()) != 0 && errno != ENOTEMPTY && errno != EEXIST) {
    throw IoError{"cannot remove the directory", step_directory, errno};
  }
} catch (IoError const& error) {
  if (error.error_number() != ENOENT) {  // else somebody has removed the directory meanwhile
    throw;
  }
}

}  // namespace offstage::checkpoint
