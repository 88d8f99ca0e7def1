#include "checkpoint/inspect.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <ranges>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/path.hpp"
#include "base/regular_file.hpp"
#include "base/users.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/listing.hpp"
#include "checkpoint/local_directory.hpp"
#include "checkpoint/plausible.hpp"
#include "checkpoint/reader.hpp"
#include "platform/memory/huge_buffer.hpp"

namespace offstage::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Returns for each rank whether this node has its files. Level 1 has the files of this node's
/// ranks, level 3 those of another node's. Of other ranks there is neither file.
std::vector<bool> ranks_here(std::string const& directory, Master const& master) {
  std::vector<bool> here(master.ranks.size(), true);
  if (level_of(directory) == 2) {
    return here;
  }
  for (std::size_t rank = 0; rank < here.size(); ++rank) {
    RankEntry const& entry = master.ranks[rank];
    here[rank] = size_of_file(directory + "/" + entry.file).has_value() ||
                 size_of_file(directory + "/" + entry.manifest).has_value();
  }
  // If no rank has files here, they are missing, not elsewhere.
  return std::ranges::find(here, true) != here.end() ? here : std::vector<bool>(here.size(), true);
}

Inspection look_at(std::string const& directory) {
  auto const master_bytes = size_of(directory + "/" + master_name);
  if (!master_bytes) {
    return {Completeness::unfinished,
            fmt::format("{} has no {}: its save did not finish", directory, master_name),
            {},
            0,
            {}};
  }
  require_within(*master_bytes, 0, most_master_bytes, "its size", directory + "/" + master_name);
  Inspection result{Completeness::complete, "", read_master(directory), *master_bytes, {}};
  result.here = ranks_here(directory, result.master);
  auto const elsewhere = std::ranges::count(result.here, false);
  if (elsewhere > 0) {
    result.state = Completeness::partial;
    result.problem =
        fmt::format("{} has the files of {} of {} ranks; the others' are on other nodes", directory,
                    std::ssize(result.here) - elsewhere, result.here.size());
  }
  try {
    std::set<std::string_view> files;  // each rank of a node names the node's file
    for (std::size_t rank = 0; rank < result.here.size(); ++rank) {
      if (result.here[rank]) {
        RankEntry const& entry = result.master.ranks[rank];
        result.bytes += require_files(directory, entry);
        result.bytes -= files.insert(entry.file).second ? 0 : entry.file_bytes;
      }
    }
    for (ExtentEntry const& entry : result.master.extents) {
      auto const rank = rank_of_extent_file(entry.file);
      if (rank < std::ssize(result.here) && result.here[static_cast<std::size_t>(rank)]) {
        result.bytes += require_file(directory + "/" + entry.file, entry.bytes);
      }
    }
  } catch (DataError const& error) {
    result.state = Completeness::incomplete;
    result.problem = error.what();
  }
  return result;
}

Listed listed(std::string const& path) {
  Inspection found = inspect(path);
  bool const has_meta =
      found.state == Completeness::complete || found.state == Completeness::partial;
  return {.path = path,
          .level = level_of(path),
          .state = found.state,
          .problem = found.problem,
          .meta = has_meta ? found.master.meta : Meta{},
          .bytes = found.bytes};
}

/// Why what a record names as level 1 is not looked at; empty if it is, or if nothing is there. Any
/// user of the node could have made a directory of that name: it is the run's if it has the owner
/// of the record or of the directory of checkpoints, is root's, or this user's.
std::string objection(std::string const& place, std::string const& checkpoints) {
  struct stat status {};
  if (::lstat(place.c_str(), &status) != 0) {
    return errno == ENOENT || errno == ENOTDIR ? "" : std::generic_category().message(errno);
  }
  uid_t const owner = status.st_uid;
  auto const has_owner_of = [&](std::string const& path) {
    struct stat other {};
    return ::stat(path.c_str(), &other) == 0 && other.st_uid == owner;
  };
  if (!S_ISDIR(status.st_mode)) {
    return "it is no directory";
  }
  if (owner == ::geteuid() || owner == 0 || has_owner_of(checkpoints) ||
      has_owner_of(local_record(checkpoints))) {
    return "";
  }
  return "it belongs to " + words_for_user(owner);
}

struct Found {
  std::vector<StepDirectory> all;
  std::vector<std::string> left_out;  ///< sentences about what could not be looked at
};

/// Adds the checkpoints in what the record of `checkpoints` names as level 1 or 3. Where that
/// cannot be read there is still level 2.
void add_recorded(Found& found, std::string const& place, std::string const& checkpoints) {
  std::string problem = objection(place, checkpoints);
  if (problem.empty()) {
    try {
      auto const steps = step_directories(place);
      found.all.insert(found.all.end(), steps.begin(), steps.end());
      return;
    } catch (IoError const& error) {
      problem = error.what();
    }
  }
  found.left_out.push_back(fmt::format("{}, which {} names, is not looked at: {}", place,
                                       local_record(checkpoints), problem));
}

/// The checkpoints in `path`, oldest first, with those of levels 1 and 3 that this node has. They
/// belong to the run whose directory `path` is, or to any run if `path` is a checkpoint.local. Of
/// one step those of level 1 come first.
Found all_levels(std::string const& path) {
  Found found;
  try {
    auto const local = read_local_directory(path);
    if (local && local->owner == canonical(path)) {
      add_recorded(found, local->path(), path);
      add_recorded(found, local->copies_path(), path);
    }
  } catch (DataError const& error) {
    found.left_out.emplace_back(error.what());
  }
  std::vector<std::string> places;
  for (auto const& is_name : {is_local_name, is_copies_name}) {
    for (std::string const& name : names_of(path)) {
      if (is_name(name)) {
        places.push_back(path + "/" + name);
      }
    }
  }
  places.push_back(path);
  for (std::string const& place : places) {
    auto const steps = step_directories(place);
    found.all.insert(found.all.end(), steps.begin(), steps.end());
  }
  std::ranges::stable_sort(found.all, {}, &StepDirectory::step);
  return found;
}

std::string name_in(std::string const& path) {
  return without_slash(fs::absolute(path).lexically_normal()).filename().string();
}

/// The checkpoints that list() looks at, oldest first. Errors: those of list().
std::vector<std::string> directories_in(std::string const& path, Warn warn) {
  if (step_of(name_in(path)) || has_master(path)) {
    return {path};
  }
  if (!is_directory(path)) {
    throw DataError{path + " is no directory; name a checkpoint or a directory of checkpoints"};
  }
  Found found = all_levels(path);
  for (std::string const& sentence : found.left_out) {
    if (warn == Warn::yes) {
      log::warning("{}", sentence);
    }
  }
  if (found.all.empty()) {
    throw DataError{path + " holds no checkpoint; they are directories like step-000000100"};
  }
  std::vector<std::string> directories;
  for (StepDirectory& each : found.all) {
    directories.push_back(std::move(each.path));
  }
  return directories;
}

/// The first problem of one piece of a rank's state, read batch by batch; empty if there is none.
std::string problem_in(Reader& reader, int layer, state::ChunkRange chunks,
                       std::span<std::byte> buffer) {
  try {
    while (chunks.count > 0) {
      std::int64_t const count = std::min(batch_chunks, chunks.count);
      state::Piece const piece{layer, {chunks.first, count}, 0};
      reader.read(
          {&piece, 1},
          buffer.first(static_cast<std::size_t>(reader.layout().bytes(count * chunk_elements))));
      chunks = {chunks.first + count, chunks.count - count};
    }
  } catch (DataError const& error) {
    return error.what();
  }
  return "";
}

std::vector<std::string> verify_rank(Reader& reader, int rank, std::span<std::byte> buffer) {
  try {
    (void)reader.manifest(rank);
  } catch (DataError const& error) {
    return {error.what()};
  }
  std::vector<std::string> problems;
  auto const layers = static_cast<int>(reader.map().layers().size());
  for (int layer = 0; layer < layers; ++layer) {
    std::string problem = problem_in(reader, layer, reader.map().chunks(layer, rank), buffer);
    // A file that does not open is reported once, not for each layer.
    if (!problem.empty() && (problems.empty() || problems.back() != problem)) {
      problems.push_back(std::move(problem));
    }
  }
  return problems;
}

}  // namespace

Inspection inspect(std::string const& step_directory) {
  try {
    return look_at(step_directory);
  } catch (IoError const& error) {
    return {Completeness::refused, error.what(), {}, 0, {}};
  } catch (Refused const& error) {
    return {Completeness::newer, error.what(), {}, 0, {}};
  } catch (Error const& error) {
    return {Completeness::unreadable, error.what(), {}, 0, {}};
  }
}

std::string problem_beside_state(std::string const& step_directory, Inspection const& complete) {
  try {
    Reader reader{step_directory, complete.master};
    for (int rank = 0; rank < reader.map().ranks(); ++rank) {
      reader.require_checksums(rank);
    }
    return "";
  } catch (Error const& error) {
    return error.what();
  }
}

bool holds_any(std::string const& path) {
  return !all_levels(path).all.empty();
}

std::vector<Listed> list(std::string const& path, Warn warn) {
  std::vector<Listed> all;
  for (std::string const& directory : directories_in(path, warn)) {
    all.push_back(listed(directory));
  }
  return all;
}

std::vector<Listed> list_step(std::string const& path, std::int64_t step) {
  std::vector<Listed> all;
  for (std::string const& directory : directories_in(path, Warn::no)) {
    if (step_of(name_in(directory)) == step) {
      all.push_back(listed(directory));
    }
  }
  return all;
}

char const* name_of(Completeness state) {
  constexpr std::array names{"complete",   "partial", "unfinished", "incomplete",
                             "unreadable", "newer",   "refused"};
  return names[static_cast<std::size_t>(state)];
}

std::optional<Listed> newest_complete(std::string const& path, Warn warn) {
  // The newest comes first: there may be hundreds, and each look opens files of every rank.
  auto const directories = directories_in(path, warn);
  for (std::string const& directory : directories | std::views::reverse) {
    Listed entry = listed(directory);
    switch (entry.state) {
      case Completeness::complete:
        return entry;
      case Completeness::partial:
      case Completeness::unfinished:
        break;
      case Completeness::refused:
      case Completeness::incomplete:
      case Completeness::unreadable:
      case Completeness::newer:
        if (was_removed(entry)) {
          break;
        }
        if (entry.state == Completeness::refused) {
          throw IoError{entry.problem};
        }
        if (warn == Warn::yes) {
          log::warning("{}; an older checkpoint is looked for", entry.problem);
        }
    }
  }
  return std::nullopt;
}

bool was_removed(Listed const& checkpoint) {
  try {
    return checkpoint.state != Completeness::unfinished && !has_master(checkpoint.path);
  } catch (IoError const&) {
    return false;  // it cannot be looked at
  }
}

std::vector<std::string> verify(Listed const& checkpoint) {
  Inspection found = inspect(checkpoint.path);
  if (found.state == Completeness::refused) {
    throw IoError{found.problem};
  }
  if (found.here.empty() ||
      (found.state != Completeness::complete && found.state != Completeness::partial)) {
    return {found.problem};
  }
  try {
    Reader reader{checkpoint.path, std::move(found.master)};
    memory::HugeBuffer const buffer{reader.layout().bytes(
        std::min(batch_chunks * chunk_elements, reader.map().largest_layer()))};
    std::vector<std::string> problems;
    for (int rank = 0; rank < reader.map().ranks(); ++rank) {
      if (!found.here[static_cast<std::size_t>(rank)]) {
        continue;
      }
      auto const of_rank = verify_rank(reader, rank, buffer.bytes());
      problems.insert(problems.end(), of_rank.begin(), of_rank.end());
    }
    return problems;
  } catch (DataError const& error) {
    return {error.what()};
  }
}

}  // namespace offstage::checkpoint
