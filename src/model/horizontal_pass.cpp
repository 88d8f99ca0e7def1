#include "model/horizontal_pass.hpp"

#include <optional>
#include <utility>

#include "base/error.hpp"
#include "base/instantiate.hpp"

namespace offstage::model {

template <class T>
Horizontal<T>::Horizontal(LayerWork<T>& work, RunShape const& run)
    : work_{work},
      memory_{work.memory()},
      block_{work.block()},
      stream_{work.stream()},
      head_{work.dims(), stream_, memory_.head, work.head_rows(0)},
      traffic_{work.ring(), memory_.slabs, run.serial_copies, stream_},
      gradients_{memory_.gradients} {}

template <class T>
double Horizontal<T>::forward(data::TokenBatch const& batch, state::ParameterSource<T>& source,
                              bool keep, double loss_scale) {
  require(batch.targets.size() == batch.tokens.size(),
          "Transformer: a micro-batch needs as many targets as tokens");
  // This copy comes first, because a copy of pageable memory may wait for all work in the stream.
  work_.upload_targets(batch, 0);
  auto const residual = forward_blocks(batch, source, keep);
  forward_head(source, residual, keep, loss_scale);
  forwarded_ = keep;
  return work_.losses(1).front();
}

template <class T>
void Horizontal<T>::logits(data::TokenBatch const& batch, state::ParameterSource<T>& source,
                           std::int64_t first_row, std::span<Real<T>> out) {
  auto const rows = static_cast<std::int64_t>(out.size()) / work_.dims().V;
  require(static_cast<std::int64_t>(out.size()) == rows * work_.dims().V && first_row >= 0 &&
              first_row <= work_.dims().rows() - rows,
          "Transformer: logits asked for are not those of whole rows of the micro-batch");
  auto const residual = forward_blocks(batch, source, false);
  {
    HeldHead<T> const held{source, work_.head_layer(), work_.tied(), stream_};
    head_.logits(work_.head(held), residual, first_row, out);
  }
  stream_.synchronize();
}

template <class T>
Residual<T> Horizontal<T>::forward_blocks(data::TokenBatch const& batch,
                                          state::ParameterSource<T>& source, bool keep) {
  forwarded_ = false;
  work_.upload_tokens(batch, 0);
  traffic_.begin();
  // If nothing is kept, every block uses the first one's memory.
  auto const block = [&](int i) -> BlockActivations<T> const& { return activations(keep ? i : 0); };
  {
    state::HeldLayer<T> const held{source, embedding_layer, stream_};
    work_.embed(held, 0, block(0).x);
  }
  Residual<T> residual;
  for (int i = 0; i < work_.block_count(); ++i) {
    forward_block(i, source, residual, block(i), keep);
    residual = {block(i).mid, memory_.scratch.branch};
  }
  return residual;
}

template <class T>
void Horizontal<T>::forward_block(int block, state::ParameterSource<T>& source,
                                  Residual<T> const& residual, BlockActivations<T> const& a,
                                  bool keep) {
  auto const within_traffic = [&](BlockLayer layer, auto const& forward) {
    if (keep) {
      traffic_.before_forward(block, layer);
    }
    forward();
    if (keep) {
      traffic_.after_forward(block, layer);
    }
  };
  {
    state::HeldLayer<T> const held{source, state::attention_layer(block), stream_};
    within_traffic(BlockLayer::attention,
                   [&] { block_.forward_attention(work_.attention(block, held), residual, a); });
  }
  state::HeldLayer<T> const held{source, state::mlp_layer(block), stream_};
  within_traffic(BlockLayer::mlp, [&] { block_.forward_mlp(work_.mlp(block, held), a); });
}

template <class T>
void Horizontal<T>::forward_head(state::ParameterSource<T>& source, Residual<T> const& residual,
                                 bool keep, double loss_scale) {
  HeldHead<T> const held{source, work_.head_layer(), work_.tied(), stream_};
  if (!keep) {
    head_.forward(work_.head(held), residual);
    return;
  }
  gradients_.begin();
  head_gradient_ = gradients_.next(stream_);
  head_.forward_backward(work_.head(held), residual, loss_scale,
                         {.dx = memory_.dx,
                          .dw = work_.head(head_gradient_, memory_.tied_gradient),
                          .scratch = memory_.scratch.branch,
                          .sum = memory_.head_sum});
}

template <class T>
void Horizontal<T>::backward(state::ParameterSource<T>& source, state::GradientSink<T>& sink) {
  require(forwarded_, "Transformer: backward without a forward of the same micro-batch");
  forwarded_ = false;
  gradients_.given(work_.send(work_.head_layer(), head_gradient_, sink));
  for (int block = work_.block_count() - 1; block >= 0; --block) {
    backward_block(block, source, sink);
  }
  bool const tied = work_.tied();
  auto const gradient = tied ? memory_.tied_gradient : gradients_.next(stream_);
  work_.backward_embedding(0, memory_.dx, gradient);
  auto before = work_.send(embedding_layer, gradient, sink);
  tied ? gradients_.given_none(std::move(before)) : gradients_.given(std::move(before));
  stream_.synchronize();  // others may use the idle memory from now on
}

// The MLP's layer comes first. Attention's is acquired beside it only if the MLP needs attention's
// addition.
template <class T>
void Horizontal<T>::backward_block(int block, state::ParameterSource<T>& source,
                                   state::GradientSink<T>& sink) {
  auto const fates = work_.ring().fates(block);
  auto const& a = activations(block);
  std::optional<state::HeldLayer<T>> mlp;
  mlp.emplace(source, state::mlp_layer(block), stream_);
  std::optional<state::HeldLayer<T>> attention;
  auto const begin_attention = [&] {
    attention.emplace(source, state::attention_layer(block), stream_);
    traffic_.before_backward(block, BlockLayer::attention);
    block_.recompute_attention(work_.attention(block, *attention), a, fates);
  };
  if (mlp_needs_attention(fates)) {
    begin_attention();
  }
  traffic_.before_backward(block, BlockLayer::mlp);
  block_.recompute_mlp(work_.mlp(block, *mlp), a, fates);
  auto gradient = gradients_.next(stream_);
  block_.backward_mlp(work_.mlp(block, *mlp), a, memory_.dx, work_.mlp(block, gradient));
  traffic_.after_backward(block, BlockLayer::mlp);
  mlp.reset();
  gradients_.given(work_.send(state::mlp_layer(block), gradient, sink));
  if (!attention) {
    begin_attention();
  }
  gradient = gradients_.next_of_attention(stream_);
  block_.backward_attention(work_.attention(block, *attention), a, memory_.dx,
                            work_.attention(block, gradient));
  traffic_.after_backward(block, BlockLayer::attention);
  attention.reset();
  gradients_.given(work_.send(state::attention_layer(block), gradient, sink));
}

template <class T>
void Horizontal<T>::idle_block_backward(int block, state::ParameterSource<T>& source,
                                        state::GradientSink<T>& sink) {
  bool const together = mlp_needs_attention(work_.ring().fates(block));
  std::optional<state::HeldLayer<T>> attention;
  {
    state::HeldLayer<T> const mlp{source, state::mlp_layer(block), stream_};
    if (together) {
      attention.emplace(source, state::attention_layer(block), stream_);
    }
  }
  sink.add(state::mlp_layer(block), {});
  if (!together) {
    attention.emplace(source, state::attention_layer(block), stream_);
  }
  attention.reset();
  sink.add(state::attention_layer(block), {});
}

template <class T>
void Horizontal<T>::idle_forward(state::ParameterSource<T>& source) {
  forwarded_ = false;
  for (int layer = embedding_layer; layer < work_.head_layer(); ++layer) {
    state::HeldLayer<T> const held{source, layer, stream_};
  }
  { HeldHead<T> const held{source, work_.head_layer(), work_.tied(), stream_}; }
  stream_.synchronize();
}

template <class T>
void Horizontal<T>::idle_backward(state::ParameterSource<T>& source, state::GradientSink<T>& sink) {
  sink.add(work_.head_layer(), {});
  for (int block = work_.block_count() - 1; block >= 0; --block) {
    idle_block_backward(block, source, sink);
  }
  sink.add(embedding_layer, {});
  stream_.synchronize();
}

OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_ALL_TYPES, Horizontal)

}  // namespace offstage::model
