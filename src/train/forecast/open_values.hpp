#pragma once

#include <string>
#include <vector>

#include "activations/policy.hpp"
#include "config/run_config.hpp"
#include "parameters/home.hpp"
#include "state/shard.hpp"
#include "train/forecast/candidates.hpp"
#include "train/forecast/chosen.hpp"
#include "train/memory/room.hpp"

namespace offstage::train {

/// The memory that parameters.home=node takes and what a node has, in words, if that is too little;
/// else empty.
[[nodiscard]] std::string node_home_shortage(config::RunConfig const& config,
                                             state::ShardMap const& map, Room const& room);

/// The values that keys which are left to the plan may have; of a key that is given that one alone.
/// Values that move less come first.
class OpenValues {
 public:
  OpenValues(config::RunConfig const& config, state::ShardMap const& map, Room const& room)
      : config_{config}, map_{map}, room_{room} {}

  [[nodiscard]] std::vector<parameters::Home> homes() const;
  [[nodiscard]] std::vector<parameters::Sharding> shardings(parameters::Home home) const;
  [[nodiscard]] std::vector<config::LayerSchedule> schedules() const;
  /// Policies of which a part stays on the device are there after open_parts() alone.
  [[nodiscard]] std::vector<activations::Policy> policies(config::LayerSchedule schedule) const;
  [[nodiscard]] std::vector<config::Switch> overlaps() const;
  /// The reason for which the ranks of a node cannot share parameters though the plan may let them;
  /// empty: they can, or it may not.
  [[nodiscard]] std::string node_shortage() const;

  /// Adds policies of which a part stays on the device, and other shares as neighbours of a share.
  void open_parts() { parts_are_open_ = true; }

  /// A part of the choices that differ from a candidate's in one key; the share may follow that
  /// key.
  using Neighbours = std::vector<Chosen> (OpenValues::*)(Candidate const& of,
                                                         Candidates& candidates) const;
  /// All of them, key by key.
  [[nodiscard]] static std::vector<Neighbours> neighbours();

 private:
  [[nodiscard]] std::vector<Chosen> other_residents(Candidate const& of,
                                                    Candidates& candidates) const;
  [[nodiscard]] std::vector<Chosen> other_overlaps(Candidate const& of,
                                                   Candidates& candidates) const;
  [[nodiscard]] std::vector<Chosen> other_shares(Candidate const& of, Candidates& candidates) const;
  [[nodiscard]] std::vector<Chosen> other_policies(Candidate const& of,
                                                   Candidates& candidates) const;
  [[nodiscard]] std::vector<Chosen> other_homes(Candidate const& of, Candidates& candidates) const;
  [[nodiscard]] std::vector<Chosen> other_subgroups(Candidate const& of,
                                                    Candidates& candidates) const;
  [[nodiscard]] std::vector<Chosen> other_splits(Candidate const& of, Candidates& candidates) const;

  config::RunConfig const& config_;
  state::ShardMap const& map_;
  Room const& room_;
  bool parts_are_open_ = false;
};

}  // namespace offstage::train
