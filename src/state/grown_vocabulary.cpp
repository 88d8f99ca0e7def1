#include "state/grown_vocabulary.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"

namespace offstage::state {
namespace {

constexpr std::int64_t chunks_at_a_time = 256;  // 4 MiB of FP32

ModelShape grown(ModelShape shape, std::int64_t vocab) {
  require(vocab >= shape.vocab, "GrownVocabulary: a vocabulary grows");
  shape.vocab = vocab;
  return shape;
}

}  // namespace

GrownVocabulary::GrownVocabulary(std::unique_ptr<ParameterReader> source, std::int64_t vocab)
    : source_{std::move(source)},
      shape_{grown(source_->shape(), vocab)},
      layers_{layers_of(shape_)},
      old_layers_{layers_of(source_->shape())} {}

void GrownVocabulary::read_old(int layer, std::int64_t begin, std::span<float> out) {
  auto const end = begin + static_cast<std::int64_t>(out.size());
  for (auto at = begin; at < end;) {
    auto const first = at / chunk_elements;
    auto const last =
        std::min(first + chunks_at_a_time, (end + chunk_elements - 1) / chunk_elements);
    scratch_.resize(static_cast<std::size_t>((last - first) * chunk_elements));
    source_->read(layer, {first, last - first}, scratch_);
    auto const count = std::min(end, last * chunk_elements) - at;
    std::copy_n(scratch_.begin() + (at - first * chunk_elements), count,
                out.begin() + (at - begin));
    at += count;
  }
}

std::vector<float> const& GrownVocabulary::mean_row(int layer, TensorLayout const& table) {
  auto const [found, fresh] = means_.try_emplace(layer);
  std::vector<float>& mean = found->second;
  if (!fresh) {
    return mean;
  }
  std::vector<double> sums(static_cast<std::size_t>(table.columns));
  std::vector<float> rows;
  auto const rows_at_a_time =
      std::max<std::int64_t>(1, chunks_at_a_time * chunk_elements / table.columns);
  for (std::int64_t first = 0; first < table.rows; first += rows_at_a_time) {
    auto const count = std::min(rows_at_a_time, table.rows - first);
    rows.resize(static_cast<std::size_t>(count * table.columns));
    read_old(layer, table.offset + first * table.columns, rows);
    for (auto row = rows.begin(); row != rows.end(); row += table.columns) {
      std::transform(row, row + table.columns, sums.begin(), sums.begin(),
                     [](float value, double sum) { return sum + static_cast<double>(value); });
    }
  }
  for (double const sum : sums) {
    mean.push_back(static_cast<float>(sum / static_cast<double>(table.rows)));
  }
  return mean;
}

void GrownVocabulary::read(int layer, ChunkRange chunks, std::span<float> out) {
  auto const& old_tensors = old_layers_.at(static_cast<std::size_t>(layer)).tensors;
  auto const& tensors = layers_.at(static_cast<std::size_t>(layer)).tensors;
  auto const range_begin = chunks.first * chunk_elements;
  auto const range_end = range_begin + chunks.count * chunk_elements;
  if (layers_.at(static_cast<std::size_t>(layer)).elements ==
      old_layers_.at(static_cast<std::size_t>(layer)).elements) {
    source_->read(layer, chunks, out);
    return;
  }
  std::ranges::fill(out, 0.0F);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    TensorLayout const& tensor = tensors[i];
    TensorLayout const& old = old_tensors[i];
    // Elements of the tensor, counted from its begin.
    auto const begin = std::max<std::int64_t>(range_begin - tensor.offset, 0);
    auto const end = std::min(range_end - tensor.offset, tensor.elements());
    auto const place = [&](std::int64_t element) {
      return out.begin() + (tensor.offset + element - range_begin);
    };
    if (auto const old_end = std::min(end, old.elements()); begin < old_end) {
      read_old(layer, old.offset + begin, std::span{place(begin), place(old_end)});
    }
    for (auto element = std::max(begin, old.elements()); element < end; ++element) {
      *place(element) = mean_row(layer, old)[static_cast<std::size_t>(element % tensor.columns)];
    }
  }
}

}  // namespace offstage::state
