#include "tiers/planned_space.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "tiers/spill_file.hpp"

namespace offstage::tiers {

std::optional<SlotDemand> demand_of(std::vector<Bytes> const& extent_bytes,
                                    VirtualSettings const& settings) {
  if (settings.cached >= std::ssize(extent_bytes)) {
    return std::nullopt;
  }
  require(settings.spare_slots >= 0, "VirtualTiers: there cannot be fewer spare slots than none");
  require(settings.paths != nullptr && !settings.paths->empty(),
          "VirtualTiers: without a path every extent has to stay in host memory");
  std::int64_t const extents = std::ssize(extent_bytes);
  return SlotDemand{.spill = settings.spill,
                    .slot_bytes = round_up(std::ranges::max(extent_bytes), aio::direct_alignment),
                    .extents = (settings.holds ? 2 : 1) * (extents - settings.cached) +
                               std::min(settings.spare_slots, extents),
                    .spare = settings.buffers,
                    .split = settings.split,
                    .sharer = settings.sharer,
                    .kept = settings.kept,
                    .kept_nearby = settings.kept_nearby};
}

std::vector<PlannedSpace> planned_space(std::vector<Bytes> const& extent_bytes,
                                        VirtualSettings const& settings) {
  std::vector<PlannedSpace> space(settings.paths ? settings.paths->size() : 0);
  auto const demand = demand_of(extent_bytes, settings);
  if (!demand) {
    return space;
  }
  auto const slots = slots_at_first(*settings.paths, *demand);
  for (std::size_t i = 0; i < space.size(); ++i) {
    auto const kept = demand->kept_on((*settings.paths)[i]->settings());
    space[i] = {slots[i], demand->slot_bytes,
                slots[i] * (kept ? kept->file_bytes() : demand->slot_bytes), kept ? slots[i] : 1};
  }
  return space;
}

std::vector<Bytes> require_room(std::vector<PathSettings> const& paths,
                                std::vector<Bytes> const& needed, bool with_spares,
                                std::vector<std::int64_t> const& nodes) {
  require(paths.size() == needed.size(), "require_room: one figure per path");
  std::vector<Bytes> all_free;
  all_free.reserve(paths.size());
  for (std::size_t i = 0; i < paths.size(); ++i) {
    std::string const& directory = paths[i].directory;
    require_space(directory, 0);
    std::string who = "tiers.path = " + directory;
    Bytes sum = 0;
    bool elsewhere = false;  // a path lies on another file system
    for (std::size_t j = 0; j < paths.size(); ++j) {
      if (i != j && !on_one_file_system(directory, paths[j].directory)) {
        elsewhere = true;
        continue;
      }
      sum += needed[j];
      if (j != i) {
        who += fmt::format(", with {} on the same file system", paths[j].directory);
      }
    }
    auto const sharers = nodes.empty() || nodes[i] < 2
                             ? std::string{"this node"}
                             : fmt::format("the {} nodes that share it", nodes[i]);
    Bytes const free = aio::free_bytes(directory);
    if (sum > free) {
      throw IoError{fmt::format(
          "{}: what the ranks of {} offload needs {} there, but {} is free; "
          "make space, name another directory, {}{}",
          who, sharers, format_bytes(sum), format_bytes(free),
          elsewhere ? "give it a smaller part (tiers.split), " : "",
          with_spares ? "raise tiers.host-memory, or take no slots for second versions: "
                        "update.overlap = off, checkpoint.rate = 0"
                      : "or raise tiers.host-memory")};
    }
    all_free.push_back(free);
  }
  return all_free;
}

}  // namespace offstage::tiers
