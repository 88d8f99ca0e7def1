#include "train/offload.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/extent_file.hpp"
#include "plan/order.hpp"
#include "platform/cpu/affinity.hpp"
#include "tiers/spill_directory.hpp"

namespace offstage::train {
namespace {

// Long enough to leave a cold start behind, short beside the start of a run.
constexpr Seconds measuring_time{0.3};
constexpr Bytes measured_most = 512 * MiB;
// FP32 gradients on their way out: one converted, one written, one read.
constexpr int flushed_buffers = 3;
constexpr Bytes state_bytes_per_element = 3 * sizeof(float);  // p, m, v

bool is_known(tiers::PathSettings const& path) {
  return path.read_rate > 0.0 && path.write_rate > 0.0;
}

}  // namespace

Offload::Offload(RunConfig const& config, mpi::Communicator const& comm, trace::Trace* trace,
                 Bytes measuring_memory)
    : config_{config}, comm_{comm}, trace_{trace} {
  if (config.paths.empty()) {
    return;
  }
  auto const node = comm.split_by_node();
  sharer_ = {node.rank(), node.size()};
  window_ = std::make_unique<mpi::SharedWindow>(node, tiers::shared_bytes(config.paths));
  mpi::agree(comm, [&] {
    paths_ = tiers::make_paths({.paths = config.paths,
                                .exclusive = config.storage.exclusive,
                                .shared = window_->bytes(),
                                .trace = trace});
  });
  measure(node, measuring_memory);
}

void Offload::measure(mpi::Communicator const& node, Bytes memory) {
  if (paths_->size() < 2 || config_.storage.split.rule == plan::SplitRule::fixed) {
    return;
  }
  std::vector<plan::PathRate> measured(paths_->size());
  mpi::agree(comm_, [&] {
    for (std::size_t i = 0; node.rank() == 0 && i < paths_->size(); ++i) {
      if (!is_known((*paths_)[i]->settings())) {
        measured[i] =
            tiers::measure_rates(*(*paths_)[i], spill(),
                                 {.time = measuring_time, .most = measured_most, .memory = memory});
      }
    }
  });
  for (std::size_t i = 0; i < paths_->size(); ++i) {
    if (!is_known((*paths_)[i]->settings())) {
      auto const rate = node.broadcast_value(measured[i], 0);
      (*paths_)[i]->set_rates(rate.read, rate.write);
    }
  }
}

std::shared_ptr<tiers::KeptFileShape const> Offload::shape_of_slots(
    std::vector<state::Subgroup> const& subgroups) const {
  if (subgroups.empty() || std::ranges::none_of(config_.paths, &tiers::PathSettings::persistent)) {
    return nullptr;
  }
  auto const& largest =
      *std::ranges::max_element(subgroups, {}, [](auto const& each) { return each.size; });
  return std::make_shared<tiers::KeptFileShape>(checkpoint::shape_of_slots(
      config_.checkpoint.dir, comm_.rank(), largest.size * state_bytes_per_element));
}

std::string Offload::spill() const {
  return tiers::spill_name({.job = config_.job ? config_.job->id : "",
                            .run = std::filesystem::path{config_.run_dir}.filename().string(),
                            .host = cpu::host_name(),
                            .process = getpid(),
                            .rank = comm_.rank()});
}

void Offload::allocate(std::vector<state::Subgroup> const& subgroups, plan::MemoryPlan const& plan,
                       Bytes gradient_element_bytes) {
  subgroups_ = std::ssize(subgroups);
  auto const extents = [&](Bytes bytes_per_element) {
    std::vector<Bytes> sizes;
    sizes.reserve(subgroups.size());
    for (state::Subgroup const& subgroup : subgroups) {
      sizes.push_back(subgroup.size * bytes_per_element);
    }
    return sizes;
  };
  tiers::VirtualSettings const shared{.paths = paths_,
                                      .spill = spill(),
                                      .verify = config_.storage.verify,
                                      .split = config_.storage.split,
                                      .sharer = sharer_,
                                      .trace = trace_};
  mpi::agree(comm_, [&] {
    auto settings = shared;
    settings.evict = config_.storage.evict;
    settings.buffers = std::max(1, plan.buffers);
    settings.cached = paths_ ? plan.cached : subgroups_;
    if (settings.cached < subgroups_) {
      settings.kept = shape_of_slots(subgroups);
    }
    state_ = tiers::make_virtual_tiers(extents(state_bytes_per_element), settings);

    settings = shared;
    settings.name = "gradient";
    settings.buffers = std::max(1, plan.gradient_buffers);
    settings.cached = plan.gradient_buffers > 0 ? plan.gradients_cached : subgroups_;
    gradients_.accumulated = tiers::make_virtual_tiers(extents(gradient_element_bytes), settings);
    if (config_.storage.flush_fp32) {
      settings.buffers = flushed_buffers;
      settings.cached = 0;
      gradients_.flushed =
          tiers::make_virtual_tiers(extents(static_cast<Bytes>(sizeof(float))), settings);
    }
  });
}

update::GradientSettings Offload::take_gradients(bool accumulate_fp32) {
  gradients_.accumulate_fp32 = accumulate_fp32;
  return std::move(gradients_);
}

std::vector<std::int64_t> Offload::next_order() {
  std::vector<bool> in_memory(static_cast<std::size_t>(subgroups_));
  for (std::int64_t key = 0; key < subgroups_; ++key) {
    in_memory[static_cast<std::size_t>(key)] = state_->in_memory(key);
  }
  // An order that the cache does not know of must not be changed under it.
  bool const spread = config_.storage.evict == tiers::Evict::farthest;
  return plan::update_order(config_.storage.order, passes_++, in_memory, spread);
}

void Offload::follow_rates() {
  if (paths_) {
    for (auto const& path : *paths_) {
      path->follow_rates();
    }
  }
}

std::vector<plan::PathRate> Offload::rates() const {
  std::vector<plan::PathRate> rates;
  if (paths_) {
    for (auto const& path : *paths_) {
      rates.push_back(path->rate());
    }
  }
  return rates;
}

std::vector<PathFacts> Offload::facts() const {
  std::vector<PathFacts> facts;
  for (plan::PathRate const& rate : rates()) {
    facts.push_back({.rate = rate});
  }
  auto const space = state_->space();
  for (std::size_t i = 0; i < space.size(); ++i) {
    facts[i].slots = space[i].slots;
    facts[i].slot_bytes = space[i].slot_bytes;
  }
  return facts;
}

}  // namespace offstage::train
