#include "checkpoint/retention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <ranges>
#include <sstream>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/regular_file.hpp"
#include "base/text.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/inspect.hpp"
#include "checkpoint/master.hpp"
#include "platform/aio/file.hpp"

namespace offstage::checkpoint {
namespace {

/// The step names in a list. Other lines were not written by this program and are ignored.
std::vector<std::string> names_in(std::string const& list) {
  std::istringstream text{read_text(list)};
  std::vector<std::string> names;
  for (std::string line; std::getline(text, line);) {
    if (step_of(line)) {
      names.push_back(line);
    }
  }
  return names;
}

void rename_aside(std::string const& directory, std::string const& name) {
  std::string const path = directory + "/" + name;
  if (!size_of(path)) {
    return;
  }
  std::string const wanted = fmt::format("{}/passed-over-{}", directory, name);
  std::string target = wanted;
  for (int count = 2; size_of(target); ++count) {
    target = fmt::format("{}.{}", wanted, count);
  }
  rename_file("cannot rename to", path, target);
  aio::sync_directory(directory);
  log::warning("checkpoint {} was passed over and is now {}; remove it if you do not want it", path,
               target);
}

/// Returns true if a complete checkpoint is in `sound` already, or is found to be sound and added.
bool is_sound(std::string const& path, Inspection const& complete, std::set<std::string>& sound) {
  std::string const name = canonical(path);
  if (sound.contains(name)) {
    return true;
  }
  std::string const problem = problem_beside_state(path, complete);
  if (!problem.empty()) {
    log::warning("checkpoint {} does not count as kept: {}", path, problem);
    return false;
  }
  sound.insert(name);
  return true;
}

/// The number that `meta` records under `key`; nullopt: there is none.
std::optional<std::int64_t> recorded_number(Meta const& meta, std::string_view key) {
  return number_in<std::int64_t>(recorded(meta, key));
}

}  // namespace

bool set_aside(std::string const& directory, std::string const& name) {
  try {
    rename_aside(directory, name);
    return true;
  } catch (IoError const& error) {
    log::warning("an old checkpoint stays: {}", error.what());
    return false;
  }
}

void list_passed_over(std::string const& directory, std::int64_t step,
                      std::vector<std::string> const& names) {
  // The step's own name may be on an earlier list.
  remove_lists(directory);
  std::string const own = step_name(step);
  std::string text;
  for (std::string const& name : names) {
    text += name == own ? "" : name + "\n";
  }
  std::string const step_directory = directory + "/" + own;
  write_text(fmt::format("{}/{}", step_directory, passed_over_name), text);
  // On disk, too, the list comes before the master of the step.
  aio::sync_directory(step_directory);
}

std::vector<std::string> set_listed_aside(std::string const& directory, std::string const& spared) {
  std::vector<std::string> stay;
  for (StepDirectory const& found : step_directories(directory)) {
    std::string const list = found.path + "/" + passed_over_name;
    if (!has_master(found.path) || !size_of(list)) {
      continue;
    }
    for (std::string const& name : names_in(list)) {
      std::string const path = canonical(fmt::format("{}/{}", directory, name));
      if (path != spared && path != canonical(found.path) && !set_aside(directory, name)) {
        stay.push_back(name);
      }
    }
  }
  if (stay.empty()) {
    remove_lists(directory);
  }
  return stay;
}

void remove_lists(std::string const& directory) {
  for (StepDirectory const& found : step_directories(directory)) {
    std::string const list = found.path + "/" + passed_over_name;
    if (size_of(list)) {
      // A start that was killed may have renamed what is listed, and not have synced that.
      aio::sync_directory(directory);
      remove_file(list);
      // The list must not come back once its names belong to others again.
      aio::sync_directory(found.path);
    }
  }
}

KeptBefore kept_before(std::string const& directory, Retention const& retention,
                       std::int64_t step) {
  KeptBefore kept;
  for (StepDirectory const& found : step_directories(directory)) {
    if (found.step > step || retention.keeps_for_good(found.step) || !has_master(found.path)) {
      continue;
    }
    try {
      Meta const meta = read_master(found.path).meta;
      Retention const own{.keep_every = recorded_number(meta, "checkpoint.keep-every").value_or(0)};
      if (own.keeps_for_good(found.step)) {
        kept.by_interval.push_back(canonical(found.path));
      }
      if (recorded(meta, "checkpoint.keep-best") == "on" &&
          recorded_number(meta, "best-validation.step") == found.step) {
        kept.best = canonical(found.path);  // of the steps, which ascend, the last
      }
    } catch (DataError const&) {
      continue;
    }
  }
  return kept;
}

std::int64_t most_to_come(std::string const& directory, Retention const& retention,
                          std::int64_t step, std::int64_t last,
                          std::vector<std::string> const& spared) {
  auto const there =
      std::ranges::count_if(step_directories(directory), [&](StepDirectory const& found) {
        return !retention.keeps_for_good(found.step) && has_master(found.path) &&
               std::ranges::find(spared, canonical(found.path)) == spared.end();
      });
  last = std::max(last, step);
  std::int64_t const every = retention.keep_every;
  std::int64_t const for_good = every > 0 ? last / every - step / every : 0;
  std::int64_t const keep = retention.keep;
  return for_good + std::min<std::int64_t>(keep + 1 - std::min<std::int64_t>(there, keep),
                                           last - step - for_good);
}

void remove_unfinished(std::string const& directory, std::int64_t end) {
  for (StepDirectory const& found : step_directories(directory)) {
    if (found.step < end && !has_master(found.path)) {
      remove_checkpoint(found.path);
    }
  }
}

std::vector<std::string> superfluous(std::string const& directory, Retention const& retention,
                                     std::int64_t saved, std::vector<std::string> const& spared,
                                     std::set<std::string>& sound) {
  std::string const newest = canonical(directory + "/" + step_name(saved));
  // The checkpoint just saved counts as the first, even if another run left newer ones; but not if
  // it stays beyond those that are counted.
  bool const is_spared = std::ranges::find(spared, newest) != spared.end();
  int kept = retention.keeps_for_good(saved) || is_spared ? 0 : 1;
  std::vector<std::string> paths;
  auto const steps = step_directories(directory);
  for (StepDirectory const& found : steps | std::views::reverse) {
    // Hundreds may stay for good. A canonical name takes a call for each directory above it, and an
    // inspection one for each file.
    bool const for_good = retention.keeps_for_good(found.step);
    if (for_good && has_master(found.path)) {
      continue;
    }
    std::string const path = canonical(found.path);
    if (path == newest || std::ranges::find(spared, path) != spared.end()) {
      continue;
    }
    Inspection const inspection = inspect(found.path);
    Completeness const state = inspection.state;
    bool const broken = state == Completeness::unfinished || state == Completeness::incomplete;
    bool const may_go = state == Completeness::complete && !for_good;
    if ((may_go && kept >= retention.keep) || (broken && found.step < saved)) {
      paths.push_back(found.path);
      sound.erase(path);
    } else if (may_go && is_sound(found.path, inspection, sound)) {
      ++kept;
    }
  }
  return paths;
}

}  // namespace offstage::checkpoint
