#include "plan/simulated_step.hpp"

#include <memory>
#include <utility>

namespace offstage::plan {

// The order of model::Vertical: micro-batches go to and fro in forward and ascend in backward.
// Between blocks their inputs and gradients wait, each a tensor with the number that it has there.

Task SimulatedSteps::layers(Marks& marks, StepUses& uses) {
  Round round{time_, work_.layers.size()};
  round.layers_left = std::ssize(work_.layers) * work_.rounds;
  double const began = time_.now();
  activations_.open();
  tensors_->begin();
  tables_->begin();
  co_await layers_forward(uses);
  if (before_ != nullptr) {
    co_await before_->done;
  }
  plan_update();
  gradients_.begin_pass();
  co_await layers_head(round, uses);
  marks.forward = time_.now() - began;
  if (schedule_.overlap) {
    begin(trips_, true, false);
  }
  co_await layers_backward(round, uses);
  co_await round.summed;
  marks.backward = time_.now() - began - marks.forward;
  machine_.record({"model", "forward"}, began, began + marks.forward);
  machine_.record({"model", "backward"}, began + marks.forward, time_.now());
}

Task SimulatedSteps::acquire(StepUses& uses, std::size_t use, std::size_t layer) {
  if (slots_ > 0) {
    co_await uses.uses[use].arrived;
  } else {
    co_await ready(work_.layers[layer], before_);
  }
}

Task SimulatedSteps::layers_forward(StepUses& uses) {
  int const count = static_cast<int>(work_.rounds);
  auto const turn = [&](int step, int i) {
    return (blocks() + 1 - step) % 2 == 0 ? i : count - 1 - i;
  };
  std::size_t use = 0;
  for (int step = 0; step <= blocks(); ++step) {
    // The embedding, or a block's layers together.
    std::size_t const end = use + (step == 0 ? 1 : work_.layers_per_block);
    double flops = 0.0;
    for (std::size_t layer = use; layer < end; ++layer) {
      co_await acquire(uses, layer, layer);
      flops += work_.layers[layer].forward;
    }
    for (int i = 0; i < count; ++i) {
      int const g = turn(step, i);
      if (step > 0) {
        co_await tensors_->use(tensor(step - 1, g));
        if (i + 1 < count && work_.vertical->ahead) {
          co_await tensors_->bring(tensor(step - 1, turn(step, i + 1)));
        }
      }
      co_await tensors_->make(tensor(step, g));
      co_await machine_.compute(flops);
      if (step > 0) {
        tensors_->drop(tensor(step - 1, g));
      }
      tensors_->keep(tensor(step, g));
    }
    for (; use < end; ++use) {
      uses.uses[use].ended.set();
    }
  }
}

Task SimulatedSteps::layers_head(Round& round, StepUses& uses) {
  std::size_t const head = work_.layers.size() - 1;
  // A tied head uses the embedding, too.
  for (std::size_t use = head; use < work_.forward.size(); ++use) {
    co_await acquire(uses, use, static_cast<std::size_t>(work_.forward[use]));
  }
  int const count = static_cast<int>(work_.rounds);
  for (int g = 0; g < count; ++g) {
    co_await tensors_->use(tensor(blocks(), g));
    if (g + 1 < count && work_.vertical->ahead) {
      co_await tensors_->bring(tensor(blocks(), g + 1));
    }
    co_await tensors_->make(tensor(blocks() + 1, g));
    if (work_.vertical->tied) {
      co_await tables_->make(g);
    }
    co_await buffers(head).take();
    co_await machine_.compute(work_.layers[head].forward + work_.layers[head].backward);
    tensors_->drop(tensor(blocks(), g));
    tensors_->keep(tensor(blocks() + 1, g));
    if (work_.vertical->tied) {
      tables_->keep(g);
    }
    if (!last(g)) {
      time_.start(gradient(round, {head, g}));
    }
  }
  for (std::size_t use = head; use < work_.forward.size(); ++use) {
    uses.uses[use].ended.set();
  }
}

/// A layer's last gradient is handed on when its parameters are released.
Task SimulatedSteps::layers_backward(Round& round, StepUses& uses) {
  int const count = static_cast<int>(work_.rounds);
  time_.start(gradient(round, {work_.layers.size() - 1, work_.rounds - 1}));
  std::size_t const per_block = work_.layers_per_block;
  std::size_t first = work_.forward.size();  // use of the block's highest layer
  for (int block = blocks() - 1; block >= 0; --block, first += per_block) {
    std::size_t const highest = static_cast<std::size_t>(block + 1) * per_block;
    for (std::size_t k = 0; k < per_block && slots_ > 0; ++k) {
      co_await uses.uses[first + k].arrived;
    }
    for (int g = 0; g < count; ++g) {
      co_await tensors_->use(tensor(block, g));
      co_await tensors_->change(tensor(blocks() + 1, g));
      bool const same_block = g + 1 < count;
      int const next = same_block ? g + 1 : 0;
      if (work_.vertical->ahead && (same_block || block > 0)) {
        co_await tensors_->bring(tensor(same_block ? block : block - 1, next));
      }
      if (work_.vertical->ahead && next != g) {
        co_await tensors_->bring(tensor(blocks() + 1, next));
      }
      for (std::size_t k = 0; k < per_block; ++k) {
        std::size_t const layer = highest - k;
        co_await layer_backward(layer);
        if (k + 1 == per_block) {
          tensors_->drop(tensor(block, g));
          tensors_->keep(tensor(blocks() + 1, g));
        }
        if (last(g)) {
          uses.uses[first + k].ended.set();
        }
        time_.start(gradient(round, {layer, g}));
      }
    }
  }
  co_await embedding_backward(round);
}

Task SimulatedSteps::embedding_backward(Round& round) {
  for (int g = 0; g < static_cast<int>(work_.rounds); ++g) {
    co_await tensors_->use(tensor(blocks() + 1, g));
    auto const read =
        work_.vertical->tied ? std::make_shared<Point>(time_) : std::shared_ptr<Point>{};
    if (read) {
      co_await tables_->change(g);
    } else {
      co_await buffers(0).take();
    }
    co_await machine_.compute(work_.layers.front().backward);
    tensors_->drop(tensor(blocks() + 1, g));
    if (read) {
      tables_->give(g, read);
    }
    time_.start(gradient(round, {0, g, read}));
  }
}

}  // namespace offstage::plan
