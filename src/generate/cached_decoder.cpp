#include "generate/cached_decoder.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

#include "base/error.hpp"
#include "base/instantiate.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/attention/cached.hpp"
#include "kernels/pointwise/rope.hpp"
#include "kernels/tokens/embedding.hpp"
#include "model/activation.hpp"
#include "model/linear.hpp"
#include "model/query_key_norm.hpp"
#include "model/rope_scaling.hpp"

namespace offstage::generate {
namespace {

// Shorter sequences are not worth buffers of their own.
constexpr std::int64_t least_room = 64;

template <class U>
std::span<U> rows_of(std::span<U> all, std::int64_t first, std::int64_t rows, std::int64_t width) {
  return all.subspan(static_cast<std::size_t>(first * width),
                     static_cast<std::size_t>(rows * width));
}

std::size_t elements(std::int64_t rows, std::int64_t width) {
  return static_cast<std::size_t>(rows * width);
}

}  // namespace

template <class T>
CachedDecoder<T>::CachedDecoder(state::ModelShape const& shape,
                                state::ParameterSource<T>& parameters, device::Stream& stream)
    : shape_{shape}, layouts_{state::layers_of(shape)}, parameters_{parameters}, stream_{stream} {}

template <class T>
void CachedDecoder<T>::shorten(std::int64_t count) {
  require(count >= 0 && count <= size_, "CachedDecoder: it has no so many tokens");
  size_ = count;
}

template <class T>
std::span<T> CachedDecoder<T>::kept(int block, bool values) const {
  auto const width = shape_.kv_heads * shape_.head_dim();
  return rows_of(cache_.template as<T>(), (2 * block + (values ? 1 : 0)) * room_, room_, width);
}

template <class T>
void CachedDecoder<T>::make_room(std::int64_t tokens) {
  if (tokens <= room_) {
    return;
  }
  auto const doubled = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(tokens)));
  auto const room = std::min(std::max(doubled, least_room), shape_.max_sequence);
  auto const width = shape_.kv_heads * shape_.head_dim();
  memory::HugeBuffer larger{2 * shape_.layers * room * width * static_cast<Bytes>(sizeof(T))};
  for (std::int64_t part = 0; part < 2 * shape_.layers && size_ > 0; ++part) {
    auto const from = rows_of(cache_.template as<T>(), part * room_, size_, width);
    std::ranges::copy(from, rows_of(larger.template as<T>(), part * room, size_, width).begin());
  }
  cache_ = std::move(larger);
  room_ = room;
  if (shape_.family == state::Family::gpt2) {
    return;
  }
  std::vector<double> cosine(elements(room, shape_.head_dim() / 2));
  std::vector<double> sine(cosine.size());
  kernels::rope_tables(room, shape_.head_dim(), shape_.rope_theta, cosine, sine,
                       model::scaling_of(shape_));
  cosine_.assign(cosine.begin(), cosine.end());
  sine_.assign(sine.begin(), sine.end());
}

template <class T>
void CachedDecoder<T>::make_rows(std::int64_t rows) {
  model::Dims const dims = model::dims_of(shape_, {.batch = 1, .sequence = rows});
  rows_.x.resize(elements(rows, dims.C));
  rows_.normed.resize(elements(rows, dims.C));
  rows_.qkv.resize(elements(rows, dims.qkv()));
  model::QueryKeyNorm const norm{dims};
  rows_.heads.resize(norm.there() ? elements(rows, dims.qkv()) : 0);
  rows_.query_inverse.resize(elements(norm.query_rows(), 1));
  rows_.key_inverse.resize(elements(norm.key_rows(), 1));
  rows_.attention.resize(elements(rows, dims.H * dims.D));
  rows_.mid.resize(elements(rows, dims.C));
  rows_.up.resize(elements(rows, dims.up()));
  rows_.hidden.resize(elements(rows, dims.F));
  rows_.branch.resize(elements(rows, dims.C));
  rows_.mean.resize(shape_.family == state::Family::gpt2 ? elements(rows, 1) : 0);
  rows_.inverse.resize(elements(rows, 1));
  rows_.log_sum_exp.resize(elements(rows, dims.H));
}

template <class T>
model::NormStatistics<T> CachedDecoder<T>::statistics() {
  return {.mean = rows_.mean, .inverse = rows_.inverse};
}

template <class T>
void CachedDecoder<T>::embed(std::span<std::int32_t const> tokens) {
  auto const rows = std::ssize(tokens);
  model::Dims const dims = model::dims_of(shape_, {.batch = 1, .sequence = rows});
  auto const w =
      model::LayerView<T const>{dims, layouts_.front(), parameters_.acquire(0)}.embedding();
  auto const positions =
      w.positions.empty() ? w.positions : rows_of(w.positions, size_, rows, dims.C);
  kernels::embedding_forward<T>(stream_, {.tokens = tokens,
                                          .table = w.table,
                                          .out = rows_.x,
                                          .rows = rows,
                                          .vocab = dims.V,
                                          .width = dims.C,
                                          .positions = positions,
                                          .sequence = rows});
  parameters_.release(0, nullptr);
}

template <class T>
void CachedDecoder<T>::make_heads(model::Dims const& dims,
                                  model::AttentionTensors<T const> const& w) {
  if (model::QueryKeyNorm const norm{dims}; norm.there()) {
    norm.forward<T>(stream_, rows_.qkv, w, rows_.heads,
                    {.query = rows_.query_inverse, .key = rows_.key_inverse});
  }
  if (cosine_.empty()) {
    return;
  }
  auto const at = [&](std::vector<Real<T>> const& table) {
    return rows_of(std::span<Real<T> const>{table}, size_, dims.T, dims.D / 2);
  };
  kernels::rope<T>(stream_, {.qkv = heads(),
                             .cosine = at(cosine_),
                             .sine = at(sine_),
                             .rows = dims.T,
                             .sequence = dims.T,
                             .heads = dims.H,
                             .kv_heads = dims.K,
                             .head_dim = dims.D});
}

/// Copies the new rows' keys and values behind those that are kept.
template <class T>
void CachedDecoder<T>::keep(model::Dims const& dims, int block) {
  auto const width = dims.K * dims.D;
  for (bool const values : {false, true}) {
    auto const to = rows_of(kept(block, values), size_, dims.T, width);
    for (std::int64_t row = 0; row < dims.T; ++row) {
      auto const begin = row * dims.qkv() + dims.H * dims.D + (values ? width : 0);
      std::copy_n(heads().begin() + begin, width, to.begin() + row * width);
    }
  }
}

template <class T>
void CachedDecoder<T>::attend(model::Dims const& dims, int block, bool first) {
  int const layer = state::attention_layer(block);
  auto const w = model::LayerView<T const>{dims, layouts_[static_cast<std::size_t>(layer)],
                                           parameters_.acquire(layer)}
                     .attention();
  model::Norm const norm{dims.family, dims.T, dims.C, dims.epsilon, dims.norms_after};
  model::Residual<T> const residual =
      first ? model::Residual<T>{} : model::Residual<T>{.before = rows_.mid, .delta = rows_.branch};
  norm.take_in<T>(stream_, residual, rows_.x, w.norm, rows_.normed, statistics());
  auto const layout = model::weight_layout(dims.family);
  model::Linear{dims.T, dims.C, dims.qkv(), layout}.template forward<T>(
      stream_, norm.after ? rows_.x : rows_.normed, w.qkv, rows_.qkv);
  make_heads(dims, w);
  stream_.synchronize();
  keep(dims, block);
  if (size_ == 0) {
    kernels::attention_forward<T>(stream_, {.shape = dims.attention_shape(),
                                            .qkv = heads(),
                                            .out = rows_.attention,
                                            .log_sum_exp = rows_.log_sum_exp});
  } else {
    auto const all = [&](bool values) -> std::span<T const> {
      return rows_of(kept(block, values), 0, size_ + dims.T, dims.K * dims.D);
    };
    kernels::cached_attention<T>(stream_, {.rows = dims.T,
                                           .past = size_,
                                           .heads = dims.H,
                                           .kv_heads = dims.K,
                                           .head_dim = dims.D,
                                           .qkv = heads(),
                                           .keys = all(false),
                                           .values = all(true),
                                           .out = rows_.attention,
                                           .window = shape_.window});
  }
  model::Linear{dims.T, dims.H * dims.D, dims.C, layout}.template forward<T>(
      stream_, rows_.attention, w.o, norm.after ? rows_.normed : rows_.branch);
  if (norm.after) {
    norm.forward<T>(stream_, {}, rows_.normed, w.norm, rows_.branch, statistics());
  }
  parameters_.release(layer, nullptr);
}

template <class T>
void CachedDecoder<T>::run_mlp(model::Dims const& dims, int block) {
  int const layer = state::mlp_layer(block);
  auto const w = model::LayerView<T const>{dims, layouts_[static_cast<std::size_t>(layer)],
                                           parameters_.acquire(layer)}
                     .mlp();
  model::Norm const norm{dims.family, dims.T, dims.C, dims.epsilon, dims.norms_after};
  norm.take_in<T>(stream_, {.before = rows_.x, .delta = rows_.branch}, rows_.mid, w.norm,
                  rows_.normed, statistics());
  auto const layout = model::weight_layout(dims.family);
  model::Linear{dims.T, dims.C, dims.up(), layout}.template forward<T>(
      stream_, norm.after ? rows_.mid : rows_.normed, w.up, rows_.up);
  model::Activation{dims.family, dims.exact_gelu, dims.T, dims.F}.template forward<T>(
      stream_, rows_.up, rows_.hidden);
  model::Linear{dims.T, dims.F, dims.C, layout}.template forward<T>(
      stream_, rows_.hidden, w.down, norm.after ? rows_.normed : rows_.branch);
  if (norm.after) {
    norm.forward<T>(stream_, {}, rows_.normed, w.norm, rows_.branch, statistics());
  }
  parameters_.release(layer, nullptr);
}

/// The last row's logits.
template <class T>
void CachedDecoder<T>::run_head(model::Dims const& dims, std::span<float> out) {
  int const layer = static_cast<int>(layouts_.size()) - 1;
  auto const table = shape_.tied_head
                         ? model::LayerView<T const>{dims, layouts_.front(), parameters_.acquire(0)}
                               .embedding()
                               .table
                         : std::span<T const>{};
  auto const w =
      model::LayerView<T const>{dims, layouts_.back(), parameters_.acquire(layer)}.head(table);
  auto const last = [&](std::vector<T>& all) {
    return rows_of(std::span{all}, dims.T - 1, 1, dims.C);
  };
  model::Norm const norm{dims.family, 1, dims.C, dims.epsilon};
  model::NormStatistics<T> const one{
      .mean = std::span{rows_.mean}.first(rows_.mean.empty() ? 0 : 1),
      .inverse = std::span{rows_.inverse}.first(1)};
  norm.forward<T>(stream_, {.before = last(rows_.mid), .delta = last(rows_.branch)}, last(rows_.x),
                  w.norm, last(rows_.normed), one);
  model::Linear const product{1, dims.C, dims.V, model::WeightLayout::out_in};
  product.template multiply<T, Real<T>>(stream_, std::span<T const>{last(rows_.normed)}, w.matrix,
                                        out);
  parameters_.release(layer, nullptr);
  if (shape_.tied_head) {
    parameters_.release(0, nullptr);
  }
}

template <class T>
void CachedDecoder<T>::append(std::span<std::int32_t const> tokens, std::span<float> out) {
  auto const rows = std::ssize(tokens);
  require(rows >= 1 && size_ + rows <= shape_.max_sequence && std::ssize(out) == shape_.vocab,
          "CachedDecoder: tokens beyond the longest sequence, or no room for the logits");
  model::Dims const dims = model::dims_of(shape_, {.batch = 1, .sequence = rows});
  make_room(size_ + rows);
  make_rows(rows);
  embed(tokens);
  for (int block = 0; block < static_cast<int>(shape_.layers); ++block) {
    attend(dims, block, block == 0);
    run_mlp(dims, block);
  }
  run_head(dims, out);
  stream_.synchronize();
  size_ += rows;
}

OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_DECODER_TYPES, CachedDecoder)

}  // namespace offstage::generate
