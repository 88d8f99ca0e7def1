#include "plan/simulated_step.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace offstage::plan {

// ---- Update

std::vector<Trip> SimulatedSteps::trips() {
  std::vector<std::int64_t> order(index(waiting_));
  if (schedule_.overlap) {
    std::iota(order.rbegin(), order.rend(), 0);
  } else {
    std::vector<bool> in_memory(order.size());
    for (std::int64_t key = 0; key < waiting_; ++key) {
      in_memory[index(key)] = state_.in_memory(key);
    }
    order = update_order(schedule_.order, passes_++, in_memory, schedule_.evict != Evict::oldest);
  }
  std::vector<std::int64_t> sizes;
  std::ranges::transform(work_.subgroups, std::back_inserter(sizes), &SubgroupWork::elements);
  auto trips = deal_trips(schedule_.share, order, sizes);
  for (std::int64_t key = waiting_; key < std::ssize(work_.subgroups); ++key) {
    trips.push_back({.subgroup = key, .on_device = true});
  }
  return trips;
}

/// Chooses held gradients as update::Update::plan and HeldGradients::hold do.
void SimulatedSteps::hold(std::vector<Trip> const& trips) {
  held_.assign(work_.subgroups.size(), 0);
  stays_.assign(work_.subgroups.size(), 0);
  std::int64_t room = schedule_.held - schedule_.reserved_in_turn;
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
  if (!schedule_.sum_blocks.empty()) {
    find_places_in_turn(room + schedule_.reserved_in_turn);
    return;
  }
  for (Trip const& trip : trips) {
    if (schedule_.sums_on_device && !trip.on_device) {
      take(trip.subgroup, false);
    }
  }
}

void SimulatedSteps::find_places_in_turn(std::int64_t room) {
  std::vector<Range> ranges;
  for (std::size_t key = 0; key < work_.subgroups.size(); ++key) {
    if (held_[key] == 0) {
      ranges.push_back({work_.subgroups[key].begin, work_.subgroups[key].elements});
    }
  }
  in_turn_ = places_in_turn(ranges, schedule_.sum_blocks, room);
  sums_left_ = work_.elements();
}

PlaceInTurn const* SimulatedSteps::in_turn(LayerWork const& layer, std::int64_t key) const {
  return find_place(in_turn_, std::max(subgroup(key).begin, layer.begin));
}

SimulatedUpdate& SimulatedSteps::begin(std::vector<Trip> trips, bool ahead, bool decided) {
  state_.begin_pass();
  std::vector<char> waits(trips.size());
  for (std::size_t key = 0; key < waits.size() && !decided; ++key) {
    bool const spare =
        !work_.subgroups[key].resident && state_.has_spare(static_cast<std::int64_t>(key));
    waits[key] = spare ? 0 : 1;
  }
  before_ = &updates_.emplace_back(time_, trips, schedule_, ahead, decided);
  before_->waits_for_norm = std::move(waits);
  if (decided) {
    before_->confirmed.set();
  }
  if (before_->cores_left == 0) {
    before_->cores_done.set();
  }
  before_->workers_left = schedule_.workers;
  for (int i = 0; i < schedule_.workers; ++i) {
    time_.start(worker(*before_, i));
  }
  return *before_;
}

Task SimulatedSteps::update(Marks& marks) {
  SimulatedUpdate* now = before_;
  if (schedule_.overlap && schedule_.redone) {
    now->cancelled = true;
    now->confirmed.set();
    std::ranges::for_each(now->complete, &Point::set);
    co_await now->done;
  } else if (schedule_.overlap) {
    now->order.lowest_first();
    now->confirmed.set();
  }
  if (schedule_.overlap && schedule_.redone) {
    std::ranges::sort(trips_, {}, &Trip::subgroup);
    now = &begin(trips_, true, true);
  } else if (!schedule_.overlap) {
    now = &begin(trips_, false, true);
    co_await now->cores_done;
  }
  bool const stays = schedule_.overlap ? schedule_.transfers == Transfers::blocking
                                       : !schedule_.under_next_forward;
  if (stays) {
    co_await now->done;
  }
  marks.update = time_.now();
}

Task SimulatedSteps::worker(SimulatedUpdate& update, int number) {
  auto const row = "worker " + std::to_string(number);
  while (!update.order.empty()) {
    if (update.order.must_wait()) {
      co_await update.ended;
      continue;
    }
    Trip const trip = *update.order.take();
    auto const event = machine_.begun({row, "trip", trip.subgroup});
    if (trip.on_device) {
      co_await on_device(update, trip.subgroup);
    } else {
      co_await on_cores(update, trip.subgroup);
    }
    machine_.ended(event);
    update.order.end(trip);
    update.ended.tell();
  }
  if (--update.workers_left == 0) {
    update.done.set();
  }
}

Task SimulatedSteps::fetch(SimulatedUpdate& update, std::int64_t key, bool& go) {
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

Task SimulatedSteps::on_cores(SimulatedUpdate& update, std::int64_t key) {
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
  double const began = time_.now();
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
  machine_.record({"update", "update", key}, began, time_.now());
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

Task SimulatedSteps::send(std::int64_t elements, Point& sent) {
  co_await machine_.to_device(static_cast<double>(work_.working_bytes * elements),
                              {"parameters to device", "send"});
  staged_chunks_.give();
  sent.set();
}

Task SimulatedSteps::on_device(SimulatedUpdate& update, std::int64_t key) {
  bool go = false;
  co_await fetch(update, key, go);
  if (!go) {
    co_return;
  }
  std::int64_t const elements = subgroup(key).elements;
  std::deque<Point> returned;
  co_await feed_.take();
  for (std::int64_t done = 0; done < elements; done += schedule_.chunk) {
    co_await chunk_buffers_.take();
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

Task SimulatedSteps::chunk(std::int64_t key, std::int64_t elements, Point& returned) {
  auto const count = static_cast<double>(elements);
  bool const resident = subgroup(key).resident;
  double const state = resident ? 0.0 : work_.state_bytes * count;
  double const gradient =
      stays_[index(key)] != 0 ? 0.0 : static_cast<double>(work_.gradient_bytes) * count;
  double const parameters = schedule_.home == ParameterHome::device
                                ? 0.0
                                : static_cast<double>(work_.working_bytes) * count;
  double const halves = work_.splits_parameters ? parameters : 0.0;
  co_await machine_.to_device(state + gradient + halves, {"host to device", "fetch", key});
  co_await machine_.update_on_device(elements, key);
  co_await machine_.to_host(state + parameters, {"device to host", "flush", key});
  chunk_buffers_.give();
  returned.set();
}

Task SimulatedSteps::end(SimulatedUpdate& update, std::int64_t key) {
  co_await parameters_.commit(key);
  update.ready[index(key)].set();
  if (!subgroup(key).resident) {
    co_await state_.commit(key);
  }
}

}  // namespace offstage::plan
