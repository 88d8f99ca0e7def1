#include "tiers/spill_directory.hpp"

#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <system_error>
#include <utility>

#include "base/text.hpp"
#include "tiers/spill_file.hpp"

namespace offstage::tiers {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view no_job = "nojob";
/// Of job, run and host; with the other parts this stays far below the 255 bytes of a file name.
constexpr std::size_t longest_part = 64;

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_';
}

std::string plain(std::string_view text) {
  std::string part{text.substr(0, longest_part)};
  std::ranges::replace_if(
      part, [](char c) { return !is_plain(c); }, '_');
  return part.empty() ? "_" : part;
}

bool is_plain_part(std::string_view text) {
  return text.size() <= longest_part && std::ranges::all_of(text, is_plain);
}

/// A process or rank: digits alone, with the range of an int.
std::optional<int> number(std::string_view text) {
  return text.starts_with('-') ? std::nullopt : number_in<int>(text);
}

/// True for a process that has ended and whose parent has not asked how: under an init that is slow
/// to, or in a container without one, for long. It has no file open any more.
bool has_ended(std::int64_t process) {
  std::ifstream file{fmt::format("/proc/{}/stat", process)};
  std::string line;
  std::getline(file, line);
  // The name in parentheses before the state may hold anything.
  std::size_t const state = line.rfind(") ");
  return state != std::string::npos && line.find_first_of("ZX", state + 2) == state + 2;
}

bool lives(std::int64_t process) {
  return (kill(static_cast<pid_t>(process), 0) == 0 || errno != ESRCH) && !has_ended(process);
}

std::string describe(SpillOwner const& owner) {
  return fmt::format("process {} on {}{}", owner.process, owner.host,
                     owner.job.empty() ? "" : fmt::format(" in job {}", owner.job));
}

/// A directory itself, not a link to one.
bool is_my_directory(struct stat const& status) {
  return S_ISDIR(status.st_mode) && status.st_uid == geteuid();
}

/// Empty if it is gone now; else why it stays.
std::string remove_spill(std::string const& path) {
  unlink((path + "/" + spill_file_name).c_str());
  if (rmdir(path.c_str()) == 0 || errno == ENOENT) {
    return "";
  }
  return std::generic_category().message(errno);
}

/// Lines of one kind: the first few, and how many more there were.
class FewLines {
 public:
  void add(std::string line) {
    if (++count_ <= most_spill_lines) {
      lines_.push_back(std::move(line));
    }
  }
  /// The last line is "DONE 17 more WHERE".
  void move_to(std::vector<std::string>& lines, char const* done, std::string const& where) {
    std::ranges::move(lines_, std::back_inserter(lines));
    if (count_ > most_spill_lines) {
      lines.push_back(fmt::format("{} {} more {}", done, count_ - most_spill_lines, where));
    }
  }

 private:
  std::vector<std::string> lines_;
  std::size_t count_{};
};

struct Found {
  FewLines removed;
  FewLines mine;
  FewLines others;
};

void look_at(std::string const& path, SpillOwner const& owner, std::string const& host,
             Found& found) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) {
    return;  // gone by now
  }
  bool const here = owner.host == plain(host);
  if (here && lives(owner.process)) {
    return;
  }
  auto const leave = [&](std::string const& why) {
    (status.st_uid == geteuid() ? found.mine : found.others)
        .add(fmt::format("{} of {} {}", path, describe(owner), why));
  };
  if (!S_ISDIR(status.st_mode)) {
    leave("is no directory; it is left alone");
  } else if (status.st_uid != geteuid()) {
    leave("belongs to another user; it is left alone");
  } else if (!here) {
    leave("is left alone, as another host can say whether that lives; remove it if it does not");
  } else if (std::string const why = remove_spill(path); !why.empty()) {
    leave(fmt::format("was left behind and cannot be removed: {}", why));
  } else {
    found.removed.add(fmt::format("removed {}, left by {}, which is gone", path, describe(owner)));
  }
}

}  // namespace

std::string spill_name(SpillOwner const& owner) {
  return fmt::format("offstage-{}-{}-{}-{}-{}", owner.job.empty() ? no_job : plain(owner.job),
                     plain(owner.run), plain(owner.host), owner.process, owner.rank);
}

std::optional<SpillOwner> spill_owner(std::string_view name) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= name.size();) {
    std::size_t const end = std::min(name.find('-', begin), name.size());
    if (end == begin) {
      return std::nullopt;
    }
    parts.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  if (parts.size() != 6 || parts[0] != "offstage") {
    return std::nullopt;
  }
  auto const process = number(parts[4]);
  auto const rank = number(parts[5]);
  // Process 0 is this process's group, to kill().
  if (!process || *process < 1 || !rank || !is_plain_part(parts[1]) || !is_plain_part(parts[2]) ||
      !is_plain_part(parts[3])) {
    return std::nullopt;
  }
  return SpillOwner{parts[1] == no_job ? "" : std::string{parts[1]}, std::string{parts[2]},
                    std::string{parts[3]}, *process, *rank};
}

SpillReport tidy_spills(std::string const& directory, std::string const& host) {
  Found found;
  std::error_code error;
  for (fs::directory_iterator it{directory, error}, end; !error && it != end; it.increment(error)) {
    if (auto const owner = spill_owner(it->path().filename().string())) {
      look_at(it->path().string(), *owner, host, found);
    }
  }
  SpillReport report;
  found.removed.move_to(report.removed, "removed", "in " + directory);
  found.mine.move_to(report.left, "left", "of this user in " + directory);
  found.others.move_to(report.left, "left", "of other users in " + directory);
  return report;
}

bool remove_namesake(std::string const& directory, std::string const& name) {
  std::string const path = directory + "/" + name;
  auto const owner = spill_owner(name);
  struct stat status {};
  return owner && owner->process == getpid() && lstat(path.c_str(), &status) == 0 &&
         is_my_directory(status) && !remove_spill(path).empty();
}

bool lies_in_memory(std::string const& directory) {
  struct statfs status {};
  return statfs(directory.c_str(), &status) == 0 &&
         (status.f_type == TMPFS_MAGIC || status.f_type == RAMFS_MAGIC);
}

}  // namespace offstage::tiers
