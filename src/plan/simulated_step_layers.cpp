#include "plan/simulated_step.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace offstage::plan {

// ---- Parameters

void SimulatedSteps::expect(StepUses& step) {
  layer_slots_.forget();
  std::vector<int> layers;
  for (std::int64_t round = 0; round < (work_.vertical ? 1 : work_.rounds); ++round) {
    layers.insert(layers.end(), work_.forward.begin(), work_.forward.end());
    layers.insert(layers.end(), work_.backward.begin(), work_.backward.end());
  }
  std::vector<std::size_t> fills;
  for (int const layer : layers) {
    if (schedule_.home == ParameterHome::device && !schedule_.gathers_once) {
      layer_slots_.forget();  // several ranks gather a layer for each of its uses
    }
    auto slot = slots_ > 0 ? layer_slots_.add(layer) : LayerSlots::Use{.layer = layer};
    if (slot.fill) {
      fills.push_back(step.uses.size());
    }
    step.uses.push_back({.slot = slot, .arrived = Point{time_}, .ended = Point{time_}});
  }
  if (slots_ == 0) {
    return;
  }
  // Uses count over all steps; here they count from this step's first use.
  auto const before =
      static_cast<std::int64_t>(step_uses_.size() - 1) * static_cast<std::int64_t>(layers.size());
  for (LayerUse& use : step.uses) {
    use.slot.after -= before;
  }
  if (schedule_.home == ParameterHome::storage) {
    for (std::size_t i = 0; i < fills.size(); ++i) {
      LayerUse& use = step.uses[fills[i]];
      auto const& layer = work_.layers[static_cast<std::size_t>(use.slot.layer)];
      auto const [from, to] = keys(layer);
      bool const down = i + 1 < fills.size() && step.uses[fills[i + 1]].slot.layer < use.slot.layer;
      for (std::int64_t n = 0; n < to - from; ++n) {
        std::int64_t const key = down ? to - 1 - n : from + n;
        ExtentPiece piece{.key = key, .elements = common(layer, key), .ends = true};
        LayerUse* const earlier = i > 0 ? &step.uses[fills[i - 1]] : nullptr;
        bool const is_shared = n == 0 && earlier != nullptr && !earlier->pieces.empty() &&
                               earlier->pieces.back().key == key;
        if (is_shared) {
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

Task SimulatedSteps::read_ahead(std::int64_t key, Point& arrived) {
  SimulatedUpdate* const update = before_;
  co_await readers_ahead_.take();
  if (update != nullptr) {
    co_await update->ready[index(key)];
  }
  co_await parameters_.fetch(key);
  arrived.set();
}

Task SimulatedSteps::bring(StepUses& step) {
  SimulatedUpdate* const update = before_;
  std::vector<char> on_node(work_.layers.size());
  for (LayerUse& use : step.uses) {
    if (use.slot.fill) {
      if (use.slot.after >= 0) {
        co_await step.uses[index(use.slot.after)].ended;
      }
      double const began = time_.now();
      bool const streamed = schedule_.home != ParameterHome::device;
      LayerWork const& layer = work_.layers[static_cast<std::size_t>(use.slot.layer)];
      double const bytes = static_cast<double>(work_.working_bytes);
      double const mine = bytes * static_cast<double>(layer.count);
      for (ExtentPiece const& piece : use.pieces) {
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
      if (schedule_.home == ParameterHome::node) {
        bool const is_there = std::exchange(on_node[index(use.slot.layer)], 1) != 0;
        co_await machine_.between_ranks(is_there ? 0.0 : mine * (work_.nodes - 1));
        co_await machine_.to_device(bytes * static_cast<double>(layer.elements));
      } else if (gathers() && !schedule_.direct) {
        double const whole = bytes * static_cast<double>(layer.elements);
        co_await machine_.to_host(streamed ? 0.0 : mine);
        co_await machine_.between_ranks(whole - mine);
        co_await machine_.to_device(whole);
      } else {
        bool const whole = gathers() || schedule_.home == ParameterHome::host;
        co_await machine_.to_device(streamed && whole ? mine : 0.0);
        co_await machine_.between_ranks(bytes * static_cast<double>(layer.elements) - mine);
      }
      machine_.record(
          {streamed ? "parameters ahead" : "parameters from ranks", "bring", use.slot.layer}, began,
          time_.now());
    }
    use.arrived.set();
  }
}

Task SimulatedSteps::ready(LayerWork const& layer, SimulatedUpdate* update) {
  if (update != nullptr) {
    auto const [from, to] = keys(layer);
    for (std::int64_t key = from; key < to; ++key) {
      co_await update->ready[index(key)];
    }
  }
}

// ---- Activations

/// The leaving layer of the block that had the same slab before. `layer` is the lowest of its
/// block.
std::optional<std::size_t> SimulatedSteps::slab_before(std::size_t layer) const {
  auto const away = static_cast<std::size_t>(schedule_.slabs) * work_.layers_per_block;
  std::size_t const last = layer + work_.layers_per_block - 1;
  bool const has = last >= away && work_.layers[last - away].leaving > 0;
  return has ? std::optional{last - away} : std::nullopt;
}

/// The block of a layer's activations. Blocks come after the embedding.
std::int64_t SimulatedSteps::activation_block(std::size_t layer) const {
  return static_cast<std::int64_t>((layer - 1) / work_.layers_per_block);
}

// ---- Gradients

double SimulatedSteps::blocks_ended(std::int64_t round) const {
  if (work_.sum_block == 0) {
    return 0.0;
  }
  // The first block's sum begins the total.
  auto const ended = [&](std::int64_t added) {
    bool const all = added == work_.micro_batches;
    return std::max<std::int64_t>(
        0, (all ? ceil_div(added, work_.sum_block) : added / work_.sum_block) - 1);
  };
  std::int64_t const before = round * work_.ranks;
  return static_cast<double>(ended(before + active(round)) - ended(before));
}

Tokens& SimulatedSteps::buffers(std::size_t layer) {
  bool const in_block = layer > 0 && layer < work_.layers.size() - 1;
  bool const is_attention = in_block && (layer - 1) % work_.layers_per_block == 0;
  return is_attention && work_.attention_buffer ? attention_buffer_ : gradient_buffers_;
}

Task SimulatedSteps::layer_backward(std::size_t layer) {
  LayerWork const& work = work_.layers[layer];
  if (work.recompute > 0.0) {
    co_await machine_.compute(work.recompute);
  }
  co_await buffers(layer).take();
  co_await machine_.compute(work.backward);
}

// The device's additions count for nothing beside its products.
void SimulatedSteps::stays_whole(Round& round, Handed const& handed) {
  if (handed.read) {
    handed.read->set();
  } else {
    buffers(handed.layer).give();
  }
  --round.layers_left;
  end_of_gradient(round);
}

Task SimulatedSteps::gradient(Round& round, Handed handed) {
  LayerWork const& work = work_.layers[handed.layer];
  std::int64_t const number = handed.round;
  if (!exchanges(number)) {
    stays_whole(round, handed);
    co_return;
  }
  bool const first = number < work_.row;
  auto const element = static_cast<double>(work_.exchanged_bytes());
  auto const sum = static_cast<double>(work_.gradient_bytes);
  auto const [from, to] = keys(work);
  bool const staged = gathers() && !schedule_.direct;
  auto const sources = static_cast<double>(active(number / work_.row * work_.row));
  double leaving = staged ? element * static_cast<double>(work.elements) : 0.0;
  double summed = 0.0, taken = 0.0, brought = 0.0;
  for (std::int64_t key = from; key < to; ++key) {
    auto const elements = static_cast<double>(common(work, key));
    auto const* const place = in_turn(work, key);
    bool const on_device = (held_[index(key)] != 0 || place != nullptr) && !staged;
    while (place != nullptr && place->after >= 0 && sums_left_ > place->after) {
      co_await sums_leave_;
    }
    if (on_device) {
      taken += last(number) && stays_[index(key)] == 0 ? sum * elements : 0.0;
      continue;
    }
    leaving += staged ? 0.0 : element * elements * sources;
    summed += elements * (sources * (element + 2.0 * sum) - (first ? sum : 0.0) +
                          3.0 * sum * blocks_ended(number));
    summed += last(number) ? elements * sum : 0.0;
    brought += last(number) && stays_[index(key)] != 0 ? sum * elements : 0.0;
  }
  double const exchanged =
      element * static_cast<double>(work.count) * std::min(sources, work_.ranks - 1.0);
  co_await gradient_staging_.take();
  co_await machine_.between_ranks(staged ? 0.0 : exchanged);
  co_await machine_.to_host(leaving, leaving > 0.0 ? Label{"gradients to host", "copy",
                                                           static_cast<std::int64_t>(handed.layer)}
                                                   : Label{});
  if (handed.read) {
    handed.read->set();
  } else {
    buffers(handed.layer).give();
  }
  co_await machine_.between_ranks(staged ? exchanged : 0.0);
  co_await machine_.sum(summed);
  co_await machine_.to_host(taken);
  if (last(number)) {
    sums_left_ = std::min(sums_left_, work.begin);
    sums_leave_.tell();
  }
  co_await machine_.to_device(brought);
  gradient_staging_.give();
  // In a vertical schedule the rounds of a layer are summed before any extent is opened.
  if (!work_.vertical || last(number)) {
    for (std::int64_t key = to - 1; key >= from; --key) {
      if (subgroup(key).begin >= work.begin) {  // its lowest layer: it is complete
        ++round.writes_left;
        time_.start(spill(round, key, work_.vertical || first, last(number)));
      }
    }
  }
  --round.layers_left;
  end_of_gradient(round);
}

Task SimulatedSteps::spill(Round& round, std::int64_t key, bool is_new, bool is_last) {
  // Sums on the device are in no extent until they leave.
  bool const on_device = held_[index(key)] != 0 && (!gathers() || schedule_.direct);
  bool const stays = stays_[index(key)] != 0;
  bool const leaves = on_device && is_last && !stays;
  if (!on_device || leaves) {
    if (is_new || leaves) {
      co_await gradients_.create(key);
    } else {
      co_await gradients_.fetch(key);
    }
    if (is_last && stays) {
      gradients_.discard(key);
    } else {
      co_await gradients_.commit(key);
    }
  }
  if (!stays && is_last && schedule_.flush_fp32) {
    co_await flushed_.create(key);
    co_await flushed_.commit(key);
  }
  if (is_last && schedule_.overlap) {
    if (before_->waits_for_norm[index(key)] == 0) {
      before_->order.bring_forward(key);
    }
    before_->complete[index(key)].set();
  }
  --round.writes_left;
  end_of_gradient(round);
}

void SimulatedSteps::end_of_gradient(Round& round) {
  if (round.layers_left == 0 && round.writes_left == 0) {
    round.summed.set();
  }
}

}  // namespace offstage::plan
