#include "checkpoint/level_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/regular_file.hpp"
#include "base/stopwatch.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/file_exchange.hpp"
#include "checkpoint/master.hpp"
#include "checkpoint/patience.hpp"
#include "platform/aio/file.hpp"

namespace offstage::checkpoint {
namespace {

/// Returns false if the file is missing, no regular file or of another size.
template <class Check>
bool is_sound(Check&& check) {
  try {
    check();
    return true;
  } catch (DataError const&) {
    return false;
  }
}

/// One character for each rank: '1' if all its files are there, each in its size, else '0'.
std::string parts_in(std::string const& directory, Master const& master) {
  std::string here(master.ranks.size(), '0');
  for (std::size_t rank = 0; rank < here.size(); ++rank) {
    here[rank] = is_sound([&] { require_files(directory, master.ranks[rank]); }) ? '1' : '0';
  }
  for (ExtentEntry const& extent : master.extents) {
    auto const rank = rank_of_extent_file(extent.file);
    if (rank >= std::ssize(here) || here[static_cast<std::size_t>(rank)] == '0') {
      continue;
    }
    if (!is_sound([&] { require_file(directory + "/" + extent.file, extent.bytes); })) {
      here[static_cast<std::size_t>(rank)] = '0';
    }
  }
  return here;
}

/// The line of a step directory for LevelParts::parse; empty if its save did not finish.
std::string line_of(std::string const& directory, std::string const& name, bool is_copy) {
  std::string const path = directory + "/" + name;
  if (!has_master(path)) {
    return "";
  }
  std::string here;
  std::uint64_t save = 0;
  std::uint64_t start = 0;
  std::int64_t format = format_version;
  try {
    Master const master = read_master(path);
    format = master.format;
    here = parts_in(path, master);
    save = checksum_of_contents(master);
    start = master.meta.start;
  } catch (Refused const&) {
    throw;
  } catch (DataError const& error) {
    if (is_copy) {
      log::warning("checkpoint {} counts as absent: {}", path, error.what());
    }
    here.assign(1, '0');
  }
  return fmt::format("{} {} {} {} {} {}\n", name, is_copy ? 1 : 0, to_hex(save), to_hex(start),
                     format, here);
}

/// Returns for each rank of a checkpoint, dealt as in `stored`, whether these ranks of a run read
/// its state: see Reader::locate. Level 1 has never had a format with other layers than today's.
std::vector<bool> read_by(std::vector<int> const& ranks, state::ShardMap const& map,
                          state::ShardMap const& stored) {
  std::vector<bool> needed(static_cast<std::size_t>(stored.ranks()), false);
  for (int layer = 0; layer < static_cast<int>(map.layers().size()); ++layer) {
    for (int const rank : ranks) {
      auto const chunks = map.chunks(layer, rank);
      if (chunks.count > 0) {
        int const last = stored.owner(layer, chunks.first + chunks.count - 1);
        for (int from = stored.owner(layer, chunks.first); from <= last; ++from) {
          needed[static_cast<std::size_t>(from)] = true;
        }
      }
    }
  }
  return needed;
}

/// The rank of a node that moves the files of a rank that wrote them.
int mover(std::vector<int> const& ranks, int rank) {
  return ranks[static_cast<std::size_t>(rank) % ranks.size()];
}

}  // namespace

LevelParts::LevelParts(LevelPlaces places, std::vector<Start> starts, mpi::Communicator const& comm,
                       mpi::Communicator const& node)
    : places_{std::move(places)},
      starts_{std::move(starts)},
      comm_{comm},
      node_{node},
      ring_{comm, node} {}

std::string LevelParts::look() const {
  std::string text;
  for (bool const is_copy : {false, true}) {
    std::string const& directory = is_copy ? places_.copies : places_.own;
    if (directory.empty()) {
      continue;
    }
    for (StepDirectory const& step : read_patiently([&] { return step_directories(directory); })) {
      std::string const name = std::filesystem::path{step.path}.filename().string();
      std::string const line = read_patiently([&] { return line_of(directory, name, is_copy); });
      if (line.empty() && !is_copy && comm_.rank() == 0) {
        log::warning("checkpoint {} passed over: its save did not finish", step.path);
      }
      text += line;
    }
  }
  return text;
}

std::vector<LevelParts::Holding> LevelParts::parse(std::vector<std::string> const& texts,
                                                   std::vector<std::size_t> const& nodes) {
  std::vector<Holding> holdings;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    std::istringstream lines{texts[rank]};
    Holding holding{.node = nodes[rank],
                    .is_copy = false,
                    .name = {},
                    .save = 0,
                    .start = 0,
                    .format = 0,
                    .here = {}};
    std::string save;
    std::string start;
    std::string here;
    while (lines >> holding.name >> holding.is_copy >> save >> start >> holding.format >> here) {
      holding.save = parse_hex(save).value_or(0);
      holding.start = parse_hex(start).value_or(0);
      holding.here.clear();
      std::ranges::transform(here, std::back_inserter(holding.here),
                             [](char one) { return one == '1'; });
      holdings.push_back(holding);
    }
  }
  std::ranges::stable_sort(holdings, {}, &Holding::is_copy);
  return holdings;
}

LevelParts::Found LevelParts::find(state::ShardMap const& map) {
  std::string mine;
  mpi::agree(comm_, [&] {
    if (node_.rank() == 0) {
      mine = look();
    }
  });
  holdings_ = parse(comm_.all_gather_texts(mine), comm_.all_gather_value(ring_.here()));
  map_ = map;
  auto const left = leave_other_branches();
  std::set<std::string, std::greater<>> names;
  for (Holding const& holding : holdings_) {
    names.insert(holding.name);
  }
  Found found;
  std::ranges::set_difference(left, std::set<std::string>{names.begin(), names.end()},
                              std::back_inserter(found.lost));
  for (std::string const& name : names) {
    if (best_plan(name).whole || is_on_every_node(name)) {
      found.whole.push_back(name);
      continue;
    }
    found.lost.push_back(name);
    if (comm_.rank() == 0) {
      log::warning(
          "checkpoint {}/{} passed over: the part of some node is missing, and no other node has a "
          "copy",
          places_.own, name);
    }
  }
  return found;
}

std::set<std::string> LevelParts::leave_other_branches() {
  std::set<std::string> left;
  std::erase_if(holdings_, [&](Holding const& holding) {
    bool const is_left =
        holding.save != 0 && !is_in_history(starts_, holding.start, *step_of(holding.name));
    if (is_left && left.insert(holding.name).second && comm_.rank() == 0) {
      log::warning(
          "checkpoint {}/{} passed over: a later start, without the node that has it, began at an "
          "earlier step",
          places_.own, holding.name);
    }
    return is_left;
  });
  return left;
}

bool LevelParts::is_on_every_node(std::string const& name) const {
  return std::ranges::count_if(holdings_, [&](Holding const& holding) {
           return holding.name == name && !holding.is_copy;
         }) == static_cast<std::ptrdiff_t>(ring_.size());
}

std::optional<std::int64_t> LevelParts::newest_on_two_nodes(std::int64_t last) const {
  using Save = std::pair<std::int64_t, std::uint64_t>;            // step, checksum of its master
  std::map<Save, std::vector<std::set<std::size_t>>> nodes_with;  // by the rank that wrote the part
  for (Holding const& holding : holdings_) {
    auto& nodes = nodes_with[{*step_of(holding.name), holding.save}];
    nodes.resize(std::max(nodes.size(), holding.here.size()));
    for (std::size_t rank = 0; rank < holding.here.size(); ++rank) {
      if (holding.here[rank]) {
        nodes[rank].insert(holding.node);
      }
    }
  }
  std::optional<std::int64_t> newest;
  for (auto const& [save, nodes] : nodes_with) {
    if (save.first <= last &&
        std::ranges::all_of(nodes, [](auto const& on) { return on.size() > 1; })) {
      newest = save.first;
    }
  }
  return newest;
}

LevelParts::Plan LevelParts::plan(std::string const& name, std::uint64_t save) const {
  std::vector<Holding const*> same;
  for (Holding const& holding : holdings_) {
    if (holding.name == name && holding.save == save) {
      same.push_back(&holding);
    }
  }
  Plan plan{.moves = {}, .without_master = {}, .master = same.front(), .whole = true};
  std::size_t const ranks = plan.master->here.size();
  state::ShardMap const stored{map_->layers(), static_cast<int>(ranks),
                               deal_of(plan.master->format)};
  for (std::size_t node = 0; node < ring_.size(); ++node) {
    auto const own = std::ranges::find_if(
        same, [&](Holding const* each) { return each->node == node && !each->is_copy; });
    if (own == same.end()) {
      plan.without_master.push_back(node);
    }
    // If one node has all ranks, they read all files.
    auto const needed = ring_.size() > 1 ? read_by(ring_.ranks(node), *map_, stored)
                                         : std::vector<bool>(ranks, true);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (!needed[rank] || (own != same.end() && (*own)->here[rank])) {
        continue;
      }
      auto const is_holder = [&](Holding const* each) { return each->here[rank]; };
      auto from = std::ranges::find_if(
          same, [&](Holding const* each) { return each->node == node && is_holder(each); });
      from = from != same.end() ? from : std::ranges::find_if(same, is_holder);
      if (from == same.end()) {
        plan.whole = false;
      } else {
        plan.moves.push_back({.to = node, .from = *from, .rank = static_cast<int>(rank)});
      }
    }
  }
  return plan;
}

LevelParts::Plan LevelParts::best_plan(std::string const& name) const {
  Plan best;
  std::set<std::uint64_t> seen{0};  // a master that is damaged
  for (Holding const& holding : holdings_) {
    if (holding.name == name && seen.insert(holding.save).second) {
      Plan next = plan(name, holding.save);
      if (next.whole && (!best.whole || next.moves.size() < best.moves.size())) {
        best = std::move(next);
      }
    }
  }
  return best;
}

std::string LevelParts::directory_of(Holding const& holding) const {
  return (holding.is_copy ? places_.copies : places_.own) + "/" + holding.name;
}

std::vector<SentFile> LevelParts::files_for(Plan const& plan) const {
  std::vector<SentFile> files;
  for (Move const& move : plan.moves) {
    if (move.from->node != ring_.here() ||
        mover(ring_.ranks(ring_.here()), move.rank) != comm_.rank()) {
      continue;
    }
    std::string const directory = directory_of(*move.from);
    for (std::string const& name : files_of(directory, move.rank)) {
      files.push_back({directory + "/" + name, name, mover(ring_.ranks(move.to), move.rank)});
    }
  }
  if (plan.master->node == ring_.here() && node_.rank() == 0) {
    for (std::size_t const node : plan.without_master) {
      files.push_back({directory_of(*plan.master) + "/" + master_name, unfinished_master_name,
                       ring_.ranks(node).front()});
    }
  }
  return files;
}

void LevelParts::bring(std::string const& name) {
  Plan const plan = best_plan(name);
  if (!plan.whole || (plan.moves.empty() && plan.without_master.empty())) {
    return;
  }
  Stopwatch const watch;
  std::string const directory = places_.own + "/" + name;
  bool const makes_master =
      node_.rank() == 0 &&
      std::ranges::find(plan.without_master, ring_.here()) != plan.without_master.end();
  std::vector<SentFile> files;
  mpi::agree(comm_, [&] {
    files = files_for(plan);
    if (makes_master) {
      if (size_of(directory)) {
        remove_checkpoint(directory);  // its save is another, or did not finish
      }
      aio::make_directory(directory);
    }
  });
  FileExchange exchange{std::move(files), directory, comm_, node_};
  exchange.finish();
  mpi::agree(comm_, [&] {
    if (!makes_master) {
      return;
    }
    std::string const unfinished = directory + "/" + unfinished_master_name;
    std::string const finished = directory + "/" + master_name;
    rename_file("cannot rename to", unfinished, finished);
    aio::sync_directory(directory);
    aio::sync_directory(places_.own);
  });
  if (comm_.rank() == 0) {
    log::info("checkpoint {}: parts that nodes lacked came from other nodes, {} in {}", directory,
              format_bytes(exchange.bytes()), format_duration(watch.elapsed()));
  }
}

}  // namespace offstage::checkpoint
