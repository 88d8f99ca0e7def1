#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/optimizer/gradient.hpp"
#include "plan/order.hpp"
#include "shard_support.hpp"
#include "targets_in.hpp"
#include "tiers/tiers.hpp"
#include "tiers/virtual_tiers.hpp"
#include "update/gradients/flusher.hpp"
#include "update/update.hpp"
#include "update_support.hpp"

namespace offstage::update {

constexpr int traffic_steps = 3;
constexpr int traffic_rounds = 2;

/// A shard and the gradients of every round of every step.
struct Lesson {
  explicit Lesson(int subgroups) : shard{subgroups} {
    for (int i = 0; i < traffic_steps * traffic_rounds; ++i) {
      gradients.push_back(random_values<bfloat16>(shard.size, static_cast<std::uint64_t>(10 + i)));
    }
  }
  /// Of a step from 1 on, the subgroup's part.
  [[nodiscard]] std::span<bfloat16 const> gradient(int step, int round,
                                                   state::Subgroup const& subgroup) const {
    auto const& all = gradients[static_cast<std::size_t>((step - 1) * traffic_rounds + round)];
    return std::span{all}.subspan(static_cast<std::size_t>(subgroup.begin),
                                  static_cast<std::size_t>(subgroup.size));
  }

  Shard shard;
  std::vector<std::vector<bfloat16>> gradients;
};

/// Where a run has its extents.
struct TrafficSettings {
  tiers::VirtualSettings state;
  tiers::VirtualSettings gradients;
  bool flush_fp32 = false;
  int workers = 3;
  bool ahead = false;  ///< updates begin under the last round; every second one is done again
};

/// What one rank of a run does with its tiers: first versions; then, step by step, sums of
/// gradients that a thread writes in the background, and the update.
class Traffic {
 public:
  Traffic(Lesson const& lesson, TrafficSettings settings)
      : lesson_{lesson}, ahead_{settings.ahead} {
    Shard const& shard = lesson.shard;
    state_ = tiers::make_virtual_tiers(shard.extents(), settings.state);
    settings.gradients.name = "gradient";
    sums_ = tiers::make_virtual_tiers(shard.extents(sizeof(bfloat16)), settings.gradients);
    if (settings.flush_fp32) {
      flushed_ = tiers::make_virtual_tiers(shard.extents(sizeof(float)), settings.gradients);
    }
    copy_.resize(static_cast<std::size_t>(shard.size));
    update_.emplace(UpdateParts{.subgroups = shard.subgroups,
                                .state = *state_,
                                .gradient = source(),
                                .target = parameters::targets_in(std::span{copy_})},
                    UpdateSettings{.workers = settings.workers});
    flusher_.emplace(flushed_.get());
    flusher_->set_receiver(&*update_);
  }

  void begin() { initialize(lesson_.shard, *state_); }
  void step() {
    ++step_;
    for (int round = 0; round < traffic_rounds; ++round) {
      if (ahead_ && round == traffic_rounds - 1) {
        begin_early();
      }
      add_round(round);
    }
    if (!ahead_) {
      update();
    } else if (step_ % 2 == 1) {
      update_->confirm();
      update_->finish();
    } else {
      update_->revert();
      update();
    }
  }
  /// Threads end; the tiers stay.
  void stop() {
    update_->abandon();
    flusher_.reset();
  }

  [[nodiscard]] tiers::Tiers& state() { return *state_; }
  [[nodiscard]] tiers::Tiers& sums() { return *sums_; }
  [[nodiscard]] std::vector<tiers::Tiers*> tiers() {
    std::vector<tiers::Tiers*> all{state_.get(), sums_.get()};
    if (flushed_) {
      all.push_back(flushed_.get());
    }
    return all;
  }
  [[nodiscard]] std::vector<bfloat16> const& copy() const { return copy_; }
  /// Begun so far.
  [[nodiscard]] int steps() const { return step_; }

  void add_round(int round) {
    bool const flush = flushed_ && round == traffic_rounds - 1;
    sums_->begin_pass();
    if (flush) {
      flushed_->begin_pass();
    }
    auto const& subgroups = lesson_.shard.subgroups;
    for (auto subgroup = subgroups.rbegin(); subgroup != subgroups.rend(); ++subgroup) {
      flusher_->rethrow();
      tiers::Lease lease =
          round == 0 ? sums_->create(subgroup->index) : sums_->fetch(subgroup->index);
      std::span<bfloat16> const sums{reinterpret_cast<bfloat16*>(lease.mutable_bytes().data()),
                                     static_cast<std::size_t>(subgroup->size)};
      kernels::host::accumulate<bfloat16, bfloat16>(
          {sums, lesson_.gradient(step_, round, *subgroup), round == 0});
      bool const last = round == traffic_rounds - 1;
      if (flush) {
        flusher_->flush(std::move(lease), kernels::GradientView{std::span<bfloat16 const>{sums}},
                        0.0);
      } else {
        flusher_->commit(std::move(lease), last ? std::optional{0.0} : std::nullopt);
      }
    }
    flusher_->drain();
  }
  void update() {
    (flushed_ ? flushed_ : sums_)->begin_pass();
    std::vector<bool> in_memory;
    for (auto const& subgroup : lesson_.shard.subgroups) {
      in_memory.push_back(state_->in_memory(subgroup.index));
    }
    make_update(*update_,
                on_cpu(plan::update_order(plan::UpdateOrder::alternate, step_, in_memory, true)),
                now());
  }

 private:
  void begin_early() {
    auto order = lesson_.shard.ascending();
    std::ranges::reverse(order);
    update_->plan(on_cpu(order));
    update_->begin_early(now(), std::numeric_limits<double>::max());
  }
  [[nodiscard]] kernels::OptimizerStep now() const {
    kernels::OptimizerStep step = first_step;
    step.step = step_;
    return step;
  }
  [[nodiscard]] GradientSource source() {
    return [this](state::Subgroup const& subgroup) { return gradient_of(subgroup); };
  }
  GradientLease gradient_of(state::Subgroup const& subgroup) {
    auto const size = static_cast<std::size_t>(subgroup.size);
    tiers::Lease lease = (flushed_ ? flushed_ : sums_)->fetch(subgroup.index);
    auto const* const bytes = lease.bytes().data();
    kernels::GradientView view = std::span{reinterpret_cast<bfloat16 const*>(bytes), size};
    if (flushed_) {
      view = std::span{reinterpret_cast<float const*>(bytes), size};
    }
    return {std::move(lease), view};
  }

  Lesson const& lesson_;
  bool ahead_;
  int step_ = 0;
  std::unique_ptr<tiers::Tiers> state_;
  std::unique_ptr<tiers::Tiers> sums_;
  std::unique_ptr<tiers::Tiers> flushed_;  ///< null: the update converts
  std::vector<bfloat16> copy_;
  std::optional<Update> update_;            ///< ends before the tiers
  std::optional<GradientFlusher> flusher_;  ///< likewise, and before what it tells
};

/// What a run in host memory has after each step.
struct Answer {
  explicit Answer(Lesson const& lesson) {
    TrafficSettings settings;
    settings.state.cached = settings.gradients.cached = std::ssize(lesson.shard.subgroups);
    settings.workers = 1;
    Traffic traffic{lesson, settings};
    traffic.begin();
    states.push_back(state_of(lesson.shard, traffic.state()));
    for (int step = 0; step < traffic_steps; ++step) {
      traffic.step();
      states.push_back(state_of(lesson.shard, traffic.state()));
    }
    copy = traffic.copy();
  }
  /// Whether the bytes are p, m and v of the subgroup after so many steps.
  [[nodiscard]] bool holds(state::Subgroup const& subgroup, int step,
                           std::span<std::byte const> bytes) const {
    auto const& all = states[static_cast<std::size_t>(step)];
    return std::memcmp(bytes.data(), all.data() + 3 * subgroup.begin, bytes.size()) == 0;
  }

  std::vector<std::vector<float>> states;  ///< from the first versions on
  std::vector<bfloat16> copy;
};

}  // namespace offstage::update
