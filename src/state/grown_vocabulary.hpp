#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "state/initialize.hpp"

namespace offstage::state {

/// A model's parameters with tokens added behind its vocabulary.
///
/// Rows:   each new token's row, of the embedding and of a head of its own, is the mean of the old
///         rows. A new token is then never likelier than all others, whatever the text (Hewitt,
///         "Initializing New Word Embeddings for Pretrained Language Models", 2021); transformers
///         does so too.
/// Bits:   sums over rows in FP64, in order, rounded once to FP32. They do not depend on the ranges
///         read.
/// Memory: the source's, 8 MiB, and a row for each table.
/// Time:   the first read of a new row reads its whole table.
class GrownVocabulary final : public ParameterReader {
 public:
  /// `vocab` is the source's at least.
  GrownVocabulary(std::unique_ptr<ParameterReader> source, std::int64_t vocab);

  [[nodiscard]] ModelShape const& shape() const override { return shape_; }
  [[nodiscard]] std::string left_out() const override { return source_->left_out(); }
  void read(int layer, ChunkRange chunks, std::span<float> out) override;

 private:
  /// Elements [begin, begin + out.size()) of a layer of the source.
  void read_old(int layer, std::int64_t begin, std::span<float> out);
  /// One value per column: the mean of the rows of a table in a layer of the source.
  std::vector<float> const& mean_row(int layer, TensorLayout const& table);

  std::unique_ptr<ParameterReader> source_;
  ModelShape shape_;
  std::vector<LayerLayout> layers_;          ///< this model's
  std::vector<LayerLayout> old_layers_;      ///< the source's
  std::map<int, std::vector<float>> means_;  ///< by layer, which has one table of tokens at most
  std::vector<float> scratch_;
};

}  // namespace offstage::state
