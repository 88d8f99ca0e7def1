#include "update/gradients/block_gradients.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <vector>

#include "base/error.hpp"
#include "gradient_fixture.hpp"
#include "update/gradients/block_rounds.hpp"

namespace offstage::update {
namespace {

/// "0 2 4": micro-batches of ranks in a round, "-" for none; "[" where blocks begin, "]" where they
/// are over.
std::vector<std::string> rounds_of(BlockRounds const& dealt) {
  std::vector<std::string> all;
  for (std::int64_t number = 0; number < dealt.count(); ++number) {
    auto const round = dealt.round(number);
    std::string text = round.begins ? "[" : "";
    int active = 0;
    for (int rank = 0; rank < dealt.ranks; ++rank) {
      auto const mine = dealt.micro_batch(number, rank);
      active += mine ? 1 : 0;
      text += (rank > 0 ? " " : "") + (mine ? fmt::format("{}", *mine) : "-");
      if (mine) {
        EXPECT_EQ(dealt.rank_of(*mine), rank);
        EXPECT_EQ(dealt.place_of(*mine), number);
      }
    }
    EXPECT_EQ(round.active, active);
    all.push_back(text + (round.ends ? fmt::format("] {}", round.blocks) : ""));
  }
  return all;
}

TEST(BlockRounds, BlocksOfOneAreMicroBatchesOneByOne) {
  EXPECT_THAT(rounds_of({5, 2}), testing::ElementsAre("[0 1] 2", "[2 3] 2", "[4 -] 1"));
}

TEST(BlockRounds, ABlockIsOneRanks) {
  EXPECT_THAT(rounds_of({10, 2, 2}),
              testing::ElementsAre("[0 2", "1 3] 2", "[4 6", "5 7] 2", "[8 -", "9 -] 1"));
  EXPECT_THAT(rounds_of({8, 3, 3}), testing::ElementsAre("[0 3 6", "1 4 7", "2 5 -] 3"));
  EXPECT_THAT(rounds_of({7, 2, 3}), testing::ElementsAre("[0 3", "1 4", "2 5] 2", "[6 -] 1"));
  EXPECT_THAT(rounds_of({3, 4, 2}), testing::ElementsAre("[0 2 - -", "1 - - -] 2"));
}

template <class T, class A>
void expect_block_sums_and_norm(Place place) {
  SCOPED_TRACE(fmt::format("{} chunks a subgroup, {} in memory, flush {}, blocks of {}, link {}",
                           place.subgroup_chunks, place.in_memory, place.flush, place.sum_block,
                           static_cast<int>(place.link)));
  place.fp32 = std::is_same_v<A, float>;
  GradientFixture<T> gradients{place};
  for (int step = 0; step < 2; ++step) {
    gradients.step();
    EXPECT_EQ(gradients->norm(), (expected_norm<T, A>(place.sum_block)));
    if (place.flush) {
      ASSERT_EQ((gradients.template shard<float>()),
                (gradients.template expected_shard<float, A>()));
    } else {
      ASSERT_EQ(gradients.template shard<A>(), gradients.template expected_shard<A>());
    }
  }
}

void expect_sums_of_blocks(Place place) {
  place.whole = true;
  for (int const block : {2, 3, 4}) {
    place.sum_block = block;
    expect_block_sums_and_norm<float, float>(place);
    expect_block_sums_and_norm<bfloat16, float>(place);
    expect_block_sums_and_norm<bfloat16, bfloat16>(place);
    expect_block_sums_and_norm<float16, float16>(place);
  }
}

TEST(BlockGradients, GiveTheSumsOfSumBlocksOnAnyNumberOfRanks) {
  expect_sums_of_blocks({.in_memory = 2});
  expect_sums_of_blocks({.flush = true, .in_memory = 2});
  expect_sums_of_blocks({.subgroup_chunks = 1, .in_memory = 0});
}

TEST(BlockGradients, GiveThemWhereAllRoundsOfALayerOrABlockComeTogether) {
  expect_sums_of_blocks({.subgroup_chunks = 3, .in_memory = 2, .in_layers = true});
  expect_sums_of_blocks(
      {.subgroup_chunks = 100, .in_memory = 2, .in_layers = true, .of_a_block = true});
}

// Sums leave the device late there, and must not be written again before they have.
TEST(BlockGradients, GiveThemOverALinkToTheDeviceThatIsSlowAndWhereWorkIsQueued) {
  for (auto const& emulation :
       {link, device::Emulation{.device_to_host = 100e6},
        device::Emulation{.device_to_host = 100e6, .host_sum = 500e6, .compute = 1e15}}) {
    for (auto const kind : state::every_link) {
      for (bool const in_layers : {false, true}) {
        expect_sums_of_blocks({.subgroup_chunks = 3,
                               .in_memory = 2,
                               .emulation = emulation,
                               .link = kind,
                               .in_layers = in_layers,
                               .of_a_block = in_layers});
      }
    }
  }
}

TEST(BlockGradients, GiveThemWhereGradientsWaitOnTheDevice) {
  for (auto const kind : state::every_link) {
    for (Bytes const room : {64 * KiB, room_for_all}) {
      for (bool const in_layers : {false, true}) {
        expect_sums_of_blocks({.subgroup_chunks = 3,
                               .in_memory = 2,
                               .emulation = link,
                               .link = kind,
                               .held_room = room,
                               .sums_there = true,
                               .in_layers = in_layers});
      }
    }
  }
}

TEST(BlockGradients, OpenASubgroupOnceForABlockOfEachRank) {
  GradientFixture<bfloat16> gradients{{.subgroup_chunks = 3, .sum_block = 3, .whole = true},
                                      mpi::Communicator::self()};
  gradients.step();  // micro-batches 0 1 2, and 3 4
  using Call = MemoryTiers::Call;
  EXPECT_EQ(gradients.accumulated().keys_of(Call::create), gradients.descending());
  EXPECT_EQ(gradients.accumulated().keys_of(Call::fetch), gradients.descending());
  EXPECT_EQ(gradients.accumulated().passes(), 2);
}

TEST(BlockGradients, TakeDeviceMemoryForAllLayersOrForTwoBlocksOfTheModel) {
  GradientFixture<float> gradients{{.of_a_block = true}, mpi::Communicator::self()};
  auto const& map = gradients.map();
  std::int64_t all = 0, block = 0;
  for (int layer = 0; layer < layers; ++layer) {
    auto const size = map.layers()[static_cast<std::size_t>(layer)].padded_elements();
    all += size;
    block += layer > 0 && layer + 1 < layers ? size : 0;
  }
  EXPECT_EQ((BlockGradients<bfloat16, float>::device_bytes(map, false)), 4 * all);
  EXPECT_EQ((BlockGradients<bfloat16, bfloat16>::device_bytes(map, false)), 2 * all);
  EXPECT_EQ((BlockGradients<bfloat16, float>::device_bytes(map, true)), 2 * 4 * block);
}

TEST(BlockGradients, RefuseLayersOutOfOrderAndRoundsThatAreNotComplete) {
  GradientFixture<float> gradients{{.sum_block = 2, .whole = true}, mpi::Communicator::self()};
  auto const gradient = gradient_of<float>(0, 1);
  EXPECT_THROW(gradients->add(1, gradient), PreconditionError);  // no round has begun
  gradients->begin_round(1, false);
  EXPECT_THROW(gradients->add(1, gradient), PreconditionError);
  EXPECT_THROW(gradients->add(layers - 1, {}), PreconditionError);
  EXPECT_THROW(gradients->end_round(), PreconditionError);
  EXPECT_THROW(gradients->begin_round(1, true), PreconditionError);
}

}  // namespace
}  // namespace offstage::update
