#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/optimizer/working_copy.hpp"
#include "memory_tiers.hpp"
#include "plan/share.hpp"
#include "shard_support.hpp"
#include "targets_in.hpp"
#include "tiers/virtual_tiers.hpp"
#include "update/update.hpp"
#include "update_support.hpp"

namespace offstage::update {

using Values = std::vector<bfloat16>;

/// As large as a sum of squares can be that is a number.
inline constexpr double no_clipping = std::numeric_limits<double>::max();

inline kernels::OptimizerStep step_of(int t, double scale = first_step.gradient_scale) {
  kernels::OptimizerStep step = first_step;
  step.step = t;
  step.gradient_scale = scale;
  return step;
}
inline std::span<bfloat16 const> part_of(Values const& values, state::Subgroup const& subgroup) {
  return std::span{values}.subspan(static_cast<std::size_t>(subgroup.begin),
                                   static_cast<std::size_t>(subgroup.size));
}
inline double squares_of(std::span<bfloat16 const> values) {
  double sum = 0.0;
  for (bfloat16 const value : values) {
    double const x = static_cast<double>(load(value));
    sum += x * x;
  }
  return sum;
}
/// As the optimizers round a working copy.
inline Values rounded(std::span<float const> values) {
  Values result(values.size());
  kernels::ref::round_parameters(values, result);
  return result;
}
/// That of `initialize`.
inline Values first_copy(Shard const& shard) {
  return rounded(random_values<float>(shard.size, 1));
}

/// What plain updates make of a shard.
class Plain {
 public:
  explicit Plain(Shard const& shard)
      : shard_{shard},
        tiers_{shard.extents(), {.in_memory = std::ssize(shard.subgroups)}},
        gradient_tiers_{shard.extents(2), {.in_memory = std::ssize(shard.subgroups)}},
        copy_{first_copy(shard)} {
    initialize(shard, tiers_);
  }
  void step(kernels::OptimizerStep const& step, Values const& gradient) {
    Gradients<bfloat16> gradients{shard_, gradient_tiers_};
    gradients.set(gradient);
    Update update{{.subgroups = shard_.subgroups,
                   .state = tiers_,
                   .gradient = gradients.source(),
                   .target = parameters::targets_in(std::span{copy_})},
                  {.layout = shard_.layout, .workers = 1}};
    make_update(update, on_cpu(shard_.ascending()), step);
  }
  [[nodiscard]] Values const& copy() const { return copy_; }
  [[nodiscard]] std::vector<float> state() { return state_of(shard_, tiers_); }

 private:
  Shard const& shard_;
  MemoryTiers tiers_;
  MemoryTiers gradient_tiers_;
  Values copy_;
};

/// Where a run whose updates begin under backward has what. Without paths `cached` is all.
struct Scene {
  StateLayout layout = adamw_layout();
  int subgroups = 7;
  int residents = 0;  ///< the last ones
  int paths = 1;
  int workers = 2;
  int buffers = 2;
  std::int64_t cached = 0;
  std::int64_t spare_slots = 0;
  std::int64_t spare_buffers = 0;
  int gradient_buffers = 1;
  std::int64_t gradients_cached = 0;
  bool flush = false;  ///< the last round writes gradients elsewhere
  int rounds = 1;      ///< of gradients
  tiers::Evict evict = tiers::Evict::farthest;
  bool on_device = false;  ///< a device takes part, one that shuffles
  unsigned seed = 1;       ///< of that
  double share = 0.5;
  int chunk_buffers = 1;
  int parameter_buffers = 1;
  Bytes held_room = 0;  ///< for gradients on the device
  plan::Transfers transfers = plan::Transfers::overlap;
};

/// Of the shard that all scenes have.
inline Values const& gradient_at(int t) {
  static std::map<int, Values> made;
  auto const [at, is_new] = made.try_emplace(t);
  if (is_new) {
    at->second =
        random_values<bfloat16>(Shard{Scene{}.subgroups}.size, static_cast<std::uint64_t>(10 + t));
  }
  return at->second;
}

/// The scenes of most tests: spares for none, some and all, in slots and in memory, on the CPU
/// alone and beside a device.
inline std::vector<Scene> scenes() {
  std::vector<Scene> all;
  for (int const spares : {0, 3, 7}) {
    for (int const workers : {1, 4}) {
      Scene scene;
      scene.workers = workers;
      scene.spare_slots = spares;
      scene.buffers = 1 + workers % 3;
      all.push_back(scene);
      scene.cached = 3;
      scene.spare_buffers = spares;
      scene.rounds = 2;
      all.push_back(scene);
      scene.on_device = true;
      scene.residents = 1;
      scene.held_room = 12 * chunk_elements;
      all.push_back(scene);
      scene.held_room = 0;
      scene.flush = true;
      all.push_back(scene);
    }
  }
  Scene in_memory;
  in_memory.paths = 0;
  in_memory.cached = in_memory.spare_buffers = in_memory.gradients_cached = 7;
  all.push_back(in_memory);
  return all;
}

inline std::string text(Scene const& scene) {
  return fmt::format(
      "{} workers, {} buffers, {} cached, {} spare slots, {} spare buffers, device {}, {} "
      "resident, "
      "{} bytes for gradients, flush {}",
      scene.workers, scene.buffers, scene.cached, scene.spare_slots, scene.spare_buffers,
      scene.on_device, scene.residents, scene.held_room, scene.flush);
}

/// Every extent has a spare, and waits in storage.
inline Scene all_on_trial() {
  Scene scene;
  scene.spare_slots = scene.subgroups;
  return scene;
}

}  // namespace offstage::update
