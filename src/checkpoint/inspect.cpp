#include "checkpoint/inspect.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <span>
#include <string_view>

#include "base/error.hpp"
#include "base/log.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/directory.hpp"
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
  using State = Inspection::State;
  auto const master_bytes = size_of(directory + "/" + master_name);
  if (!master_bytes) {
    return {State::unfinished,
            fmt::format("{} has no {}: its save did not finish", directory, master_name),
            {},
            0,
            {}};
  }
  require_within(*master_bytes, 0, most_master_bytes, "its size", directory + "/" + master_name);
  Inspection result{State::complete, "", read_master(directory), *master_bytes, {}};
  result.here = ranks_here(directory, result.master);
  auto const elsewhere = std::ranges::count(result.here, false);
  if (elsewhere > 0) {
    result.state = State::partial;
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
    result.state = State::incomplete;
    result.problem = error.what();
  }
  return result;
}

Listed listed(std::string const& path) {
  Inspection found = inspect(path);
  bool const complete = found.state == Inspection::State::complete;
  bool const unfinished = found.state == Inspection::State::unfinished;
  bool const partial = found.state == Inspection::State::partial;
  return {.path = path,
          .level = level_of(path),
          .complete = complete,
          .partial = partial,
          .unfinished = unfinished,
          .problem = found.problem,
          .meta = complete || partial ? found.master.meta : Meta{},
          .bytes = found.bytes};
}

/// The checkpoints in `path`, oldest first, with those of levels 1 and 3 that this node has. They
/// belong to the run whose directory `path` is, or to any run if `path` is a checkpoint.local. Of
/// one step those of level 1 come first.
std::vector<StepDirectory> all_levels(std::string const& path) {
  std::vector<std::string> places;
  try {
    auto const local = read_local_directory(path);
    if (local && local->owner == canonical(path)) {
      places.push_back(local->path());
      places.push_back(local->copies_path());
    }
  } catch (DataError const& error) {
    log::warning("{}", error.what());
  }
  for (auto const& is_name : {is_local_name, is_copies_name}) {
    for (std::string const& name : names_of(path)) {
      if (is_name(name)) {
        places.push_back(path + "/" + name);
      }
    }
  }
  places.push_back(path);
  std::vector<StepDirectory> all;
  for (std::string const& place : places) {
    auto const found = step_directories(place);
    all.insert(all.end(), found.begin(), found.end());
  }
  std::ranges::stable_sort(all, {}, &StepDirectory::step);
  return all;
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
  } catch (Error const& error) {
    return {Inspection::State::unreadable, error.what(), {}, 0, {}};
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
  return !all_levels(path).empty();
}

std::vector<Listed> list(std::string const& path) {
  fs::path const given = fs::absolute(path).lexically_normal();
  fs::path const name = given.has_filename() ? given.filename() : given.parent_path().filename();
  if (step_of(name.string()) || size_of(path + "/" + master_name)) {
    return {listed(path)};
  }
  if (std::error_code ignored; !fs::is_directory(path, ignored)) {
    throw DataError{path + " is no directory; name a checkpoint or a directory of checkpoints"};
  }
  std::vector<Listed> all;
  for (StepDirectory const& directory : all_levels(path)) {
    all.push_back(listed(directory.path));
  }
  if (all.empty()) {
    throw DataError{path + " holds no checkpoint; they are directories like step-000000100"};
  }
  return all;
}

bool was_removed(Listed const& checkpoint) {
  return !checkpoint.unfinished && !size_of(checkpoint.path + "/" + master_name);
}

std::vector<std::string> verify(Listed const& checkpoint) {
  Inspection found = inspect(checkpoint.path);
  if (found.here.empty() ||
      (found.state != Inspection::State::complete && found.state != Inspection::State::partial)) {
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
