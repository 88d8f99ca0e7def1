#include "model/layer_work.hpp"

#include <numeric>

#include "base/error.hpp"
#include "base/instantiate.hpp"
#include "kernels/tokens/cross_entropy.hpp"
#include "kernels/tokens/embedding.hpp"
#include "model/slab.hpp"
#include "model/vertical_plan.hpp"

namespace offstage::model {

static_assert(kernels::ignored_target == data::ignored_target,
              "targets go to the kernel as they are");

template <class T>
LayerWork<T>::LayerWork(state::ModelShape const& shape, RunShape const& run, device::Device& device,
                        device::Stream& stream)
    : dims_{dims_of(shape, run, device.kind())},
      tied_{shape.tied_head},
      ring_{ring_of(shape, run)},
      layers_{state::layers_of(shape)},
      stream_{stream},
      memory_{dims_,
              workspace_demand(layers_, tied_, run.attention_buffer, ring_,
                               vertical_plan(shape, run).demand()),
              device},
      tokens_(memory_.tokens.size() / static_cast<std::size_t>(dims_.rows())),
      targets_(tokens_.size()),
      documents_(tokens_.size()),
      losses_(memory_.tokens.size()),
      block_{dims_, stream_, memory_.rope, memory_.scratch} {
  memory_.fill_rope_tables(shape, stream_);
}

template <class T>
void LayerWork<T>::upload_tokens(data::TokenBatch const& batch, int g) {
  require(batch.batch == dims_.B && batch.sequence == dims_.T,
          "Transformer: the micro-batch is not of the run's shape");
  upload(batch.tokens, 0, tokens_[static_cast<std::size_t>(g)], rows_of(memory_.tokens, g));
  require(dims_.documents_apart || batch.begins.empty(),
          "Transformer: a micro-batch with documents, in a run that does not hold them apart");
  if (dims_.documents_apart) {
    upload_documents(batch, g);
  }
}

template <class T>
void LayerWork<T>::upload_documents(data::TokenBatch const& batch, int g) {
  auto& [begins, ends, position_of] = documents_[static_cast<std::size_t>(g)];
  auto const rows = static_cast<std::size_t>(dims_.rows());
  begins = batch.begins;
  begins.resize(batch.begins.empty() ? rows : begins.size());
  require(begins.size() == rows, "Transformer: not every token has the begin of its document");
  ends.resize(rows);
  position_of.resize(rows);
  auto const length = static_cast<std::size_t>(dims_.T);
  for (std::size_t row = rows; row-- > 0;) {
    auto const t = static_cast<std::int32_t>(row % length);
    bool const is_first = begins[row] == t;
    require(is_first || (t > 0 && begins[row] == begins[row - 1]),
            "Transformer: documents of a micro-batch do not lie one behind the other");
    bool const is_last = (row + 1) % length == 0 || begins[row + 1] == t + 1;
    ends[row] = is_last ? t + 1 : ends[row + 1];
    position_of[row] = t - begins[row];
  }
  upload(begins, rows_of(memory_.documents.begins, g));
  upload(ends, rows_of(memory_.documents.ends, g));
  if (dims_.has_positions()) {
    upload(position_of, rows_of(memory_.documents.position_of, g));
  }
}

template <class T>
void LayerWork<T>::upload_targets(data::TokenBatch const& batch, int g) {
  upload(batch.targets, data::ignored_target, targets_[static_cast<std::size_t>(g)],
         head_rows(g).targets);
}

template <class T>
void LayerWork<T>::upload(std::vector<std::int32_t> const& ids, std::int32_t least,
                          std::vector<std::int32_t>& staged, std::span<std::int32_t> target) {
  require(ids.size() == target.size(), "Transformer: a micro-batch needs batch x sequence ids");
  // Kernels of a GPU cannot report an error.
  require(std::ranges::all_of(ids, [&](std::int32_t id) { return id >= least && id < dims_.V; }),
          "Transformer: an id of the micro-batch is outside the vocabulary");
  staged = ids;
  upload(staged, target);
}

template <class T>
void LayerWork<T>::upload(std::vector<std::int32_t> const& staged, std::span<std::int32_t> target) {
  stream_.copy(target.data(), staged.data(), static_cast<Bytes>(target.size_bytes()),
               device::Copy::host_to_device);
}

template <class T>
void LayerWork<T>::embed(state::HeldLayer<T> const& held, int g, std::span<T> x) const {
  auto const w = view(embedding_layer, held).embedding();
  kernels::embedding_forward<T>(stream_,
                                {.tokens = rows_of(memory_.tokens, g),
                                 .table = w.table,
                                 .out = x,
                                 .rows = dims_.rows(),
                                 .vocab = dims_.V,
                                 .width = dims_.C,
                                 .positions = first_positions(w.positions),
                                 .sequence = dims_.T,
                                 .position_of = rows_of(memory_.documents.position_of, g)});
}

template <class T>
void LayerWork<T>::backward_embedding(int g, std::span<T> dx, std::span<T> gradient) const {
  auto const [d_table, d_positions] = embedding(gradient);
  if (!tied_) {
    zero(stream_, d_table);
  }
  zero(stream_, d_positions);
  kernels::embedding_backward<T>(stream_,
                                 {.tokens = rows_of(memory_.tokens, g),
                                  .d_out = dx,
                                  .d_table = d_table,
                                  .rows = dims_.rows(),
                                  .vocab = dims_.V,
                                  .width = dims_.C,
                                  .d_positions = first_positions(d_positions),
                                  .sequence = dims_.T,
                                  .position_of = rows_of(memory_.documents.position_of, g)});
}

template <class T>
std::shared_ptr<device::Event> LayerWork<T>::send(int layer, std::span<T> gradient,
                                                  state::GradientSink<T>& sink) const {
  auto const elements = static_cast<std::size_t>(layout(layer).elements);
  auto const padded = gradient.first(static_cast<std::size_t>(layout(layer).padded_elements()));
  zero(stream_, padded.subspan(elements));
  return sink.add(layer, padded);
}

template <class T>
std::vector<double> LayerWork<T>::losses(int count) {
  auto const rows = static_cast<std::size_t>(dims_.rows());
  auto const loss = memory_.head_rows.loss.first(static_cast<std::size_t>(count) * rows);
  stream_.copy(losses_.data(), loss.data(), static_cast<Bytes>(loss.size_bytes()),
               device::Copy::device_to_host);
  stream_.synchronize();
  std::vector<double> means;
  for (int g = 0; g < count; ++g) {
    auto const of = rows_of(std::span{losses_}, g);
    means.push_back(std::accumulate(of.begin(), of.end(), 0.0) / static_cast<double>(rows));
  }
  return means;
}

OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_ALL_TYPES, LayerWork)

}  // namespace offstage::model
