#include "train/offload/offload.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.hpp"
#include "checkpoint/extent_file.hpp"
#include "plan/order.hpp"
#include "platform/aio/open_files.hpp"
#include "tiers/planned_space.hpp"
#include "tiers/spill_file.hpp"
#include "train/memory/memory_demand.hpp"
#include "train/offload/storage.hpp"

namespace offstage::train {
namespace {

// Long enough to leave a cold start behind, short beside the start of a run.
constexpr Seconds measuring_time{0.3};
constexpr Bytes measured_most = 512 * MiB;
// Buffers of FP32 gradients on their way out: one converted, one written, one read.
constexpr int flushed_buffers = 3;

std::vector<Bytes> extents(std::span<state::Subgroup const> subgroups, Bytes bytes_per_element) {
  std::vector<Bytes> sizes;
  sizes.reserve(subgroups.size());
  for (state::Subgroup const& subgroup : subgroups) {
    sizes.push_back(subgroup.size * bytes_per_element);
  }
  return sizes;
}

std::vector<Bytes> extents(std::span<state::Subgroup const> subgroups, StateLayout const& layout) {
  std::vector<Bytes> sizes;
  sizes.reserve(subgroups.size());
  for (state::Subgroup const& subgroup : subgroups) {
    sizes.push_back(layout.bytes(subgroup.size));
  }
  return sizes;
}

/// Measures the rates of paths that have none, on the first rank of a node. The node's other ranks
/// get them from it. Collective over both.
std::vector<plan::PathRate> measure_unknown(config::RunConfig const& config,
                                            mpi::Communicator const& comm,
                                            mpi::Communicator const& node,
                                            tiers::PathSet const& paths, Bytes memory) {
  std::vector<plan::PathRate> measured(paths.size());
  mpi::agree(comm, [&] {
    for (std::size_t i = 0; node.rank() == 0 && i < paths.size(); ++i) {
      if (!paths[i]->settings().rates_known()) {
        measured[i] =
            tiers::measure_rates(*paths[i], spill_of(config, comm),
                                 {.time = measuring_time, .most = measured_most, .memory = memory});
      }
    }
  });
  for (plan::PathRate& rate : measured) {
    rate = node.broadcast_value(rate, 0);
  }
  return measured;
}

/// Returns for each path whether this node sees the directory of rank 0's node there, as on a
/// parallel file system. Ids of file systems do not tell: some have none, and those of copied disks
/// are alike. Collective.
std::vector<bool> shared_with_first(config::RunConfig const& config,
                                    mpi::Communicator const& comm) {
  std::string const name = comm.broadcast(spill_of(config, comm), 0);
  std::vector<std::unique_ptr<tiers::SpillMark>> marks;
  mpi::agree(comm, [&] {
    for (std::size_t i = 0; comm.rank() == 0 && i < config.paths.size(); ++i) {
      marks.push_back(
          std::make_unique<tiers::SpillMark>(tiers::SpillPlace{config.paths[i].directory, name}));
    }
  });
  std::vector<bool> shared;
  for (tiers::PathSettings const& path : config.paths) {
    shared.push_back(tiers::is_there({path.directory, name}));
  }
  comm.barrier();  // all have looked
  return shared;
}

}  // namespace

void measure_paths(config::RunConfig& config, mpi::Communicator const& comm) {
  auto const node = comm.split_by_node();
  mpi::SharedWindow const window{node, tiers::shared_bytes(config.paths)};
  std::shared_ptr<tiers::PathSet const> paths;
  mpi::agree(comm,
             [&] { paths = tiers::make_paths({.paths = config.paths, .shared = window.bytes()}); });
  // Half of a limit that is given: this process has other memory too.
  Bytes const memory = config.host_memory > 0
                           ? std::min(tiers::path_turn_bytes, config.host_memory / 2)
                           : tiers::path_turn_bytes;
  auto const measured = measure_unknown(config, comm, node, *paths, memory);
  for (std::size_t i = 0; i < measured.size(); ++i) {
    auto& path = config.paths[i];
    if (!path.rates_known()) {
      path.read_rate = comm.minimum(measured[i].read);
      path.write_rate = comm.minimum(measured[i].write);
      path.measured = true;
    }
  }
}

Offload::Offload(config::RunConfig const& config, mpi::Communicator const& comm,
                 trace::Trace* trace, Bytes measuring_memory)
    : config_{config}, comm_{comm}, trace_{trace} {
  if (config.paths.empty()) {
    return;
  }
  auto const node = comm.split_by_node();
  sharer_ = {node.rank(), node.size()};
  window_ = std::make_unique<mpi::SharedWindow>(node, tiers::shared_bytes(config.paths));
  locks_ = choose_locks(
      config, comm, node,
      {.spill = spill_of(config, comm), .shared = window_->bytes(), .memory = measuring_memory});
  std::vector<bool> exclusive;
  for (LockChoice const& lock : locks_) {
    exclusive.push_back(lock.exclusive);
  }
  mpi::agree(comm, [&] {
    paths_ = tiers::make_paths({.paths = config.paths,
                                .exclusive = exclusive,
                                .shared = window_->bytes(),
                                .trace = trace,
                                .ranks = node.size()});
  });
  measure(node, measuring_memory);
}

void Offload::measure(mpi::Communicator const& node, Bytes memory) {
  if (paths_->size() < 2 || !plan::needs_rates(config_.storage.split)) {
    return;
  }
  auto const measured = measure_unknown(config_, comm_, node, *paths_, memory);
  for (std::size_t i = 0; i < paths_->size(); ++i) {
    if (!(*paths_)[i]->settings().rates_known()) {
      (*paths_)[i]->set_rates(measured[i].read, measured[i].write);
    }
  }
}

std::shared_ptr<tiers::KeptFileShape> Offload::shape_of_slots(
    std::span<state::Subgroup const> subgroups, std::string const& directory) const {
  if (subgroups.empty()) {
    return nullptr;
  }
  auto const& largest =
      *std::ranges::max_element(subgroups, {}, [](auto const& each) { return each.size; });
  return std::make_shared<tiers::KeptFileShape>(checkpoint::shape_of_slots(
      directory, comm_.rank(), config_.optimizer.layout(), largest.size));
}

Offload::Demands Offload::demands(std::vector<state::Subgroup> const& subgroups,
                                  plan::MemoryPlan const& plan, Bytes gradient_element_bytes,
                                  Bytes parameter_element_bytes,
                                  std::vector<Bytes> const& activations) const {
  std::span const waiting = std::span{subgroups}.first(static_cast<std::size_t>(subgroups_));
  tiers::VirtualSettings const shared{.paths = paths_,
                                      .spill = spill_of(config_, comm_),
                                      .verify = config_.storage.verify,
                                      .split = config_.storage.split,
                                      .sharer = sharer_,
                                      .trace = trace_};
  Demand state{extents(waiting, config_.optimizer.layout()), shared};
  state.settings.evict = evicted_first(config_);
  state.settings.buffers = std::max(1, plan.buffers);
  state.settings.cached = paths_ ? plan.cached : subgroups_;
  if (keeps_versions(config_)) {
    state.settings.spare_slots = subgroups_ - std::min(subgroups_, state.settings.cached);
    state.settings.spare_buffers = plan.spares;
  }
  state.settings.holds = holds_versions(config_);
  if (state.settings.cached < subgroups_) {
    if (std::ranges::any_of(config_.paths, &tiers::PathSettings::persistent)) {
      state.settings.kept = shape_of_slots(waiting, config_.checkpoint.dir);
    }
    if (std::ranges::any_of(config_.paths, &tiers::PathSettings::nearby)) {
      auto shape = shape_of_slots(waiting, config_.checkpoint.level_1);
      shape->near_alone = true;  // checkpoint.dir has extents of persistent paths alone
      state.settings.kept_nearby = std::move(shape);
    }
  }

  Demand accumulated{extents(subgroups, gradient_element_bytes), shared};
  accumulated.settings.name = "gradient";
  accumulated.settings.buffers = std::max(1, plan.gradient_buffers);
  accumulated.settings.cached =
      plan.gradient_buffers > 0 ? plan.gradients_cached : std::ssize(subgroups);
  Demands demands{.state = std::move(state), .gradients = std::move(accumulated)};
  if (config_.flushes_fp32()) {
    auto& flushed = demands.flushed.emplace(
        Demand{extents(subgroups, static_cast<Bytes>(sizeof(float))), shared});
    flushed.settings.name = "flushed gradient";
    flushed.settings.buffers = flushed_buffers;
  }
  if (parameter_element_bytes > 0) {
    auto& parameters =
        demands.parameters.emplace(Demand{extents(subgroups, parameter_element_bytes), shared});
    parameters.settings.name = "parameter";
    parameters.settings.buffers = std::max(1, plan.parameter_buffers);
  }
  if (!activations.empty()) {
    auto& swapped = demands.activations.emplace(Demand{activations, shared});
    swapped.settings.name = "activation";  // farthest extents are evicted; the last come back first
    swapped.settings.buffers = plan.activation_buffers;
    swapped.settings.cached = plan.activations_cached;
  }
  return demands;
}

/// Checks the room for all files of all ranks together. If each were checked by itself, space could
/// run out in the middle, or seem to suffice.
void Offload::find_room(Demands const& demands) {
  find_descriptors(demands);
  auto const node = comm_.split_by_node();
  facts_.assign(config_.paths.size(), {});
  mpi::agree(comm_, [&] {
    demands.each([&](Demand const& demand) {
      auto const space = tiers::planned_space(demand.extents, demand.settings);
      for (std::size_t i = 0; i < space.size(); ++i) {
        facts_[i].needed += space[i].bytes;
        if (space[i].slots > 0) {
          facts_[i].slots.push_back({demand.settings.name, space[i].slots, space[i].slot_bytes});
        }
      }
    });
  });
  std::vector<Bytes> needed;
  needed.reserve(facts_.size());
  for (PathFacts& path : facts_) {
    path.needed = node.sum(path.needed);
    needed.push_back(path.needed);
  }
  std::vector<std::int64_t> nodes(needed.size(), 1);
  if (comm_.size() > node.size()) {
    auto const shared = shared_with_first(config_, comm_);
    for (std::size_t i = 0; i < needed.size(); ++i) {
      bool const counts = shared[i] && node.rank() == 0;
      Bytes const together = comm_.sum(counts ? needed[i] : 0);
      std::int64_t const sharers = comm_.sum(std::int64_t{counts ? 1 : 0});
      if (shared[i]) {
        needed[i] = together;
        nodes[i] = sharers;
      }
    }
  }
  // agree() waits for all ranks before the first one allocates.
  mpi::agree(comm_, [&] {
    bool with_spares = false;
    demands.each([&](Demand const& demand) {
      with_spares = with_spares || demand.settings.spare_slots > 0 || demand.settings.holds;
    });
    auto const free = tiers::require_room(config_.paths, needed, with_spares, nodes);
    for (std::size_t i = 0; i < free.size(); ++i) {
      facts_[i].free = free[i];
    }
  });
}

/// Raises the limit of open files for slots that are files of their own.
void Offload::find_descriptors(Demands const& demands) const {
  // Descriptors of libraries, of a checkpoint that is read, and of everything else.
  constexpr std::int64_t others = 512;
  mpi::agree(comm_, [&] {
    std::int64_t files = others;
    std::int64_t kept = 0;
    demands.each([&](Demand const& demand) {
      for (tiers::PlannedSpace const& path :
           tiers::planned_space(demand.extents, demand.settings)) {
        files += path.files;
        kept += path.files > 1 ? path.files : 0;
      }
    });
    std::int64_t const may = kept > 0 ? aio::allow_open_files(files) : files;
    if (may < files) {
      throw IoError{fmt::format(
          "tiers.path: {} slots of a rank are files of their own, which checkpoints take by "
          "reference; with others it needs {} open files, but may have {} (ulimit -n): raise that, "
          "raise update.subgroup-size, or leave out persistent and checkpoint.local",
          kept, files, may)};
    }
  });
}

void Offload::allocate(std::vector<state::Subgroup> const& subgroups, plan::MemoryPlan const& plan,
                       Bytes gradient_element_bytes, device::Device& device,
                       Bytes parameter_element_bytes, std::vector<Bytes> const& activations) {
  auto const first_resident = std::ranges::find(subgroups, true, &state::Subgroup::resident);
  subgroups_ = first_resident - subgroups.begin();
  std::optional<Demands> wanted;
  mpi::agree(comm_, [&] {
    wanted = demands(subgroups, plan, gradient_element_bytes, parameter_element_bytes, activations);
  });
  auto& of_state = wanted->state.settings;
  try {
    find_room(*wanted);
  } catch (mpi::AgreedError const&) {
    // Wished for by any rank.
    bool const wished = comm_.maximum(of_state.spare_slots) > 0;
    if (config_.overlap != config::Switch::automatic || !wished) {
      throw;
    }
    of_state.spare_slots = 0;  // second versions are a wish
    find_room(*wanted);
  }
  spares_ = of_state.spare_slots + of_state.spare_buffers;
  mpi::agree(comm_, [&] {
    auto const make = [&](Demand& demand) {
      demand.settings.device = &device;
      return tiers::make_virtual_tiers(demand.extents, demand.settings);
    };
    state_ = make(wanted->state);
    if (first_resident != subgroups.end()) {
      auto both = std::make_unique<tiers::DeviceTiers>(
          device, subgroups_,
          extents({first_resident, subgroups.end()}, config_.optimizer.layout()),
          std::move(state_));
      residents_ = both.get();
      state_ = std::move(both);
    }
    gradients_.accumulated = make(wanted->gradients);
    if (wanted->flushed) {
      gradients_.flushed = make(*wanted->flushed);
    }
    if (wanted->parameters) {
      parameters_ = make(*wanted->parameters);
    }
    if (wanted->activations) {
      activations_ = make(*wanted->activations);
    }
  });
}

update::GradientSettings Offload::take_gradients(bool accumulate_fp32) {
  gradients_.accumulate_fp32 = accumulate_fp32;
  return std::move(gradients_);
}

tiers::Tiers& Offload::parameters() {
  require(parameters_ != nullptr, "Offload: the working copy does not live on storage");
  return *parameters_;
}

tiers::Tiers& Offload::activations() {
  require(activations_ != nullptr, "Offload: no activations live on storage");
  return *activations_;
}

std::span<std::byte> Offload::resident(std::int64_t subgroup) const {
  require(residents_ != nullptr, "Offload: nothing is resident on the device");
  return residents_->resident(subgroup);
}

std::vector<std::int64_t> Offload::next_order() {
  std::vector<bool> in_memory(static_cast<std::size_t>(subgroups_));
  for (std::int64_t key = 0; key < subgroups_; ++key) {
    in_memory[static_cast<std::size_t>(key)] = state_->in_memory(key);
  }
  // Spreading changes the order, of which other rules of the cache would not know.
  bool const spread = evicted_first(config_) != plan::Evict::oldest;
  return plan::update_order(config_.storage.order, passes_++, in_memory, spread);
}

std::vector<std::int64_t> Offload::descending_order() const {
  std::vector<std::int64_t> order(static_cast<std::size_t>(subgroups_));
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
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

std::vector<plan::PathRate> Offload::rates_of_rank() const {
  std::vector<plan::PathRate> rates;
  auto const ranks = static_cast<double>(sharer_.ranks);
  for (std::size_t i = 0; paths_ && i < paths_->size(); ++i) {
    if ((*paths_)[i]->writable()) {
      auto const rate = (*paths_)[i]->rate();
      rates.push_back({rate.read / ranks, rate.write / ranks, rate.full_duplex});
    }
  }
  return rates;
}

std::vector<PathFacts> Offload::facts() const {
  std::vector<PathFacts> facts = facts_;
  auto const found = rates();
  for (std::size_t i = 0; i < facts.size(); ++i) {
    facts[i].rate = found[i];
    facts[i].lock = locks_[i];
  }
  return facts;
}

}  // namespace offstage::train
