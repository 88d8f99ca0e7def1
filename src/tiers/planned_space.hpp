#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/units.hpp"
#include "tiers/slot_table.hpp"
#include "tiers/virtual_tiers.hpp"

namespace offstage::tiers {

/// Slots that make_virtual_tiers asks for; empty if every extent stays in host memory.
/// Errors: PreconditionError: there is no path, and not every extent stays in host memory.
[[nodiscard]] std::optional<SlotDemand> demand_of(std::vector<Bytes> const& extent_bytes,
                                                  VirtualSettings const& settings);

/// Slots on one path that make_virtual_tiers would begin with, this rank.
struct PlannedSpace {
  std::int64_t slots{};
  Bytes slot_bytes{};
  Bytes bytes{};         ///< bytes of their files
  std::int64_t files{};  ///< files that stay open
};
/// In the order of the configuration; no slots where every extent stays in host memory. Errors: of
/// demand_of.
[[nodiscard]] std::vector<PlannedSpace> planned_space(std::vector<Bytes> const& extent_bytes,
                                                      VirtualSettings const& settings);

/// Whether `needed` bytes on each path, of all ranks that share it and of all their tiers, fit into
/// what is free there; paths on one file system share its space. Returns what is free on each.
/// `nodes`: the number of nodes that share each path; empty: each is this node's alone.
/// `with_spares`: some of them are for second versions (spare_slots, holds), which could be done
/// without.
/// Errors: IoError naming tiers.path, the directories, what is needed, what is free and what helps.
std::vector<Bytes> require_room(std::vector<PathSettings> const& paths,
                                std::vector<Bytes> const& needed, bool with_spares = false,
                                std::vector<std::int64_t> const& nodes = {});

}  // namespace offstage::tiers
