#include "plan/simulation.hpp"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "plan/simulated_machine.hpp"
#include "plan/slot_schedule.hpp"
#include "plan/trip_order.hpp"
#include "plan/virtual_time.hpp"

namespace offstage::plan {
namespace {

/// Steps until caches have settled, and those that count: one with either order of subgroups.
constexpr int settling_steps = 2;
constexpr int counted_steps = 2;
/// A layer's gradient is summed while the next one comes, and backward makes one more meanwhile.
constexpr int gradient_buffers = 2;
constexpr int flushed_buffers = 3;

std::size_t index(std::int64_t of) {
  return static_cast<std::size_t>(of);
}

/// The update of one step.
struct Update {
  Update(VirtualTime& time, std::vector<Trip> trips, Schedule const& schedule, bool under_backward)
      : order{trips, schedule.workers, schedule.transfers == Transfers::blocking},
        ahead{under_backward},
        complete(trips.size(), Point{time}),
        ready(trips.size(), Point{time}),
        confirmed{time},
        ended{time},
        cores_done{time},
        done{time},
        cores_left{order.cpu_trips()} {}

  TripOrder order;
  bool ahead;  ///< it began under backward
  bool cancelled = false;
  std::vector<Point> complete;  ///< gradients
  std::vector<Point> ready;     ///< new parameters
  Point confirmed;
  Change ended;  ///< a trip
  Point cores_done, done;
  std::int64_t cores_left;
  int workers_left{};
};

/// What a micro-batch's use of a layer takes from an extent of the working copy.
struct Piece {
  std::int64_t key{};
  std::int64_t elements{};
  bool ends{};  ///< the extent's lease
  Point* arrived{};
};

/// One use of a layer by the model.
struct Use {
  SlotSchedule::Use slot;
  Point arrived, ended;
  std::vector<Piece> pieces{};
};

class Simulation {
 public:
  Simulation(Machine const& machine, Workload const& work, Schedule const& schedule);
  [[nodiscard]] Prediction run();

 private:
  struct Marks {
    double begin{}, forward{}, backward{}, update{};
  };
  struct StepUses {
    std::deque<Use> uses;
    std::deque<Point> extents;  ///< read ahead
  };
  /// Of one round of a step.
  struct Round {
    Round(VirtualTime& time, std::size_t layers)
        : left(layers, Point{time}),
          back(layers, Point{time}),
          stored(layers, Point{time}),
          freed(layers, Point{time}),
          summed{time} {}
    std::vector<Point> left;    ///< activations have left the device
    std::vector<Point> back;    ///< and are there again
    std::vector<Point> stored;  ///< they may be read from where they are
    std::vector<Point> freed;   ///< their slab is free for them
    Point summed;               ///< all gradients
    int layers_left{}, writes_left{};
  };

  Task steps();
  Task forward(Round& round, StepUses& uses, std::size_t first);
  Task backward(Round& round, StepUses& uses, std::size_t first, int number);
  Task update(Marks& marks);
  // Parameters
  void expect(StepUses& step);
  Task bring(StepUses& step);
  Task read_ahead(std::int64_t key, Point& arrived);
  Task ready(LayerWork const& layer, Update* update);
  // Activations
  [[nodiscard]] std::optional<std::size_t> slab_before(std::size_t layer) const;
  Task leave(Round& round, std::size_t layer);
  Task come_back(Round& round, std::size_t layer);
  // Gradients
  Task gradient(Round& round, std::size_t layer, int number);
  Task spill(Round& round, std::int64_t key, int number);
  void end_of_gradient(Round& round);
  // Updates
  [[nodiscard]] std::vector<Trip> trips();
  void hold(std::vector<Trip> const& trips);
  Update& begin(std::vector<Trip> const& trips, bool ahead);
  Task worker(Update& update);
  Task on_cores(Update& update, std::int64_t key);
  Task on_device(Update& update, std::int64_t key);
  Task send(std::int64_t elements, Point& sent);
  Task chunk(std::int64_t key, std::int64_t elements, Point& returned);
  /// Leases of a subgroup; `go`: none, as the update was cancelled.
  Task fetch(Update& update, std::int64_t key, bool& go);
  Task end(Update& update, std::int64_t key);

  /// Ranks that have a micro-batch in it.
  [[nodiscard]] std::int64_t active(int round) const {
    return std::clamp<std::int64_t>(work_.micro_batches - std::int64_t{round} * work_.ranks, 1,
                                    work_.ranks);
  }
  [[nodiscard]] bool last(int round) const { return round + 1 == work_.rounds; }
  [[nodiscard]] SubgroupWork const& subgroup(std::int64_t key) const {
    return work_.subgroups[index(key)];
  }
  /// Subgroups that have elements of the layer's part: [first, second).
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> keys(LayerWork const& layer) const;
  [[nodiscard]] std::int64_t common(LayerWork const& layer, std::int64_t key) const;
  [[nodiscard]] SimulatedExtents extents(double element_bytes, bool resident, int buffers,
                                         std::int64_t cached);
  [[nodiscard]] bool gathers() const { return work_.ranks > 1; }

  Workload const& work_;
  Schedule const& schedule_;
  std::vector<double> weights_;
  VirtualTime time_;
  SimulatedMachine machine_;
  std::int64_t waiting_;  ///< subgroups that are not resident
  int slots_;             ///< of layers on the device; 0: all are there
  SimulatedExtents state_, gradients_, flushed_, parameters_;
  Tokens lane_, feed_, chunk_slots_, staged_chunks_;
  Tokens gradient_places_, gradient_staging_, readers_ahead_, activation_writers_,
      activation_readers_;
  SlotSchedule layer_slots_;
  std::deque<StepUses> step_uses_;
  std::deque<Round> rounds_;
  std::deque<Update> updates_;
  Update* before_{};  ///< the update of the step before, or this step's
  std::vector<Trip> trips_;
  std::vector<char> held_, stays_;
  std::int64_t passes_ = 0;
  std::deque<Marks> marks_;
  std::vector<ResourceUse> settled_, ended_;  ///< before the steps that count, and after them
};

std::vector<double> weights_of(Machine const& machine, Schedule const& schedule) {
  return machine.rates.paths.empty() ? std::vector<double>{}
                                     : split_weights(schedule.split, machine.rates.paths);
}

Simulation::Simulation(Machine const& machine, Workload const& work, Schedule const& schedule)
    : work_{work},
      schedule_{schedule},
      weights_{weights_of(machine, schedule)},
      machine_{time_, machine},
      waiting_{std::ranges::find(work.subgroups, true, &SubgroupWork::resident) -
               work.subgroups.begin()},
      slots_{schedule.parameter_slots > 0 ? schedule.parameter_slots : (work.ranks > 1 ? 2 : 0)},
      state_{extents(work.state_bytes, false, schedule.buffers, schedule.cached)},
      gradients_{extents(static_cast<double>(work.gradient_bytes), true, schedule.gradient_buffers,
                         schedule.gradients_cached)},
      flushed_{extents(sizeof(float), true, schedule.flush_fp32 ? flushed_buffers : 0, 0)},
      parameters_{extents(static_cast<double>(work.working_bytes), true,
                          schedule.home == ParameterHome::storage ? schedule.parameter_buffers : 0,
                          0)},
      lane_{time_, 1},
      feed_{time_, 1},
      chunk_slots_{time_, std::max(1, schedule.chunk_slots)},
      staged_chunks_{time_, std::max(1, schedule.staged_chunks)},
      gradient_places_{time_, gradient_buffers},
      gradient_staging_{time_, gradient_buffers},
      readers_ahead_{time_, std::max(1, schedule.parameters_ahead)},
      activation_writers_{time_, std::max(1, schedule.activation_writers)},
      activation_readers_{time_, std::max(1, schedule.activation_readers)},
      layer_slots_{std::max(2, slots_)} {
  require(schedule.workers > 0 && work.rounds > 0 && schedule.chunk > 0 && schedule.slabs > 0,
          "simulate: workers, rounds, chunks and slabs are there");
}

SimulatedExtents Simulation::extents(double element_bytes, bool resident, int buffers,
                                     std::int64_t cached) {
  SimulatedExtents::Settings settings;
  settings.buffers = buffers;
  settings.cached = cached;
  settings.weights = weights_;
  for (SubgroupWork const& each : work_.subgroups) {
    if (resident || !each.resident) {
      settings.bytes.push_back(element_bytes * static_cast<double>(each.elements));
    }
  }
  settings.sharer = schedule_.sharer;
  if (!resident) {
    settings.spares = schedule_.spares;
    settings.spare_slots = schedule_.spare_slots;
    settings.evict = schedule_.evict;
    // Where all have a place, the table has one for each.
    if (cached >= std::ssize(settings.bytes)) {
      settings.buffers = 0;
    }
  }
  return {time_, machine_, std::move(settings)};
}

Prediction Simulation::run() {
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
  result.step = std::max(result.step, uses.back().busy);  // host memory, which nobody queues for
  std::erase_if(uses, [](ResourceUse const& use) { return use.busy <= Seconds{}; });
  std::ranges::stable_sort(uses, std::ranges::greater{}, &ResourceUse::busy);
  result.uses = std::move(uses);
  return result;
}

Task Simulation::steps() {
  for (int step = 0; step < settling_steps + counted_steps; ++step) {
    if (step == settling_steps) {
      settled_ = machine_.uses();
    }
    Marks& marks = marks_.emplace_back();
    marks.begin = time_.now();
    StepUses& uses = step_uses_.emplace_back();
    expect(uses);
    std::size_t use = 0;
    for (int number = 0; number < work_.rounds; ++number) {
      Round& round = rounds_.emplace_back(time_, work_.layers.size());
      double const began = time_.now();
      co_await forward(round, uses, use);
      double const forwarded = time_.now();
      use += work_.forward.size();
      if (number == 0) {
        if (before_ != nullptr) {
          co_await before_->done;
        }
        trips_ = trips();
        hold(trips_);
      }
      gradients_.begin_pass();
      if (last(number) && schedule_.overlap) {
        begin(trips_, true);
      }
      co_await backward(round, uses, use, number);
      use += work_.backward.size();
      marks.forward += forwarded - began;
      marks.backward += time_.now() - forwarded;
    }
    co_await update(marks);
  }
  ended_ = machine_.uses();
}

// ---- Model

Task Simulation::forward(Round& round, StepUses& uses, std::size_t first) {
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
      co_await round.left[*before];
    }
    co_await machine_.compute(again ? 0.0 : work_.layers[layer].forward);
    uses.uses[first + i].ended.set();
    if (work_.layers[layer].leaving > 0 && !again) {
      time_.start(leave(round, layer));
    }
  }
}

Task Simulation::backward(Round& round, StepUses& uses, std::size_t first, int number) {
  round.layers_left = static_cast<int>(work_.layers.size());
  for (std::size_t layer = work_.layers.size(); layer-- > 0;) {
    if (work_.layers[layer].leaving > 0) {
      time_.start(come_back(round, layer));
    }
  }
  std::size_t next = 0;
  for (std::size_t layer = work_.layers.size(); layer-- > 0;) {
    bool const used =
        next < work_.backward.size() && static_cast<std::size_t>(work_.backward[next]) == layer;
    if (used && slots_ > 0) {
      co_await uses.uses[first + next].arrived;
    }
    co_await gradient_places_.take();
    LayerWork const& work = work_.layers[layer];
    if (work.leaving > 0) {
      co_await round.back[layer];
    }
    co_await machine_.compute(work.recompute + work.backward);
    if (auto const before = slab_before(layer)) {
      round.freed[*before].set();
    }
    if (used) {
      uses.uses[first + next++].ended.set();
    }
    time_.start(gradient(round, layer, number));
  }
  co_await round.summed;
}

// ---- Parameters

void Simulation::expect(StepUses& step) {
  layer_slots_.forget();
  std::vector<int> layers;
  for (int round = 0; round < work_.rounds; ++round) {
    layers.insert(layers.end(), work_.forward.begin(), work_.forward.end());
    layers.insert(layers.end(), work_.backward.begin(), work_.backward.end());
  }
  std::vector<std::size_t> fills;
  for (int const layer : layers) {
    auto slot = slots_ > 0 ? layer_slots_.add(layer) : SlotSchedule::Use{.layer = layer};
    if (slot.fill) {
      fills.push_back(step.uses.size());
    }
    step.uses.push_back({.slot = slot, .arrived = Point{time_}, .ended = Point{time_}});
  }
  if (slots_ == 0) {
    return;
  }
  // Uses count over all steps; here they count from this step's first one.
  auto const before =
      static_cast<std::int64_t>(step_uses_.size() - 1) * static_cast<std::int64_t>(layers.size());
  for (Use& use : step.uses) {
    use.slot.after -= before;
  }
  if (schedule_.home == ParameterHome::storage) {
    for (std::size_t i = 0; i < fills.size(); ++i) {
      Use& use = step.uses[fills[i]];
      auto const& layer = work_.layers[static_cast<std::size_t>(use.slot.layer)];
      auto const [from, to] = keys(layer);
      bool const down = i + 1 < fills.size() && step.uses[fills[i + 1]].slot.layer < use.slot.layer;
      for (std::int64_t n = 0; n < to - from; ++n) {
        std::int64_t const key = down ? to - 1 - n : from + n;
        Piece piece{.key = key, .elements = common(layer, key), .ends = true};
        Use* const earlier = i > 0 ? &step.uses[fills[i - 1]] : nullptr;
        bool const goes_on = n == 0 && earlier != nullptr && !earlier->pieces.empty() &&
                             earlier->pieces.back().key == key;
        if (goes_on) {
          earlier->pieces.back().ends = false;
          piece.arrived = earlier->pieces.back().arrived;
        } else {
          piece.arrived = &step.extents.emplace_back(time_);
          time_.start(read_ahead(key, *piece.arrived));
        }
        use.pieces.push_back(piece);
      }
    }
  }
  time_.start(bring(step));
}

Task Simulation::read_ahead(std::int64_t key, Point& arrived) {
  Update* const update = before_;
  co_await readers_ahead_.take();
  if (update != nullptr) {
    co_await update->ready[index(key)];
  }
  co_await parameters_.fetch(key);
  arrived.set();
}

Task Simulation::bring(StepUses& step) {
  Update* const update = before_;
  for (Use& use : step.uses) {
    if (use.slot.fill) {
      if (use.slot.after >= 0) {
        co_await step.uses[index(use.slot.after)].ended;
      }
      LayerWork const& layer = work_.layers[static_cast<std::size_t>(use.slot.layer)];
      double const bytes = static_cast<double>(work_.working_bytes);
      double const mine = bytes * static_cast<double>(layer.count);
      for (Piece const& piece : use.pieces) {
        co_await *piece.arrived;
        if (!gathers()) {
          co_await machine_.to_device(bytes * static_cast<double>(piece.elements));
        }
        if (piece.ends) {
          parameters_.discard(piece.key);
          readers_ahead_.give();
        }
      }
      if (schedule_.home != ParameterHome::storage) {
        co_await ready(layer, update);
      }
      bool const streamed = schedule_.home != ParameterHome::device;
      if (gathers() && !schedule_.direct) {
        double const whole = bytes * static_cast<double>(layer.elements);
        co_await machine_.to_host(streamed ? 0.0 : mine);
        co_await machine_.between_ranks(whole - mine);
        co_await machine_.to_device(whole);
      } else {
        bool const whole = gathers() || schedule_.home == ParameterHome::host;
        co_await machine_.to_device(streamed && whole ? mine : 0.0);
        co_await machine_.between_ranks(bytes * static_cast<double>(layer.elements) - mine);
      }
    }
    use.arrived.set();
  }
}

Task Simulation::ready(LayerWork const& layer, Update* update) {
  if (update != nullptr) {
    auto const [from, to] = keys(layer);
    for (std::int64_t key = from; key < to; ++key) {
      co_await update->ready[index(key)];
    }
  }
}

// ---- Activations

/// The leaving layer that has the same slab before.
std::optional<std::size_t> Simulation::slab_before(std::size_t layer) const {
  auto const slabs = static_cast<std::size_t>(schedule_.slabs);
  bool const has = layer >= slabs && work_.layers[layer - slabs].leaving > 0;
  return has ? std::optional{layer - slabs} : std::nullopt;
}

Task Simulation::leave(Round& round, std::size_t layer) {
  auto const bytes = static_cast<double>(work_.layers[layer].leaving);
  if (!schedule_.activations_on_storage) {
    co_await machine_.to_host(bytes);
    round.left[layer].set();
    round.stored[layer].set();
    co_return;
  }
  co_await activation_writers_.take();
  co_await machine_.to_host(bytes);
  round.left[layer].set();
  // The last ones stay: a block leaves host memory when one more has come than there is room for.
  std::int64_t leaving_layers = 0;
  std::int64_t mine = 0;
  for (std::size_t each = 0; each < work_.layers.size(); ++each) {
    mine += each < layer && work_.layers[each].leaving > 0 ? 1 : 0;
    leaving_layers += work_.layers[each].leaving > 0 ? 1 : 0;
  }
  if (mine < leaving_layers - schedule_.activations_cached) {
    co_await machine_.write(next_path(weights_, std::vector<std::int64_t>(weights_.size(), 0),
                                      std::vector<bool>(weights_.size(), true)),
                            bytes);
  }
  round.stored[layer].set();
  activation_writers_.give();
}

Task Simulation::come_back(Round& round, std::size_t layer) {
  auto const bytes = static_cast<double>(work_.layers[layer].leaving);
  if (schedule_.activations_on_storage) {
    co_await activation_readers_.take();
    co_await round.stored[layer];
    std::int64_t after = 0;
    for (std::size_t each = layer + 1; each < work_.layers.size(); ++each) {
      after += work_.layers[each].leaving > 0 ? 1 : 0;
    }
    if (after >= schedule_.activations_cached) {
      co_await machine_.read(next_path(weights_, std::vector<std::int64_t>(weights_.size(), 0),
                                       std::vector<bool>(weights_.size(), true)),
                             bytes);
    }
  }
  co_await round.stored[layer];
  co_await round.freed[layer];
  co_await machine_.to_device(bytes);
  round.back[layer].set();
  if (schedule_.activations_on_storage) {
    activation_readers_.give();
  }
}

// ---- Gradients

Task Simulation::gradient(Round& round, std::size_t layer, int number) {
  LayerWork const& work = work_.layers[layer];
  auto const element = static_cast<double>(work_.working_bytes);
  auto const sum = static_cast<double>(work_.gradient_bytes);
  auto const [from, to] = keys(work);
  bool const staged = gathers() && !schedule_.direct;
  auto const sources = static_cast<double>(active(number));
  double leaving = staged ? element * static_cast<double>(work.elements) : 0.0;
  double summed = 0.0, taken = 0.0, brought = 0.0;
  for (std::int64_t key = from; key < to; ++key) {
    auto const elements = static_cast<double>(common(work, key));
    bool const on_device = held_[index(key)] != 0 && !staged;
    if (on_device) {
      taken += last(number) && stays_[index(key)] == 0 ? sum * elements : 0.0;
      continue;
    }
    leaving += staged ? 0.0 : element * elements * sources;
    for (int source = 0; source < active(number); ++source) {
      summed += elements * (element + (number == 0 && source == 0 ? sum : 2.0 * sum));
    }
    summed += last(number) ? elements * sum : 0.0;
    brought += last(number) && stays_[index(key)] != 0 ? sum * elements : 0.0;
  }
  double const exchanged =
      element * static_cast<double>(work.count) * std::min(sources, work_.ranks - 1.0);
  co_await gradient_staging_.take();
  co_await machine_.between_ranks(staged ? 0.0 : exchanged);
  co_await machine_.to_host(leaving);
  gradient_places_.give();
  co_await machine_.between_ranks(staged ? exchanged : 0.0);
  co_await machine_.sum(summed);
  co_await machine_.to_host(taken);
  co_await machine_.to_device(brought);
  gradient_staging_.give();
  for (std::int64_t key = to - 1; key >= from; --key) {
    if (subgroup(key).begin >= work.begin) {  // its lowest layer: it is complete
      ++round.writes_left;
      time_.start(spill(round, key, number));
    }
  }
  --round.layers_left;
  end_of_gradient(round);
}

Task Simulation::spill(Round& round, std::int64_t key, int number) {
  if (stays_[index(key)] == 0) {
    if (schedule_.gradient_buffers > 0) {
      if (number > 0) {
        co_await gradients_.fetch(key);
      } else {
        co_await gradients_.create(key);
      }
      co_await gradients_.commit(key);
    }
    if (last(number) && schedule_.flush_fp32) {
      co_await flushed_.create(key);
      co_await flushed_.commit(key);
    }
  }
  if (last(number) && schedule_.overlap) {
    if (!subgroup(key).resident) {
      before_->order.bring_forward(key);
    }
    before_->complete[index(key)].set();
  }
  --round.writes_left;
  end_of_gradient(round);
}

void Simulation::end_of_gradient(Round& round) {
  if (round.layers_left == 0 && round.writes_left == 0) {
    round.summed.set();
  }
}

// ---- Update

std::vector<Trip> Simulation::trips() {
  std::vector<std::int64_t> order(index(waiting_));
  if (schedule_.overlap) {
    std::iota(order.rbegin(), order.rend(), 0);
  } else {
    std::vector<bool> in_memory(order.size());
    for (std::int64_t key = 0; key < waiting_; ++key) {
      in_memory[index(key)] = state_.in_memory(key);
    }
    order = update_order(schedule_.order, passes_++, in_memory, schedule_.spread);
  }
  std::vector<std::int64_t> sizes;
  std::ranges::transform(work_.subgroups, std::back_inserter(sizes), &SubgroupWork::elements);
  auto trips = deal_trips(schedule_.share, order, sizes);
  for (std::int64_t key = waiting_; key < std::ssize(work_.subgroups); ++key) {
    trips.push_back({.subgroup = key, .on_device = true});
  }
  if (schedule_.transfers == Transfers::blocking) {
    std::ranges::stable_partition(
        trips, [&](Trip const& trip) { return subgroup(trip.subgroup).resident; });
  }
  return trips;
}

/// As SharedUpdate::plan and HeldGradients::hold.
void Simulation::hold(std::vector<Trip> const& trips) {
  held_.assign(work_.subgroups.size(), 0);
  stays_.assign(work_.subgroups.size(), 0);
  std::int64_t room = schedule_.held;
  auto const take = [&](std::int64_t key, bool stays) {
    if (subgroup(key).elements <= room) {
      room -= subgroup(key).elements;
      held_[index(key)] = 1;
      stays_[index(key)] = stays ? 1 : 0;
    }
  };
  for (bool const resident : {true, false}) {
    for (Trip const& trip : trips) {
      if (trip.on_device && subgroup(trip.subgroup).resident == resident) {
        take(trip.subgroup, true);
      }
    }
  }
  for (Trip const& trip : trips) {
    if (schedule_.sums_on_device && !trip.on_device) {
      take(trip.subgroup, false);
    }
  }
}

Update& Simulation::begin(std::vector<Trip> const& trips, bool ahead) {
  before_ = &updates_.emplace_back(time_, trips, schedule_, ahead);
  if (!ahead) {
    before_->confirmed.set();
  }
  state_.begin_pass();
  if (before_->cores_left == 0) {
    before_->cores_done.set();
  }
  before_->workers_left = schedule_.workers;
  for (int i = 0; i < schedule_.workers; ++i) {
    time_.start(worker(*before_));
  }
  return *before_;
}

Task Simulation::update(Marks& marks) {
  Update* now = before_;
  if (schedule_.overlap && schedule_.redone) {
    now->cancelled = true;
    now->confirmed.set();
    std::ranges::for_each(now->complete, &Point::set);
    co_await now->done;
  } else if (schedule_.overlap) {
    now->order.lowest_first();
    now->confirmed.set();
  }
  if (!schedule_.overlap || schedule_.redone) {
    now = &begin(trips_, false);
    co_await now->cores_done;
    if (!schedule_.goes_on) {
      co_await now->done;
    }
  } else if (schedule_.transfers == Transfers::blocking) {
    co_await now->done;
  }
  marks.update = time_.now();
}

Task Simulation::worker(Update& update) {
  while (!update.order.empty()) {
    if (update.order.must_wait()) {
      co_await update.ended;
      continue;
    }
    Trip const trip = *update.order.take();
    if (trip.on_device) {
      co_await on_device(update, trip.subgroup);
    } else {
      co_await on_cores(update, trip.subgroup);
    }
    update.order.end(trip);
    update.ended.tell();
  }
  if (--update.workers_left == 0) {
    update.done.set();
  }
}

Task Simulation::fetch(Update& update, std::int64_t key, bool& go) {
  go = true;
  bool const resident = subgroup(key).resident;
  if (update.ahead) {
    go = !update.cancelled;
    if (!go) {
      co_return;
    }
    bool trial = false;
    if (!resident) {
      trial = !update.confirmed.happened() && state_.take_spare(key);
      co_await state_.fetch(key);
    }
    co_await (trial ? update.complete[index(key)] : update.confirmed);
    go = !update.cancelled;
    if (!go) {
      if (!resident) {
        state_.discard(key);
      }
      co_return;
    }
  }
  if (stays_[index(key)] == 0) {
    co_await (schedule_.flush_fp32 ? flushed_ : gradients_).fetch(key);
  }
  if (!update.ahead && !resident) {
    co_await state_.fetch(key);
  }
  co_await parameters_.create(key);
}

Task Simulation::on_cores(Update& update, std::int64_t key) {
  bool go = false;
  co_await fetch(update, key, go);
  auto const leave_lane = [&] {
    if (--update.cores_left == 0) {
      update.cores_done.set();
    }
  };
  if (!go) {
    leave_lane();
    co_return;
  }
  co_await lane_.take();
  std::int64_t const elements = subgroup(key).elements;
  machine_.touch_host(static_cast<double>(elements) *
                      (2.0 * work_.state_bytes + static_cast<double>(work_.gradient_bytes) +
                       static_cast<double>(work_.working_bytes)));
  std::deque<Point> sent;
  for (std::int64_t done = 0; done < elements; done += schedule_.chunk) {
    std::int64_t const count = std::min(schedule_.chunk, elements - done);
    if (schedule_.stages) {
      co_await staged_chunks_.take();
    }
    co_await machine_.update_on_cores(count);
    if (schedule_.stages) {
      time_.start(send(count, sent.emplace_back(time_)));
      if (schedule_.transfers == Transfers::blocking) {
        co_await sent.back();
      }
    }
  }
  lane_.give();
  if (schedule_.flush_fp32) {
    flushed_.discard(key);
  } else {
    gradients_.discard(key);
  }
  leave_lane();
  if (!sent.empty()) {
    co_await sent.back();
  }
  co_await end(update, key);
}

Task Simulation::send(std::int64_t elements, Point& sent) {
  co_await machine_.to_device(static_cast<double>(work_.working_bytes * elements));
  staged_chunks_.give();
  sent.set();
}

Task Simulation::on_device(Update& update, std::int64_t key) {
  bool go = false;
  co_await fetch(update, key, go);
  if (!go) {
    co_return;
  }
  std::int64_t const elements = subgroup(key).elements;
  std::deque<Point> returned;
  co_await feed_.take();
  for (std::int64_t done = 0; done < elements; done += schedule_.chunk) {
    co_await chunk_slots_.take();
    time_.start(
        chunk(key, std::min(schedule_.chunk, elements - done), returned.emplace_back(time_)));
  }
  feed_.give();
  for (Point& point : returned) {
    co_await point;
  }
  if (stays_[index(key)] == 0) {
    (schedule_.flush_fp32 ? flushed_ : gradients_).discard(key);
  }
  co_await end(update, key);
}

Task Simulation::chunk(std::int64_t key, std::int64_t elements, Point& returned) {
  auto const count = static_cast<double>(elements);
  bool const resident = subgroup(key).resident;
  double const state = resident ? 0.0 : work_.state_bytes * count;
  double const gradient =
      stays_[index(key)] != 0 ? 0.0 : static_cast<double>(work_.gradient_bytes) * count;
  double const parameters = schedule_.home == ParameterHome::device
                                ? 0.0
                                : static_cast<double>(work_.working_bytes) * count;
  co_await machine_.to_device(state + gradient);
  co_await machine_.update_on_device(elements);
  co_await machine_.to_host(state + parameters);
  chunk_slots_.give();
  returned.set();
}

Task Simulation::end(Update& update, std::int64_t key) {
  co_await parameters_.commit(key);
  update.ready[index(key)].set();
  if (!subgroup(key).resident) {
    co_await state_.commit(key);
  }
}

// ---- Shard

std::pair<std::int64_t, std::int64_t> Simulation::keys(LayerWork const& layer) const {
  if (layer.count == 0) {
    return {0, 0};
  }
  auto const& all = work_.subgroups;
  auto const first = std::ranges::upper_bound(all, layer.begin, {}, &SubgroupWork::begin) - 1;
  auto const end =
      std::ranges::lower_bound(all, layer.begin + layer.count, {}, &SubgroupWork::begin);
  return {first - all.begin(), end - all.begin()};
}

std::int64_t Simulation::common(LayerWork const& layer, std::int64_t key) const {
  SubgroupWork const& of = subgroup(key);
  return std::min(of.begin + of.elements, layer.begin + layer.count) -
         std::max(of.begin, layer.begin);
}

}  // namespace

Prediction mean(Prediction const& one, Prediction const& other, double often) {
  auto const between = [&](Seconds a, Seconds b) { return (1.0 - often) * a + often * b; };
  Prediction result{.step = between(one.step, other.step),
                    .forward = between(one.forward, other.forward),
                    .backward = between(one.backward, other.backward),
                    .update = between(one.update, other.update),
                    .uses = one.uses};
  for (ResourceUse& use : result.uses) {
    auto const found = std::ranges::find(other.uses, use.name, &ResourceUse::name);
    use.busy = between(use.busy, found == other.uses.end() ? Seconds{} : found->busy);
  }
  std::ranges::stable_sort(result.uses, std::ranges::greater{}, &ResourceUse::busy);
  return result;
}

Prediction simulate(Machine const& machine, Workload const& workload, Schedule const& schedule) {
  return Simulation{machine, workload, schedule}.run();
}

}  // namespace offstage::plan
