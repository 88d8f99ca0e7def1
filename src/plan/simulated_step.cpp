#include "plan/simulated_step.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/error.hpp"

namespace offstage::plan {
namespace {

/// Steps until caches have settled, and steps that count, one with each order of subgroups.
constexpr int settling_steps = 2;
constexpr int counted_steps = 2;
/// A layer's gradient is summed while the next one comes, and backward makes one more meanwhile.
constexpr int gradient_buffers = 2;
constexpr int flushed_buffers = 3;

std::vector<double> weights_of(Machine const& machine, Schedule const& schedule) {
  return machine.rates.paths.empty() ? std::vector<double>{}
                                     : split_weights(schedule.split, machine.rates.paths);
}

}  // namespace

SimulatedSteps::SimulatedSteps(Machine const& machine, Workload const& work,
                               Schedule const& schedule, std::vector<SimulatedEvent>* events)
    : work_{work},
      schedule_{schedule},
      weights_{weights_of(machine, schedule)},
      machine_{time_, machine, events},
      waiting_{std::ranges::find(work.subgroups, true, &SubgroupWork::resident) -
               work.subgroups.begin()},
      slots_{schedule.layer_slots > 0 ? schedule.layer_slots : (work.ranks > 1 ? 2 : 0)},
      state_{time_, machine_, state()},
      gradients_{time_, machine_,
                 extents({.name = "gradient",
                          .buffers = schedule.gradient_buffers,
                          .cached = schedule.gradients_cached},
                         static_cast<double>(work.bytes_of_extents()), Which::all)},
      flushed_{time_, machine_,
               extents({.name = "flushed gradient",
                        .buffers = schedule.flush_fp32 ? flushed_buffers : 0},
                       sizeof(float), Which::all)},
      parameters_{
          time_, machine_,
          extents(
              {.name = "parameter",
               .made = true,
               .buffers = schedule.home == ParameterHome::storage ? schedule.parameter_buffers : 0},
              static_cast<double>(work.working_bytes), Which::all)},
      lane_{time_, 1},
      feed_{time_, 1},
      chunk_buffers_{time_, std::max(1, schedule.chunk_buffers)},
      staged_chunks_{time_, std::max(1, schedule.staged_chunks)},
      gradient_buffers_{time_, gradient_buffers},
      attention_buffer_{time_, 1},
      gradient_staging_{time_, gradient_buffers},
      readers_ahead_{time_, std::max(1, schedule.parameters_ahead)},
      leaving_(work.layers.size()),
      activations_{time_, machine_, activations()},
      layer_slots_{std::max(2, slots_), schedule.large_layers} {
  require(schedule.workers > 0 && work.rounds > 0 && schedule.chunk > 0 && schedule.slabs > 0,
          "simulate: workers, rounds, chunks and slabs are there");
  std::int64_t leaving = 0;
  for (std::size_t layer = 0; layer < work.layers.size(); ++layer) {
    leaving_[layer] = leaving;
    leaving += work.layers[layer].leaving > 0 ? 1 : 0;
  }
  if (auto const& vertical = work.vertical) {
    require(blocks() > 0, "simulate: a vertical schedule has an embedding, blocks and a head");
    int const rounds = static_cast<int>(work.rounds);
    int const tensors = rounds * (blocks() + 2);
    tensors_.emplace(time_, activations_,
                     WaitingGroup{.tensors = tensors,
                                  .slabs = vertical->tensor > 0.0 ? vertical->slabs : tensors,
                                  .staying = vertical->staying});
    int const tables = vertical->tied ? rounds : 0;
    tables_.emplace(time_, activations_,
                    WaitingGroup{.tensors = tables,
                                 .slabs = vertical->table > 0.0 ? vertical->table_slabs : tables,
                                 .pieces = vertical->pieces(),
                                 .first_block = tensors - vertical->staying});
  }
}

SimulatedActivations::Settings SimulatedSteps::activations() const {
  SimulatedActivations::Settings settings{.bytes = {},
                                          .blocks = {},
                                          .storage = schedule_.activations_on_storage,
                                          .cached = schedule_.activations_cached,
                                          .writers = schedule_.activation_writers,
                                          .readers = schedule_.activation_readers,
                                          .weights = weights_,
                                          .sharer = schedule_.sharer};
  if (auto const& vertical = work_.vertical) {
    auto const rounds = static_cast<std::size_t>(work_.rounds);
    settings.bytes.assign(
        rounds * static_cast<std::size_t>(blocks() + 2) - index(vertical->staying),
        vertical->tensor);
    for (std::size_t table = 0; table < rounds; ++table) {
      for (int piece = 0; piece < vertical->pieces(); ++piece) {
        settings.bytes.push_back(
            std::min(vertical->table_piece, vertical->table - piece * vertical->table_piece));
      }
    }
    settings.blocks.resize(settings.bytes.size());
    std::iota(settings.blocks.begin(), settings.blocks.end(), 0);
    return settings;
  }
  for (std::size_t layer = 0; layer < work_.layers.size(); ++layer) {
    if (work_.layers[layer].leaving > 0) {
      settings.bytes.push_back(static_cast<double>(work_.layers[layer].leaving));
      settings.blocks.push_back(activation_block(layer));
    }
  }
  return settings;
}

SimulatedExtents::Settings SimulatedSteps::extents(SimulatedExtents::Settings begun,
                                                   double element_bytes, Which which) const {
  begun.weights = weights_;
  begun.sharer = schedule_.sharer;
  for (SubgroupWork const& each : work_.subgroups) {
    if (which == Which::all || !each.resident) {
      begun.bytes.push_back(element_bytes * static_cast<double>(each.elements));
    }
  }
  return begun;
}

SimulatedExtents::Settings SimulatedSteps::state() const {
  auto settings = extents({.name = "state",
                           .made = true,
                           .buffers = schedule_.buffers,
                           .cached = schedule_.cached,
                           .spares = schedule_.spares,
                           .spare_slots = schedule_.spare_slots,
                           .evict = schedule_.evict},
                          work_.state_bytes, Which::not_resident);
  // If all extents have a place, the table has one for each.
  if (settings.cached >= std::ssize(settings.bytes)) {
    settings.buffers = 0;
  }
  return settings;
}

void SimulatedSteps::run_until(std::size_t events) {
  time_.start(steps());
  time_.run_while([&] { return machine_.recorded() < events; });
}

Prediction SimulatedSteps::run() {
  time_.start(steps());
  time_.run();
  Prediction result;
  for (int i = settling_steps; i < settling_steps + counted_steps; ++i) {
    Marks const& marks = marks_[static_cast<std::size_t>(i)];
    result.step += Seconds{marks.update - marks.begin} / counted_steps;
    result.forward += Seconds{marks.forward} / counted_steps;
    result.backward += Seconds{marks.backward} / counted_steps;
    result.update +=
        Seconds{marks.update - marks.begin - marks.forward - marks.backward} / counted_steps;
  }
  auto uses = ended_;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    uses[i].busy = (uses[i].busy - settled_[i].busy) / counted_steps;
  }
  result.step = std::max(result.step, uses.back().busy);  // host memory, for which nothing queues
  result.paths = moved_;
  for (std::size_t i = 0; i < result.paths.size(); ++i) {
    result.paths[i].read = (result.paths[i].read - moved_before_[i].read) / counted_steps;
    result.paths[i].written = (result.paths[i].written - moved_before_[i].written) / counted_steps;
  }
  std::erase_if(uses, [](ResourceUse const& use) { return use.busy <= Seconds{}; });
  std::ranges::stable_sort(uses, std::ranges::greater{}, &ResourceUse::busy);
  result.uses = std::move(uses);
  result.untimed = machine_.untimed();
  return result;
}

Task SimulatedSteps::steps() {
  for (int step = 0; step < settling_steps + counted_steps; ++step) {
    if (step == settling_steps) {
      settled_ = machine_.uses();
      moved_before_ = machine_.moved();
    }
    Marks& marks = marks_.emplace_back();
    marks.begin = time_.now();
    StepUses& uses = step_uses_.emplace_back();
    expect(uses);
    if (work_.vertical) {
      co_await layers(marks, uses);
    } else {
      co_await rounds(marks, uses);
    }
    co_await update(marks);
  }
  ended_ = machine_.uses();
  moved_ = machine_.moved();
}

// ---- Model

/// Deals the next update. The one before has ended.
void SimulatedSteps::plan_update() {
  trips_ = trips();
  hold(trips_);
}

Task SimulatedSteps::rounds(Marks& marks, StepUses& uses) {
  std::size_t use = 0;
  for (std::int64_t number = 0; number < work_.rounds; ++number) {
    Round round{time_, work_.layers.size()};
    double const began = time_.now();
    co_await forward(round, uses, use);
    double const forwarded = time_.now();
    use += work_.forward.size();
    if (number == 0) {
      if (before_ != nullptr) {
        co_await before_->done;
      }
      plan_update();
    }
    gradients_.begin_pass();
    if (last(number) && schedule_.overlap) {
      begin(trips_, true, false);
    }
    co_await backward(round, uses, use, number);
    use += work_.backward.size();
    machine_.record({"model", "forward"}, began, forwarded);
    machine_.record({"model", "backward"}, forwarded, time_.now());
    marks.forward += forwarded - began;
    marks.backward += time_.now() - forwarded;
  }
}

Task SimulatedSteps::forward(Round& round, StepUses& uses, std::size_t first) {
  activations_.open();
  for (std::size_t i = 0; i < work_.forward.size(); ++i) {
    auto const layer = static_cast<std::size_t>(work_.forward[i]);
    if (slots_ > 0) {
      co_await uses.uses[first + i].arrived;
    } else {
      co_await ready(work_.layers[layer], before_);
    }
    bool const again =
        std::find(work_.forward.begin(), work_.forward.begin() + static_cast<std::ptrdiff_t>(i),
                  work_.forward[i]) != work_.forward.begin() + static_cast<std::ptrdiff_t>(i);
    if (auto const before = slab_before(layer); before && !again) {
      co_await *round.left[*before];
    }
    co_await machine_.compute(again ? 0.0 : work_.layers[layer].forward);
    uses.uses[first + i].ended.set();
    if (work_.layers[layer].leaving > 0 && !again) {
      round.left[layer] = std::make_shared<Point>(time_);
      time_.start(activations_.put(leaving_[layer], round.left[layer]));
    }
  }
}

Task SimulatedSteps::backward(Round& round, StepUses& uses, std::size_t first,
                              std::int64_t number) {
  round.layers_left = std::ssize(work_.layers);
  for (std::size_t layer = work_.layers.size(); layer-- > 0;) {
    if (work_.layers[layer].leaving > 0) {
      round.back[layer] = std::make_shared<Point>(time_);
      time_.start(activations_.take(leaving_[layer], &round.freed[layer], round.back[layer]));
    }
  }
  std::size_t next = 0;
  for (std::size_t layer = work_.layers.size(); layer-- > 0;) {
    bool const used =
        next < work_.backward.size() && static_cast<std::size_t>(work_.backward[next]) == layer;
    if (used && slots_ > 0) {
      co_await uses.uses[first + next].arrived;
    }
    if (used && slots_ > 0 && work_.layers[layer].with_before) {
      co_await uses.uses[first + next + 1].arrived;
    }
    if (work_.layers[layer].leaving > 0) {
      co_await *round.back[layer];
    }
    co_await layer_backward(layer);
    if (auto const before = slab_before(layer)) {
      round.freed[*before].set();
    }
    if (used) {
      uses.uses[first + next++].ended.set();
    }
    time_.start(gradient(round, {layer, number}));
  }
  co_await round.summed;
}

// ---- Shard

std::pair<std::int64_t, std::int64_t> SimulatedSteps::keys(LayerWork const& layer) const {
  if (layer.count == 0) {
    return {0, 0};
  }
  auto const& all = work_.subgroups;
  auto const first = std::ranges::upper_bound(all, layer.begin, {}, &SubgroupWork::begin) - 1;
  auto const end =
      std::ranges::lower_bound(all, layer.begin + layer.count, {}, &SubgroupWork::begin);
  return {first - all.begin(), end - all.begin()};
}

std::int64_t SimulatedSteps::common(LayerWork const& layer, std::int64_t key) const {
  SubgroupWork const& of = subgroup(key);
  return std::min(of.begin + of.elements, layer.begin + layer.count) -
         std::max(of.begin, layer.begin);
}

}  // namespace offstage::plan
