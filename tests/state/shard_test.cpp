#include "state/shard.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "base/error.hpp"

namespace offstage::state {
namespace {

/// Layers of the given element counts; the first `decayed` elements of each are decayed.
std::vector<LayerLayout> layers_with(std::vector<std::pair<std::int64_t, std::int64_t>> sizes) {
  std::vector<LayerLayout> layers;
  for (auto const& [elements, decayed] : sizes) {
    LayerLayout layer;
    layer.elements = elements;
    layer.decayed_elements = decayed;
    layers.push_back(layer);
  }
  return layers;
}

void expect_dealt_once_in_rank_order(ShardMap const& map) {
  for (int layer = 0; layer < 3; ++layer) {
    std::int64_t next = 0;
    for (int rank = 0; rank < map.ranks(); ++rank) {
      ChunkRange const range = map.chunks(layer, rank);
      EXPECT_EQ(range.first, next);
      EXPECT_GE(range.count, 0);
      next += range.count;
      for (std::int64_t chunk = range.first; chunk < next; ++chunk) {
        EXPECT_EQ(map.owner(layer, chunk), rank);
      }
    }
    EXPECT_EQ(next, map.layers()[static_cast<std::size_t>(layer)].chunks());
    EXPECT_THROW((void)map.owner(layer, next), PreconditionError);
  }
}

TEST(ShardMap, NoRankHasMoreThanTheFullest) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    ShardMap const map{layers_with({{1 * 4096, 0}, {5 * 4096, 0}, {13 * 4096, 0}, {36 * 4096, 0}}),
                       ranks};
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_LE(map.shard_elements(rank), map.shard_elements(fullest_rank));
      for (int layer = 0; layer < 4; ++layer) {
        EXPECT_LE(map.chunks(layer, rank).count, map.chunks(layer, fullest_rank).count);
      }
    }
  }
}

TEST(ShardMap, DealsEveryChunkOnceAndInRankOrder) {
  for (Deal const deal : {Deal::equal, Deal::spread}) {
    for (int ranks : {1, 2, 3, 4, 7, 40}) {
      expect_dealt_once_in_rank_order(
          {layers_with({{5 * 4096 - 1, 0}, {1, 0}, {12 * 4096, 0}}), ranks, deal});
    }
  }
}

// Of 5 chunks 2 for each of 4 ranks: one is padding in the third part, and the fourth is all
// padding.
TEST(ShardMap, DealsEqualPartsWithPaddingBehindTheLastChunk) {
  ShardMap const map{layers_with({{5 * 4096 - 1, 0}}), 4};
  EXPECT_EQ(map.gathered_elements(0), 4 * 2 * 4096);
  EXPECT_EQ(map.largest_gathered(), 4 * 2 * 4096);
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < 4; ++rank) {
    ChunkRange const range = map.chunks(0, rank);
    counts.push_back(range.count);
    if (range.count > 0) {
      EXPECT_EQ(range.first, 2 * rank) << "a part begins where the all-gather puts it";
    }
  }
  EXPECT_EQ(counts, (std::vector<std::int64_t>{2, 2, 1, 0}));
  EXPECT_EQ(map.shard_elements(2), 4096) << "padding is nobody's";
  EXPECT_EQ((ShardMap{map.layers(), 1}.gathered_elements(0)), 5 * 4096);
}

TEST(ShardMap, ALayersPartBeginsBehindThoseOfTheLayersBefore) {
  for (Deal const deal : {Deal::equal, Deal::spread}) {
    ShardMap const map{
        layers_with({{5 * 4096, 0}, {7 * 4096 - 1, 0}, {5 * 4096, 0}, {1, 0}, {7 * 4096, 0}}), 3,
        deal};
    for (int rank = 0; rank < 3; ++rank) {
      std::int64_t before = 0;
      for (int layer = 0; layer < 5; ++layer) {
        EXPECT_EQ(map.shard_offset(layer, rank), before * chunk_elements);
        before += map.chunks(layer, rank).count;
      }
      EXPECT_EQ(map.shard_elements(rank), before * chunk_elements);
    }
  }
  EXPECT_EQ((ShardMap{{}, 2}.shard_elements(1)), 0);
}

// By hand: chunk c of 5 goes to the rank r with 5 r / 3 <= c < 5 (r + 1) / 3.
TEST(ShardMap, DealsOlderCheckpointsAsTheyWere) {
  ShardMap const map{layers_with({{5 * 4096, 0}}), 3, Deal::spread};
  EXPECT_EQ(map.chunks(0, 0).count, 2);
  EXPECT_EQ(map.chunks(0, 1).count, 2);
  EXPECT_EQ(map.chunks(0, 2).count, 1);
  ShardMap const four{layers_with({{5 * 4096, 0}}), 4, Deal::spread};
  EXPECT_EQ(four.chunks(0, 3).count, 1);
}

TEST(ShardMap, ARankMayOwnNothingOfASmallLayer) {
  ShardMap const map{layers_with({{100, 0}}), 3};

  EXPECT_EQ(map.chunks(0, 0).count, 1);
  EXPECT_EQ(map.chunks(0, 1).count, 0);
  EXPECT_EQ(map.chunks(0, 2).count, 0);
  EXPECT_EQ(map.shard_elements(1), 0);
  EXPECT_TRUE(subgroups_of(map, 1, 4096).empty());
}

TEST(ShardMap, SlicesAreTheChunksInBytes) {
  ShardMap const map{layers_with({{3 * 4096, 0}}), 2};

  auto const slices = map.slices(0, 2);

  ASSERT_EQ(slices.size(), 2U);
  EXPECT_EQ(slices[0].offset, 0);
  EXPECT_EQ(slices[0].size, 2 * 4096 * 2);
  EXPECT_EQ(slices[1].offset, 2 * 4096 * 2);
  EXPECT_EQ(slices[1].size, 4096 * 2);
}

LayerSlotSizes sizes_of(std::vector<std::int64_t> const& chunks, int ranks = 1) {
  std::vector<std::pair<std::int64_t, std::int64_t>> layers;
  for (std::int64_t const count : chunks) {
    layers.emplace_back(count * 4096 - 5, 0);
  }
  return ShardMap{layers_with(layers), ranks}.layer_slot_sizes();
}

TEST(LayerSlotSizes, OfAFirstOrLastLayerMoreThanTwoBlocksLargeHaveAPlaceOfTheirOwn) {
  auto const tied = sizes_of({7, 3, 2, 3, 1});
  EXPECT_EQ(tied.usual, 3 * 4096);
  EXPECT_EQ(tied.large, 7 * 4096);
  EXPECT_EQ(tied.elements(2), (2 * 3 + 7) * 4096);
  EXPECT_EQ(tied.elements(0), 0) << "nothing passes through";
  auto const untied = sizes_of({7, 3, 9});
  EXPECT_EQ(untied.large, 9 * 4096);
  EXPECT_EQ(untied.usual, 3 * 4096);
}

TEST(LayerSlotSizes, AreTheLargestLayersWhereAPlaceOfItsOwnSavesNothing) {
  for (auto const& chunks : {std::vector<std::int64_t>{6, 3, 3, 1}, {2, 3, 3, 2}, {9, 1}, {4}}) {
    auto const sizes = sizes_of(chunks);
    EXPECT_EQ(sizes.usual, std::ranges::max(chunks) * 4096);
    EXPECT_EQ(sizes.large, 0);
  }
}

TEST(LayerSlotSizes, SayWhichLayersAreLarge) {
  ShardMap const map{layers_with({{7 * 4096, 0}, {3 * 4096, 0}, {3 * 4096 - 1, 0}, {10, 0}}), 1};
  auto const sizes = map.layer_slot_sizes();
  std::vector<bool> large;
  for (int layer = 0; layer < 4; ++layer) {
    large.push_back(sizes.is_large(map.gathered_elements(layer)));
  }
  EXPECT_EQ(large, (std::vector{true, false, false, false}));
}

TEST(LayerSlotSizes, HaveRoomForThePaddingOfTheLastParts) {
  auto const sizes = sizes_of({20, 4, 2, 1}, 3);
  EXPECT_EQ(sizes.usual, 3 * 2 * 4096);
  EXPECT_EQ(sizes.large, 3 * 7 * 4096);
}

TEST(Subgroups, CoverTheShardOnceInOrderAtAnySize) {
  ShardMap const map{layers_with({{5 * 4096, 4096}, {10, 10}, {12 * 4096 - 7, 0}}), 2};
  for (int rank = 0; rank < 2; ++rank) {
    for (std::int64_t size : {1, 4096, 9000, 3 * 4096, 1 << 30}) {
      std::int64_t next = 0;
      std::int64_t index = 0;
      for (Subgroup const& subgroup : subgroups_of(map, rank, size)) {
        EXPECT_EQ(subgroup.index, index++);
        EXPECT_EQ(subgroup.begin, next);
        EXPECT_GT(subgroup.size, 0);
        EXPECT_EQ(subgroup.size % chunk_elements, 0);
        EXPECT_LE(subgroup.size, std::max<std::int64_t>(chunk_elements, size));
        std::int64_t inside = 0;
        for (Piece const& piece : subgroup.pieces) {
          EXPECT_EQ(piece.offset, inside);
          EXPECT_EQ(map.shard_offset(piece.layer, rank) +
                        (piece.chunks.first - map.chunks(piece.layer, rank).first) * chunk_elements,
                    subgroup.begin + piece.offset);
          inside += piece.chunks.count * chunk_elements;
        }
        EXPECT_EQ(inside, subgroup.size);
        next += subgroup.size;
      }
      EXPECT_EQ(next, map.shard_elements(rank));
    }
  }
}

TEST(Subgroups, PiecesSayWhatIsDecayedByHand) {
  // Layer 0: 4096 + 100 decayed of two chunks; layer 1: nothing decayed, one chunk.
  ShardMap const map{layers_with({{2 * 4096, 4096 + 100}, {50, 0}}), 1};

  auto const subgroups = subgroups_of(map, 0, 3 * 4096);

  ASSERT_EQ(subgroups.size(), 1U);
  ASSERT_EQ(subgroups[0].pieces.size(), 2U);
  EXPECT_EQ(subgroups[0].pieces[0].decayed, 4096 + 100);
  EXPECT_EQ(subgroups[0].pieces[1].decayed, 0);

  // The same, a chunk at a time: all of the first, 100 of the second.
  auto const chunks = subgroups_of(map, 0, 4096);
  ASSERT_EQ(chunks.size(), 3U);
  EXPECT_EQ(chunks[0].pieces[0].decayed, 4096);
  EXPECT_EQ(chunks[1].pieces[0].decayed, 100);
  EXPECT_EQ(chunks[2].pieces[0].decayed, 0);
}

/// What a cut into subgroups must be, whatever is resident.
void expect_cut(ShardMap const& map, std::int64_t size, std::int64_t resident,
                std::int64_t expected_resident) {
  SCOPED_TRACE(testing::Message() << "subgroups of " << size << ", resident " << resident);
  std::int64_t const shard = map.shard_elements(0);
  std::int64_t next = 0;
  std::int64_t found = 0;
  for (Subgroup const& subgroup : subgroups_of(map, 0, size, resident)) {
    EXPECT_EQ(subgroup.begin, next);
    EXPECT_GT(subgroup.size, 0);
    EXPECT_LE(subgroup.size, std::max<std::int64_t>(chunk_elements, size));
    EXPECT_EQ(subgroup.resident, subgroup.begin >= shard - expected_resident);
    auto const& last = subgroup.pieces.back();
    EXPECT_EQ(last.offset + last.chunks.count * chunk_elements, subgroup.size);
    found += subgroup.resident ? subgroup.size : 0;
    next += subgroup.size;
  }
  EXPECT_EQ(next, shard);
  EXPECT_EQ(found, expected_resident);
}

TEST(Subgroups, ShareOfWhatIsResidentDoesNotDependOnTheirSize) {
  ShardMap const map{layers_with({{5 * 4096, 4096}, {10, 10}, {12 * 4096 - 7, 0}}), 1};
  std::int64_t const shard = 18 * 4096;
  for (std::int64_t size : {1, 4096, 9000, 3 * 4096, 7 * 4096, 1 << 30}) {
    expect_cut(map, size, 0, 0);
    expect_cut(map, size, 4096, 4096);
    expect_cut(map, size, shard / 2, shard / 2);
    expect_cut(map, size, 13 * 4096, 13 * 4096);  // cuts a layer, and a subgroup of most sizes
    expect_cut(map, size, shard - 4096, shard - 4096);
    expect_cut(map, size, shard, shard);
  }
}

TEST(Subgroups, ResidentElementsAreRoundedToTheNearestChunkOfTheShard) {
  ShardMap const map{layers_with({{3 * 4096, 0}}), 1};
  expect_cut(map, 2 * 4096, 2047, 0);
  expect_cut(map, 2 * 4096, 2048, 4096);
  expect_cut(map, 2 * 4096, 4096 + 1, 4096);
  expect_cut(map, 2 * 4096, 3 * 4096 - 1, 3 * 4096);
  expect_cut(map, 2 * 4096, std::numeric_limits<std::int64_t>::max(), 3 * 4096);
  EXPECT_THROW((void)subgroups_of(map, 0, 4096, -1), PreconditionError);
}

TEST(Subgroups, OfResidentsBeginWhereTheOthersEndByHand) {
  ShardMap const map{layers_with({{5 * 4096, 4096}, {10, 10}}), 1};
  auto const subgroups = subgroups_of(map, 0, 4 * 4096, 3 * 4096);
  ASSERT_EQ(subgroups.size(), 2U);
  EXPECT_EQ(subgroups[0].size, 3 * 4096);
  EXPECT_FALSE(subgroups[0].resident);
  EXPECT_EQ(subgroups[1].size, 3 * 4096);
  EXPECT_TRUE(subgroups[1].resident);
  EXPECT_EQ(subgroups[1].index, 1);
  EXPECT_EQ(subgroups[1].pieces.size(), 2U);
}

}  // namespace
}  // namespace offstage::state
