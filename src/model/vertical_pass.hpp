#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "data/batch.hpp"
#include "device/device.hpp"
#include "model/block.hpp"
#include "model/fates.hpp"
#include "model/gradient_buffers.hpp"
#include "model/vertical_plan.hpp"
#include "model/waiting_tensors.hpp"
#include "model/workspace.hpp"
#include "state/exchange.hpp"

namespace offstage::model {

/// Order of a step in which all micro-batches of this rank pass a layer before the next layer
/// comes. Every layer is acquired once in forward and once in backward, however many micro-batches
/// there are. Between layers blocks' inputs and their gradients wait (WaitingTensors); backward
/// computes all else of a block again.
///
/// T:     as Transformer's. Work: does a layer's part of a micro-batch (Transformer's
/// implementation). Order: forward goes through the micro-batches to and fro, as what the layer
/// before has made last is there still;
///        gradients of a layer go to the sink in ascending order, the same as those of a horizontal
///        schedule.
template <class T, class Work>
class Vertical {
 public:
  Vertical(Work& work, VerticalPlan const& plan, Workspace<T> const& memory,
           std::int64_t table_elements, device::Stream& stream)
      : work_{work},
        plan_{plan},
        stream_{stream},
        tensors_{bytes_of(memory.tensors),
                 memory.tensors.empty() ? 0 : std::ssize(std::as_bytes(memory.tensors.front())),
                 plan.tensors(), 0, stream},
        tables_{tables_of(memory), table_elements * static_cast<Bytes>(sizeof(T)), plan.tables(),
                plan.tensors(), stream} {}

  void set_store(state::ActivationStore& store) {
    store_ = &store;
    tensors_.set_store(store);
    tables_.set_store(store);
  }

  /// From tokens to what the head takes. `rounds`: of the step; this rank has no micro-batch in
  /// those after its own.
  void forward(std::span<data::TokenBatch const> batches, int rounds,
               state::ParameterSource<T>& source) {
    count_ = static_cast<int>(batches.size());
    rounds_ = rounds;
    require(plan_.micro_batches > 0 && count_ <= plan_.micro_batches && count_ <= rounds_,
            "Transformer: more micro-batches than the vertical schedule was made for");
    for (int g = 0; g < count_; ++g) {
      work_.upload_ids(batches[static_cast<std::size_t>(g)], g);
    }
    tensors_.begin();
    tables_.begin();
    if (store_ != nullptr) {
      store_->open();
    }
    {
      state::HeldLayer<T> const held{source, 0, stream_};
      for (int i = 0; i < count_; ++i) {
        int const g = forward_order(0, i);
        work_.embed(held, g, values(tensors_.make(input(0, g))));
        tensors_.keep(input(0, g));
      }
    }
    for (int block = 0; block < plan_.blocks; ++block) {
      state::HeldLayer<T> const held{source, block + 1, stream_};
      for (int i = 0; i < count_; ++i) {
        forward_block(block, i, held);
      }
    }
  }

  /// Loss of each micro-batch, and the gradients of the head, of which all rounds' but the last go
  /// to the sink. The last one waits for backward: until then no gradient is complete.
  std::vector<double> head(state::ParameterSource<T>& source, state::GradientSink<T>& sink,
                           double loss_scale) {
    work_.gradients().begin();
    last_ = {};
    {
      typename Work::Head const held{source, work_.head_layer(), plan_.tied, stream_};
      for (int g = 0; g < count_; ++g) {
        auto const x = values(tensors_.use(input(plan_.blocks, g)));
        if (g + 1 < count_) {
          bring(input(plan_.blocks, g + 1));
        }
        auto const dx = values(tensors_.make(gradient(g)));
        auto const table = plan_.tied ? values(tables_.make(g)) : std::span<T>{};
        auto const to = work_.gradients().next(stream_);
        work_.run_head(held, g, x, loss_scale, dx, to, table);
        tensors_.drop(input(plan_.blocks, g));
        tensors_.keep(gradient(g));
        if (plan_.tied) {
          tables_.keep(g);
        }
        hand_on(work_.head_layer(), g, to, sink);
      }
    }
    return work_.losses(count_);
  }

  void backward(state::ParameterSource<T>& source, state::GradientSink<T>& sink) {
    hand_on_last(work_.head_layer(), sink);
    for (int block = plan_.blocks - 1; block >= 0; --block) {
      {
        state::HeldLayer<T> const held{source, block + 1, stream_};
        for (int g = 0; g < count_; ++g) {
          backward_block(block, g, held, sink);
        }
      }
      hand_on_last(block + 1, sink);
    }
    backward_embedding(sink);
    stream_.synchronize();  // others may use the idle memory from here on
  }

 private:
  [[nodiscard]] static std::vector<WaitingTensors::Memory> bytes_of(
      std::vector<std::span<T>> const& spans) {
    std::vector<WaitingTensors::Memory> bytes;
    for (auto const& span : spans) {
      bytes.push_back(std::as_writable_bytes(span));
    }
    return bytes;
  }
  [[nodiscard]] static std::vector<WaitingTensors::Memory> tables_of(Workspace<T> const& memory) {
    auto all = memory.tables;
    all.push_back(memory.tied_gradient);
    return bytes_of(all);
  }
  [[nodiscard]] static std::span<T> values(WaitingTensors::Memory memory) {
    return {reinterpret_cast<T*>(memory.data()), memory.size() / sizeof(T)};
  }
  /// Numbers of tensors. `block` = blocks: the last one's output.
  [[nodiscard]] int input(int block, int g) const { return block * plan_.micro_batches + g; }
  [[nodiscard]] int gradient(int g) const { return input(plan_.blocks + 1, g); }

  /// Micro-batch that is i-th in a layer; the head's, after all blocks, are ascending.
  [[nodiscard]] int forward_order(int layer, int i) const {
    bool const ascending = (plan_.blocks + 1 - layer) % 2 == 0;
    return ascending ? i : count_ - 1 - i;
  }
  void bring(int tensor) {
    if (plan_.ahead) {
      tensors_.bring(tensor);
    }
  }

  void forward_block(int block, int i, state::HeldLayer<T> const& held) {
    int const g = forward_order(block + 1, i);
    auto const x = values(tensors_.use(input(block, g)));
    if (i + 1 < count_) {
      bring(input(block, forward_order(block + 1, i + 1)));
    }
    work_.run_block(block, held, x, values(tensors_.make(input(block + 1, g))));
    tensors_.drop(input(block, g));
    tensors_.keep(input(block + 1, g));
  }

  void backward_block(int block, int g, state::HeldLayer<T> const& held,
                      state::GradientSink<T>& sink) {
    auto const x = values(tensors_.use(input(block, g)));
    auto const dx = values(tensors_.change(gradient(g)));
    bool const same_block = g + 1 < count_;
    int const next = same_block ? g + 1 : 0;
    if (same_block || block > 0) {
      bring(input(same_block ? block : block - 1, next));
    }
    if (next != g) {
      bring(gradient(next));
    }
    auto const to = work_.gradients().next(stream_);
    work_.run_block_backward(block, held, x, dx, to);
    tensors_.drop(input(block, g));
    tensors_.keep(gradient(g));
    hand_on(block + 1, g, to, sink);
  }

  void backward_embedding(state::GradientSink<T>& sink) {
    std::optional<int> before;
    for (int round = 0; round < rounds_; ++round) {
      std::shared_ptr<device::Event> read;
      if (round < count_) {
        auto const dx = values(tensors_.use(gradient(round)));
        auto const to =
            plan_.tied ? values(tables_.change(round)) : work_.gradients().next(stream_);
        work_.run_embedding_backward(round, dx, to);
        tensors_.drop(gradient(round));
        read = work_.send(0, to, sink);
      } else {
        read = sink.add(0, {});
      }
      if (!plan_.tied) {
        work_.gradients().given(std::move(read));
      } else if (before) {
        tables_.give(*before, std::move(read));
      }
      before = round < count_ ? std::optional{round} : std::nullopt;
    }
  }

  /// A layer's gradient of micro-batch g goes to the sink, or waits until its layer is released if
  /// it is the last round's.
  void hand_on(int layer, int g, std::span<T> gradient, state::GradientSink<T>& sink) {
    if (g + 1 == rounds_) {
      last_ = gradient;
    } else {
      work_.gradients().given(work_.send(layer, gradient, sink));
    }
  }
  /// Last round's, empty where this rank has none: the layer's gradient is complete, and its
  /// parameters may change. What an empty one returns is the point of this rank's last gradient,
  /// for which the other buffer then waits in vain: it is late, not wrong.
  void hand_on_last(int layer, state::GradientSink<T>& sink) {
    auto const gradient = std::exchange(last_, {});
    work_.gradients().given(gradient.empty() ? sink.add(layer, {})
                                             : work_.send(layer, gradient, sink));
  }

  Work& work_;
  VerticalPlan plan_;
  device::Stream& stream_;
  state::ActivationStore* store_{};
  WaitingTensors tensors_;  ///< (B, T, C) each
  WaitingTensors
      tables_;     ///< the tied head's gradients of the table, until the embedding adds its part
  int count_ = 0;  ///< micro-batches of this rank in this step
  int rounds_ = 0;
  std::span<T> last_;  ///< the last round's gradient of the layer at hand
};

}  // namespace offstage::model
