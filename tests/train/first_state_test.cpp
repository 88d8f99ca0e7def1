#include "train/offload/first_state.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>

#include "config/run_config.hpp"
#include "tiers/host_tiers.hpp"

namespace offstage::train {
namespace {

constexpr std::uint64_t seed = 7;

/// Its largest layer has 625 chunks, of which a rank has more than are split at a time.
state::ModelShape shape() {
  return {.layers = 1,
          .hidden = 256,
          .heads = 4,
          .kv_heads = 4,
          .ffn_hidden = 256,
          .vocab = 10000,
          .max_sequence = 16};
}

/// Gives element i of a layer 1000 layer + its chunk.
class Numbered final : public state::ParameterReader {
 public:
  [[nodiscard]] state::ModelShape const& shape() const override { return shape_; }
  void read(int layer, state::ChunkRange chunks, std::span<float> out) override {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<float>(1000 * layer + chunks.first +
                                  static_cast<std::int64_t>(i) / chunk_elements);
    }
  }

 private:
  state::ModelShape shape_ = train::shape();
};

/// The shard of rank 1 of 2, in tiers whose memory is full of ones.
class FirstState : public ::testing::Test {
 protected:
  void make(std::int64_t subgroup_elements, state::ParameterReader* reader = nullptr,
            checkpoint::SplitParameters const* split = nullptr) {
    subgroups = state::subgroups_of(map, rank, subgroup_elements);
    std::vector<Bytes> sizes;
    for (state::Subgroup const& subgroup : subgroups) {
      sizes.push_back(layout.bytes(subgroup.size));
    }
    tiers = tiers::make_host_tiers(sizes);
    for (state::Subgroup const& subgroup : subgroups) {
      auto lease = tiers->create(subgroup.index);
      std::ranges::fill(lease.mutable_bytes(), std::byte{0xFF});
      lease.commit();
    }
    make_first_state(
        map, subgroups, layout, seed, reader, *tiers,
        [this](state::Subgroup const& subgroup, std::span<float const> weights) {
          told[static_cast<std::size_t>(subgroup.index)].assign(weights.begin(), weights.end());
        },
        split);
  }

  /// The shard's weights as `read` gives them, layer by layer.
  template <class Read>
  [[nodiscard]] std::vector<float> shard_of(Read read) const {
    std::vector<float> all(static_cast<std::size_t>(map.shard_elements(rank)));
    for (int layer = 0; layer < static_cast<int>(map.layers().size()); ++layer) {
      auto const chunks = map.chunks(layer, rank);
      read(layer, chunks,
           std::span{all}.subspan(static_cast<std::size_t>(map.shard_offset(layer, rank)),
                                  static_cast<std::size_t>(chunks.count * chunk_elements)));
    }
    return all;
  }
  [[nodiscard]] std::vector<float> of_the_seed() const {
    return shard_of([&](int layer, state::ChunkRange chunks, std::span<float> out) {
      state::initialize(map.layers()[static_cast<std::size_t>(layer)], seed, chunks, out);
    });
  }

  /// The weights in the tiers; all behind them is zero.
  [[nodiscard]] std::vector<float> weights() const {
    std::vector<float> all;
    for (state::Subgroup const& subgroup : subgroups) {
      auto const lease = tiers->fetch(subgroup.index);
      auto const count = static_cast<std::size_t>(subgroup.size);
      std::vector<float> own(count);
      std::memcpy(own.data(), lease.bytes().data(), count * sizeof(float));
      all.insert(all.end(), own.begin(), own.end());
      expect_zero(lease.bytes().subspan(count * sizeof(float)));
    }
    return all;
  }
  static void expect_zero(std::span<std::byte const> bytes) {
    EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{}; }));
  }

  static constexpr int rank = 1;
  state::ShardMap map{state::layers_of(shape()), 2};
  config::OptimizerConfig optimizer;
  StateLayout layout = optimizer.layout();
  std::vector<state::Subgroup> subgroups;
  std::unique_ptr<tiers::Tiers> tiers;
  std::map<std::size_t, std::vector<float>> told;
};

TEST_F(FirstState, IsTheSeedsWeightsAndZeroMomentsForAnySubgroupSize) {
  auto const expected = of_the_seed();
  for (std::int64_t const elements :
       {std::int64_t{chunk_elements}, 7 * std::int64_t{chunk_elements},
        2 * map.shard_elements(rank)}) {
    make(elements);
    EXPECT_EQ(weights(), expected) << "subgroups of " << elements;
  }
}

TEST_F(FirstState, IsTheReadersWeights) {
  Numbered reader;
  make(7 * chunk_elements, &reader);
  EXPECT_EQ(weights(), shard_of([&](int layer, state::ChunkRange chunks, std::span<float> out) {
              reader.read(layer, chunks, out);
            }));
}

TEST_F(FirstState, IsToldSubgroupBySubgroup) {
  make(7 * chunk_elements);
  ASSERT_EQ(told.size(), subgroups.size());
  std::vector<float> all;
  for (auto const& [index, own] : told) {
    all.insert(all.end(), own.begin(), own.end());
  }
  EXPECT_EQ(all, of_the_seed());
}

TEST_F(FirstState, OfSplitParametersJoinsToTheSameWeights) {
  optimizer.split_parameter = true;
  layout = optimizer.layout();
  std::vector<bfloat16> copy(static_cast<std::size_t>(map.shard_elements(rank)));
  checkpoint::SplitParameters const split{
      .layout = layout, .copy = [&](state::Subgroup const& subgroup) {
        return std::span{copy}.subspan(static_cast<std::size_t>(subgroup.begin),
                                       static_cast<std::size_t>(subgroup.size));
      }};
  make(2 * map.shard_elements(rank), nullptr, &split);
  EXPECT_TRUE(told.empty());
  std::vector<float> joined(copy.size());
  for (state::Subgroup const& subgroup : subgroups) {
    auto const lease = tiers->fetch(subgroup.index);
    split.join(subgroup, lease.bytes(), 0,
               std::span{joined}.subspan(static_cast<std::size_t>(subgroup.begin),
                                         static_cast<std::size_t>(subgroup.size)));
    expect_zero(
        lease.bytes().subspan(static_cast<std::size_t>(layout.plane_bytes(0, subgroup.size))));
  }
  EXPECT_EQ(joined, of_the_seed());
}

}  // namespace
}  // namespace offstage::train
