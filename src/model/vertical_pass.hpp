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

/// A step in which all micro-batches of this rank pass a block before the next block comes. The
/// block's two layers are held together. Every layer is acquired once in forward and once in
/// backward, however many micro-batches there are. Between blocks their inputs and the gradients of
/// these wait (WaitingTensors); backward computes the rest of a block again.
///
/// T:     as Transformer's.
/// Work:  does a layer's part of a micro-batch (Transformer's implementation).
/// Order: forward goes through the micro-batches to and fro, because the tensor that the layer
///        before made last is still there. Gradients go to the sink in ascending order of
///        micro-batches, the same order as in a horizontal schedule: in a block, those of the MLP
///        and of attention for each micro-batch.
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

  /// Runs from tokens to the head's input. `rounds` is the step's number of rounds; this rank has
  /// no micro-batch in those after its own.
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
      state::HeldLayer<T> const attention{source, state::attention_layer(block), stream_};
      state::HeldLayer<T> const mlp{source, state::mlp_layer(block), stream_};
      for (int i = 0; i < count_; ++i) {
        forward_block(block, i, attention, mlp);
      }
    }
  }

  /// Computes the loss of each micro-batch, and the gradients of the head. The gradients of all
  /// rounds but the last go to the sink. The last one waits for backward, because no gradient is
  /// complete until then.
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
        if (g + 1 == rounds_) {
          last_ = to;
        } else {
          hand_on(work_.head_layer(), to, sink);
        }
      }
      for (int g = count_; g + 1 < rounds_; ++g) {
        hand_on(work_.head_layer(), {}, sink);
      }
    }
    return work_.losses(count_);
  }

  void backward(state::ParameterSource<T>& source, state::GradientSink<T>& sink) {
    hand_on(work_.head_layer(), std::exchange(last_, {}), sink);
    for (int block = plan_.blocks - 1; block >= 0; --block) {
      HeldBlock held;
      held.mlp.emplace(source, state::mlp_layer(block), stream_);
      held.attention.emplace(source, state::attention_layer(block), stream_);
      for (int g = 0; g < rounds_; ++g) {
        backward_block(block, g, held, sink);
      }
    }
    backward_embedding(sink);
    stream_.synchronize();  // others may use the idle memory from now on
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
  /// The numbers of tensors. `block` = blocks stands for the last block's output.
  [[nodiscard]] int input(int block, int g) const { return block * plan_.micro_batches + g; }
  [[nodiscard]] int gradient(int g) const { return input(plan_.blocks + 1, g); }

  /// The i-th micro-batch in a layer. The head, after all blocks, takes them in ascending order.
  [[nodiscard]] int forward_order(int layer, int i) const {
    bool const ascending = (plan_.blocks + 1 - layer) % 2 == 0;
    return ascending ? i : count_ - 1 - i;
  }
  void bring(int tensor) {
    if (plan_.ahead) {
      tensors_.bring(tensor);
    }
  }

  /// A block whose layers are held. A layer is released before its last gradient is handed on,
  /// because its parameters may change then.
  struct HeldBlock {
    std::optional<state::HeldLayer<T>> mlp, attention;
  };

  void forward_block(int block, int i, state::HeldLayer<T> const& attention,
                     state::HeldLayer<T> const& mlp) {
    int const g = forward_order(block + 1, i);
    auto const x = values(tensors_.use(input(block, g)));
    if (i + 1 < count_) {
      bring(input(block, forward_order(block + 1, i + 1)));
    }
    work_.run_block(block, attention, mlp, x, values(tensors_.make(input(block + 1, g))));
    tensors_.drop(input(block, g));
    tensors_.keep(input(block + 1, g));
  }

  void backward_block(int block, int g, HeldBlock& held, state::GradientSink<T>& sink) {
    bool const last = g + 1 == rounds_;
    auto const hand_on_layer = [&](std::optional<state::HeldLayer<T>>& layer, int number,
                                   std::span<T> of_layer) {
      if (last) {
        layer.reset();
      }
      hand_on(number, of_layer, sink);
    };
    if (g >= count_) {
      hand_on_layer(held.mlp, state::mlp_layer(block), {});
      hand_on_layer(held.attention, state::attention_layer(block), {});
      return;
    }
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
    auto to = work_.gradients().next(stream_);
    work_.run_mlp_backward(block, *held.attention, *held.mlp, x, dx, to);
    hand_on_layer(held.mlp, state::mlp_layer(block), to);
    to = work_.gradients().next(stream_);
    work_.run_attention_backward(block, *held.attention, x, dx, to);
    tensors_.drop(input(block, g));
    tensors_.keep(gradient(g));
    hand_on_layer(held.attention, state::attention_layer(block), to);
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
      if (!plan_.tied && round < count_) {
        work_.gradients().given(std::move(read));
      } else if (!plan_.tied) {
        work_.gradients().given_none(std::move(read));
      } else if (before) {
        tables_.give(*before, std::move(read));
      }
      before = round < count_ ? std::optional{round} : std::nullopt;
    }
  }

  /// Hands a gradient on; it is empty if this rank has no micro-batch in the round.
  void hand_on(int layer, std::span<T> gradient, state::GradientSink<T>& sink) {
    if (gradient.empty()) {
      work_.gradients().given_none(sink.add(layer, {}));
    } else {
      work_.gradients().given(work_.send(layer, gradient, sink));
    }
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
  std::span<T> last_;  ///< the head's gradient of the last round, until backward; empty: none
};

}  // namespace offstage::model
