#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "config/run_config.hpp"
#include "plan/memory.hpp"
#include "plan/simulation.hpp"
#include "state/shard.hpp"
#include "train/forecast/chosen.hpp"
#include "train/forecast/step_forecast.hpp"
#include "train/memory/device_demand.hpp"
#include "train/memory/room.hpp"

namespace offstage::train {

/// A configuration that fits.
struct Candidate {
  Chosen chosen;
  std::size_t number{};  ///< place in the order of candidates
  plan::MemoryPlan memory;
  DeviceDemand device;
  plan::Bound bound;
  std::optional<plan::Prediction> step{};
  std::int64_t rounds{};  ///< Detail::rounds of the simulation

  /// Returns whether it was simulated in this detail, or more.
  [[nodiscard]] bool is_simulated(plan::Detail const& detail) const {
    return step && rounds >= detail.rounds;
  }
  /// The time of a step, or its bound.
  [[nodiscard]] Seconds seconds() const { return step ? step->step : bound.step; }
};

/// The configurations that were tried: whether they fit by the memory plans of a run, and the time
/// of their steps. Candidates stay where they are.
class Candidates {
 public:
  /// `by_time`: rates are known, so that candidates have a bound.
  Candidates(config::RunConfig const& config, state::ShardMap const& map, Room const& room,
             bool by_time);

  /// A configuration, which is not added; nullopt: it does not fit.
  [[nodiscard]] std::optional<Candidate> fit(Chosen const& chosen);
  /// The same with the share that a model of the update takes for the best, if the plan decides it.
  [[nodiscard]] std::optional<Candidate> fit_with_share(Chosen chosen);
  /// Adds a candidate, with its bound.
  Candidate& add(Candidate candidate);
  /// The candidate of these values, which may be new; null: it does not fit.
  [[nodiscard]] Candidate* find_or_fit(Chosen const& chosen);
  void simulate(Candidate& candidate, plan::Detail const& detail) {
    simulate({&candidate}, detail);
  }
  /// Simulates them beside each other.
  void simulate(std::vector<Candidate*> const& candidates, plan::Detail const& detail);

  /// Returns whether the plan decides residents. It has none where the device's memory is unknown.
  [[nodiscard]] bool has_residents() const {
    return leaves_resident(config_) && room_.device_memory > 0;
  }
  /// The largest part of residents for which device memory has room, if gradients give way.
  [[nodiscard]] double most_resident(Candidate const& candidate) const;
  /// The least part of residents with which host memory suffices; nullopt: none does, or the plan
  /// does not decide it.
  [[nodiscard]] std::optional<double> least_resident(Chosen chosen) const;
  /// Returns whether the plan has a share to decide. A device that the host sees has the host's
  /// cores.
  [[nodiscard]] bool shares() const;

  /// Returns whether a candidate's state lacks the halves of parameters that the working copy has.
  [[nodiscard]] bool splits(Candidate const& candidate) const;

  [[nodiscard]] std::deque<Candidate>& all() noexcept { return candidates_; }
  [[nodiscard]] std::deque<Candidate> const& all() const noexcept { return candidates_; }
  /// The candidates that were simulated, the quickest first.
  [[nodiscard]] std::vector<Candidate*> by_time();
  /// Number of configurations, those that do not fit included.
  [[nodiscard]] int tried() const noexcept {
    return static_cast<int>(candidates_.size() + misfits_.size());
  }
  [[nodiscard]] int simulated() const noexcept { return simulated_; }
  /// Checks that a candidate fits. Errors: UsageError: nothing fits; names the memory that the most
  /// frugal one lacks.
  void require_any() const;

 private:
  [[nodiscard]] std::optional<Candidate> try_to_fit(Chosen const& chosen);
  [[nodiscard]] config::RunConfig with(Chosen const& chosen) const;
  [[nodiscard]] StepFacts facts(Candidate const& candidate) const {
    return {.map = map_,
            .rank = state::fullest_rank,
            .room = room_,
            .memory = candidate.memory,
            .device = candidate.device,
            .share = candidate.chosen.share};
  }
  [[nodiscard]] double share_for(config::RunConfig const& config, Candidate const& candidate) const;

  config::RunConfig config_;
  state::ShardMap const& map_;
  Room const& room_;
  bool by_time_;
  std::deque<Candidate> candidates_;
  std::vector<Chosen> misfits_;
  std::size_t fitted_ = 0;
  int simulated_ = 0;
  std::optional<Bytes> least_device_;  ///< least need of those that only the device has no room for
  std::string host_problem_;           ///< need of the last one for which the host has no room
};

/// Whole percents, rounded down, so that a reader can repeat the plan.
[[nodiscard]] double in_percents(double part);

}  // namespace offstage::train
