#include "model/vertical_pass.hpp"

#include <utility>

#include "base/error.hpp"
#include "base/instantiate.hpp"
#include "model/block.hpp"
#include "model/fates.hpp"
#include "model/head.hpp"

namespace offstage::model {
namespace {

template <class T>
std::vector<WaitingTensors::Memory> bytes_of(std::vector<std::span<T>> const& spans) {
  std::vector<WaitingTensors::Memory> bytes;
  for (auto const& span : spans) {
    bytes.push_back(std::as_writable_bytes(span));
  }
  return bytes;
}

template <class T>
std::vector<WaitingTensors::Memory> tables_of(Workspace<T> const& memory) {
  auto all = memory.tables;
  all.push_back(memory.tied_gradient);
  return bytes_of(all);
}

template <class T>
std::span<T> values(WaitingTensors::Memory memory) {
  return {reinterpret_cast<T*>(memory.data()), memory.size() / sizeof(T)};
}

}  // namespace

template <class T>
Vertical<T>::Vertical(LayerWork<T>& work, VerticalPlan const& plan)
    : work_{work},
      plan_{plan},
      stream_{work.stream()},
      gradients_{work.memory().gradients},
      tensors_{bytes_of(work.memory().tensors), plan.tensor_group(),
               tensor_bytes(work.dims(), sizeof(T)), tensor_bytes(work.dims(), sizeof(T)), stream_},
      tables_{tables_of(work.memory()),
              plan.table_group(tensor_bytes(work.dims(), sizeof(T)),
                               table_bytes(work.dims(), sizeof(T))),
              table_bytes(work.dims(), sizeof(T)),
              VerticalPlan::table_piece(tensor_bytes(work.dims(), sizeof(T)),
                                        table_bytes(work.dims(), sizeof(T))),
              stream_} {}

template <class T>
void Vertical<T>::set_store(state::ActivationStore& store) {
  store_ = &store;
  tensors_.set_store(store);
  tables_.set_store(store);
}

template <class T>
BlockActivations<T> Vertical<T>::with_input(int g, std::span<T> x) const {
  auto a = work_.memory().blocks.front();
  a.x = x;
  a.documents = work_.documents(g);
  return a;
}

template <class T>
void Vertical<T>::forward(std::span<data::TokenBatch const> batches, int rounds,
                          state::ParameterSource<T>& source) {
  count_ = static_cast<int>(batches.size());
  rounds_ = rounds;
  require(plan_.micro_batches > 0 && count_ <= plan_.micro_batches && count_ <= rounds_,
          "Transformer: more micro-batches than the vertical schedule was made for");
  for (int g = 0; g < count_; ++g) {
    work_.upload_tokens(batches[static_cast<std::size_t>(g)], g);
    work_.upload_targets(batches[static_cast<std::size_t>(g)], g);
  }
  tensors_.begin();
  tables_.begin();
  if (store_ != nullptr) {
    store_->open();
  }
  {
    state::HeldLayer<T> const held{source, embedding_layer, stream_};
    for (int i = 0; i < count_; ++i) {
      int const g = forward_order(0, i);
      work_.embed(held, g, values<T>(tensors_.make(input(0, g))));
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

template <class T>
void Vertical<T>::forward_block(int block, int i, state::HeldLayer<T> const& attention,
                                state::HeldLayer<T> const& mlp) {
  int const g = forward_order(block + 1, i);
  auto const a = with_input(g, values<T>(tensors_.use(input(block, g))));
  if (i + 1 < count_) {
    bring(input(block, forward_order(block + 1, i + 1)));
  }
  auto const out = values<T>(tensors_.make(input(block + 1, g)));
  auto const w = work_.mlp(block, mlp);
  work_.block().forward_attention(work_.attention(block, attention), {}, a);
  work_.block().forward_mlp(w, a);
  work_.block().forward_sum(w, a, out);
  tensors_.drop(input(block, g));
  tensors_.keep(input(block + 1, g));
}

template <class T>
std::vector<double> Vertical<T>::head(state::ParameterSource<T>& source,
                                      state::GradientSink<T>& sink, double loss_scale) {
  gradients_.begin();
  last_ = {};
  {
    HeldHead<T> const held{source, work_.head_layer(), plan_.tied, stream_};
    for (int g = 0; g < count_; ++g) {
      auto const gradient = run_head(held, g, loss_scale);
      if (g + 1 == rounds_) {
        last_ = gradient;
      } else {
        hand_on(work_.head_layer(), gradient, sink);
      }
    }
    for (int g = count_; g + 1 < rounds_; ++g) {
      hand_on(work_.head_layer(), {}, sink);
    }
  }
  return work_.losses(count_);
}

template <class T>
std::span<T> Vertical<T>::run_head(HeldHead<T> const& held, int g, double loss_scale) {
  auto activations = work_.memory().head;
  activations.x = values<T>(tensors_.use(input(plan_.blocks, g)));
  if (g + 1 < count_) {
    bring(input(plan_.blocks, g + 1));
  }
  auto const dx = values<T>(tensors_.make(gradient(g)));
  auto const table = plan_.tied ? values<T>(tables_.make(g)) : std::span<T>{};
  auto const to = gradients_.next(stream_);
  Head<T>{work_.dims(), stream_, activations, work_.head_rows(g)}.forward_backward(
      work_.head(held), {}, loss_scale,
      {.dx = dx,
       .dw = work_.head(to, table),
       .scratch = work_.memory().scratch.branch,
       .sum = work_.memory().head_sum});
  tensors_.drop(input(plan_.blocks, g));
  tensors_.keep(gradient(g));
  if (plan_.tied) {
    tables_.keep(g);
  }
  return to;
}

template <class T>
void Vertical<T>::backward(state::ParameterSource<T>& source, state::GradientSink<T>& sink) {
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

template <class T>
void Vertical<T>::backward_block(int block, int g, HeldBlock& held, state::GradientSink<T>& sink) {
  auto const hand_on_layer = [&](std::optional<state::HeldLayer<T>>& layer, int number,
                                 std::span<T> of_layer) {
    if (g + 1 == rounds_) {
      layer.reset();
    }
    hand_on(number, of_layer, sink);
  };
  if (g >= count_) {
    hand_on_layer(held.mlp, state::mlp_layer(block), {});
    hand_on_layer(held.attention, state::attention_layer(block), {});
    return;
  }
  auto const a = with_input(g, values<T>(tensors_.use(input(block, g))));
  auto const dx = values<T>(tensors_.change(gradient(g)));
  bring_after(block, g);
  auto const attention = work_.attention(block, *held.attention);
  auto const mlp = work_.mlp(block, *held.mlp);
  work_.block().recompute_attention(attention, a, recomputed_block);
  work_.block().recompute_mlp(mlp, a, recomputed_block);
  auto to = gradients_.next(stream_);
  work_.block().backward_mlp(mlp, a, dx, work_.mlp(block, to));
  hand_on_layer(held.mlp, state::mlp_layer(block), to);
  to = gradients_.next_of_attention(stream_);
  work_.block().backward_attention(attention, a, dx, work_.attention(block, to));
  tensors_.drop(input(block, g));
  tensors_.keep(gradient(g));
  hand_on_layer(held.attention, state::attention_layer(block), to);
}

template <class T>
void Vertical<T>::bring_after(int block, int g) {
  bool const same_block = g + 1 < count_;
  int const next = same_block ? g + 1 : 0;
  if (same_block || block > 0) {
    bring(input(same_block ? block : block - 1, next));
  }
  if (next != g) {
    bring(gradient(next));
  }
}

template <class T>
void Vertical<T>::backward_embedding(state::GradientSink<T>& sink) {
  std::optional<int> before;
  for (int round = 0; round < rounds_; ++round) {
    std::shared_ptr<device::Event> read;
    if (round < count_) {
      auto const dx = values<T>(tensors_.use(gradient(round)));
      auto const to = plan_.tied ? values<T>(tables_.change(round)) : gradients_.next(stream_);
      work_.backward_embedding(round, dx, to);
      tensors_.drop(gradient(round));
      read = work_.send(embedding_layer, to, sink);
    } else {
      read = sink.add(embedding_layer, {});
    }
    if (!plan_.tied && round < count_) {
      gradients_.given(std::move(read));
    } else if (!plan_.tied) {
      gradients_.given_none(std::move(read));
    } else if (before) {
      tables_.give(*before, std::move(read));
    }
    before = round < count_ ? std::optional{round} : std::nullopt;
  }
}

template <class T>
void Vertical<T>::hand_on(int layer, std::span<T> gradient, state::GradientSink<T>& sink) {
  if (gradient.empty()) {
    gradients_.given_none(sink.add(layer, {}));
  } else {
    gradients_.given(work_.send(layer, gradient, sink));
  }
}

OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_ALL_TYPES, Vertical)

}  // namespace offstage::model
