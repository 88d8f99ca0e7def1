#include "update/gradients/accumulator.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.hpp"
#include "gradient_fixture.hpp"
#include "platform/scratch_directory.hpp"

namespace offstage::update {
namespace {

using Call = MemoryTiers::Call;

/// All in memory, half of it, nothing; delayed and flushed; a subgroup cuts layers or spans them.
std::vector<Place> places() {
  std::vector<Place> all;
  for (std::int64_t const chunks : {1, 3, 100}) {
    for (std::int64_t const in_memory : {100, 2, 0}) {
      for (bool const flush : {false, true}) {
        all.push_back({.flush = flush, .subgroup_chunks = chunks, .in_memory = in_memory});
      }
    }
  }
  return all;
}

template <class T, class A>
void expect_sums_and_norm(Place place) {
  SCOPED_TRACE(fmt::format("{} chunks a subgroup, {} in memory, flush {}, blocks of {}",
                           place.subgroup_chunks, place.in_memory, place.flush, place.sum_block));
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

TEST(GradientAccumulator, SumsInOrderOfTheMicroBatchOnAnyNumberOfRanks) {
  for (bool const flush : {false, true}) {
    Place const place{.flush = flush, .in_memory = 2};
    expect_sums_and_norm<float, float>(place);
    expect_sums_and_norm<bfloat16, float>(place);
    expect_sums_and_norm<bfloat16, bfloat16>(place);
    expect_sums_and_norm<float16, float>(place);
    expect_sums_and_norm<float16, float16>(place);
  }
}

TEST(GradientAccumulator, GivesTheSameBitsWhereverTheSumsLieAndHoweverTheShardIsCut) {
  for (Place const& place : places()) {
    expect_sums_and_norm<bfloat16, float>(place);
    expect_sums_and_norm<bfloat16, bfloat16>(place);
  }
}

TEST(GradientAccumulator, GivesTheSameBitsInTheVirtualTier) {
  ScratchDirectory const scratch;
  tiers::PathSettings path;
  path.directory = scratch.path();
  path.engine.queue_depth = 2;
  path.read_rate = path.write_rate = 1e9;
  for (Place place : places()) {
    if (place.subgroup_chunks < 100) {
      place.paths = tiers::make_paths({.paths = {path}});
      expect_sums_and_norm<bfloat16, bfloat16>(place);
    }
  }
}

TEST(GradientAccumulator, GivesTheSameBitsOverALinkToTheDevice) {
  for (auto const& emulation : {link, device::Emulation{.device_to_host = 100e6}}) {
    for (bool const flush : {false, true}) {
      Place const place{
          .flush = flush, .subgroup_chunks = 3, .in_memory = 2, .emulation = emulation};
      expect_sums_and_norm<float, float>(place);
      expect_sums_and_norm<bfloat16, float>(place);
      expect_sums_and_norm<bfloat16, bfloat16>(place);
      expect_sums_and_norm<float16, float>(place);
    }
  }
}

TEST(GradientAccumulator, GivesTheSameBitsWhereTheModelsWorkIsQueued) {
  for (auto const& emulation :
       {device::Emulation{.compute = 1e15},
        device::Emulation{.device_to_host = 100e6, .host_sum = 500e6, .compute = 1e15}}) {
    for (auto const kind : state::every_link) {
      Place const place{.subgroup_chunks = 3, .in_memory = 2, .emulation = emulation, .link = kind};
      expect_sums_and_norm<float, float>(place);
      expect_sums_and_norm<bfloat16, float>(place);
      expect_sums_and_norm<float16, float16>(place);
    }
  }
}

TEST(GradientAccumulator, GivesTheSameBitsWhereGradientsWaitOnTheDevice) {
  for (std::int64_t const chunks : {1, 3, 100}) {
    for (Bytes const room : {64 * KiB, room_for_all}) {
      for (bool const sums_there : {false, true}) {
        Place const place{.subgroup_chunks = chunks,
                          .in_memory = 2,
                          .emulation = link,
                          .held_room = room,
                          .sums_there = sums_there};
        expect_sums_and_norm<float, float>(place);
        expect_sums_and_norm<bfloat16, float>(place);
        expect_sums_and_norm<bfloat16, bfloat16>(place);
        expect_sums_and_norm<float16, float16>(place);
      }
    }
  }
}

TEST(GradientAccumulator, GivesTheSameBitsWhereRanksPassSlicesFromDeviceToDevice) {
  for (auto const& emulation : {link, device::Emulation{.device_to_host = 100e6}}) {
    for (auto const kind : {state::LinkKind::direct, state::LinkKind::queued}) {
      for (bool const flush : {false, true}) {
        Place const place{.flush = flush,
                          .subgroup_chunks = 3,
                          .in_memory = 2,
                          .emulation = emulation,
                          .link = kind,
                          .held_room = flush ? 0 : 128 * KiB,
                          .sums_there = true};
        expect_sums_and_norm<float, float>(place);
        expect_sums_and_norm<bfloat16, float>(place);
        expect_sums_and_norm<bfloat16, bfloat16>(place);
        expect_sums_and_norm<float16, float>(place);
      }
    }
  }
  // Subgroups that lie in several layers, of ranks that own nothing of some.
  for (std::int64_t const chunks : {1, 100}) {
    for (bool const sums_there : {false, true}) {
      expect_sums_and_norm<bfloat16, bfloat16>({.subgroup_chunks = chunks,
                                                .in_memory = 2,
                                                .emulation = link,
                                                .link = state::LinkKind::queued,
                                                .held_room = room_for_all,
                                                .sums_there = sums_there});
    }
  }
}

// Of a vertical schedule: where a layer's rounds come one after the other, or those of a block, its
// sums wait beside the tiers, or on the device.
void expect_sums_of_rounds_in_layers(bool of_a_block) {
  for (Place place : places()) {
    place.in_layers = true;
    place.of_a_block = of_a_block;
    expect_sums_and_norm<bfloat16, float>(place);
    expect_sums_and_norm<bfloat16, bfloat16>(place);
  }
  for (auto const kind : state::every_link) {
    for (Bytes const room : {Bytes{0}, 64 * KiB, room_for_all}) {
      for (bool const sums_there : {false, true}) {
        Place const place{.subgroup_chunks = 3,
                          .in_memory = 2,
                          .emulation = link,
                          .link = kind,
                          .held_room = room,
                          .sums_there = sums_there,
                          .in_layers = true,
                          .of_a_block = of_a_block};
        expect_sums_and_norm<float, float>(place);
        expect_sums_and_norm<bfloat16, float>(place);
        expect_sums_and_norm<float16, float16>(place);
      }
    }
  }
}

TEST(GradientAccumulator, GivesTheSameBitsWhereAllRoundsOfALayerComeBeforeTheNextOne) {
  expect_sums_of_rounds_in_layers(false);
}

TEST(GradientAccumulator, GivesTheSameBitsWhereTheLayersOfABlockComeInEachOfItsRounds) {
  expect_sums_of_rounds_in_layers(true);
}

/// All ways of sums in one of two levels: 2 and 3 leave a short last block.
std::vector<Place> places_of_sums() {
  std::vector<Place> all{
      {.in_memory = 2},
      {.flush = true, .in_memory = 2},
      {.subgroup_chunks = 1, .in_memory = 0},
      {.subgroup_chunks = 3, .in_memory = 2, .in_layers = true},
      {.subgroup_chunks = 100, .in_memory = 2, .in_layers = true, .of_a_block = true}};
  for (auto const kind : state::every_link) {
    for (bool const in_layers : {false, true}) {
      for (Bytes const room : {64 * KiB, room_for_all}) {
        all.push_back({.subgroup_chunks = 3,
                       .in_memory = 2,
                       .emulation = link,
                       .link = kind,
                       .held_room = room,
                       .sums_there = true,
                       .in_layers = in_layers,
                       .of_a_block = in_layers});
      }
    }
  }
  return all;
}

TEST(GradientAccumulator, SumsBlocksOfMicroBatchesAndThenTheirSumsOnAnyNumberOfRanks) {
  EXPECT_FALSE((expected_sum<float, float>(2, 2)) == (expected_sum<float, float>(2)));
  for (Place place : places_of_sums()) {
    for (int const block : {2, 3, 4}) {
      place.sum_block = block;
      expect_sums_and_norm<float, float>(place);
      expect_sums_and_norm<bfloat16, float>(place);
      expect_sums_and_norm<bfloat16, bfloat16>(place);
    }
  }
}

TEST(SumBlocks, ABlockOfOneOrOfAllGivesTheSumsOfOneLevel) {
  EXPECT_EQ((expected_sum<bfloat16, float>(0, 1)), (expected_sum<bfloat16, float>(0)));
  EXPECT_EQ((expected_sum<bfloat16, float>(0, micro_batches)), (expected_sum<bfloat16, float>(0)));
}

TEST(SumBlocks, TellsOfEachGradientWhereItGoes) {
  auto const words = [](Addition const& how) {
    return fmt::format("{}{}{}{}", how.partial ? "partial" : "total", how.begins ? " begins" : "",
                       how.ends ? " ends" : "", how.final ? " final" : "");
  };
  std::vector<std::string> all;
  for (std::int64_t g = 0; g < 5; ++g) {
    all.push_back(words(SumBlocks{2}.addition(g, g == 4)));
  }
  EXPECT_THAT(all, testing::ElementsAre("total begins", "total", "partial begins", "partial ends",
                                        "partial begins ends final"));
  EXPECT_EQ(words(SumBlocks{}.addition(0, false)), "total begins");
  EXPECT_EQ(words(SumBlocks{}.addition(7, true)), "total final");
}

TEST(GradientAccumulator, WritesAStepsSumsOnceWhereAllRoundsOfALayerOrABlockComeTogether) {
  for (bool const of_a_block : {false, true}) {
    for (std::int64_t const chunks : {1, 3, 100}) {
      GradientFixture<bfloat16> gradients{
          {.subgroup_chunks = chunks, .in_layers = true, .of_a_block = of_a_block}};
      gradients.step();
      EXPECT_EQ(gradients.accumulated().keys_of(Call::create), gradients.descending());
      EXPECT_EQ(gradients.accumulated().keys_of(Call::commit), gradients.descending());
      EXPECT_THAT(gradients.accumulated().keys_of(Call::fetch), testing::IsEmpty());
    }
  }
}

TEST(GradientAccumulator, KeepsSumsOfAWholeBlockBetweenItsRounds) {
  GradientFixture<float> gradients{{.in_layers = true, .of_a_block = true}};
  std::int64_t chunks = 0;
  for (int const layer : {1, 2, 3}) {
    chunks += gradients.map().chunks(layer, gradients.rank()).count;
  }
  for (int const layer : {0, 4}) {
    chunks = std::max(chunks, gradients.map().chunks(layer, gradients.rank()).count);
  }
  EXPECT_EQ(GradientSums<float>::block_bytes(gradients.map(), gradients.rank(), 4),
            chunks * chunk_elements * 4);
}

TEST(GradientAccumulator, RefusesALayerThatIsNotTheNextOfItsBlock) {
  GradientFixture<float> gradients{{.in_layers = true, .of_a_block = true},
                                   mpi::Communicator::self()};
  gradients->begin_step();
  gradients->begin_rounds_in_layers(2);
  for (int const layer : {4, 4, 3, 2}) {
    gradients.bring(layer, gradient_of<float>(0, layer));
  }
  EXPECT_THROW((void)gradients->add(2, gradient_of<float>(1, 2)), PreconditionError);
}

TEST(GradientAccumulator, RefusesRoundsInLayersWithoutMemoryBetweenThem) {
  GradientFixture<float> gradients{{}, mpi::Communicator::self()};
  gradients->begin_step();
  EXPECT_THROW(gradients->begin_rounds_in_layers(2), PreconditionError);
  EXPECT_NO_THROW(gradients->begin_rounds_in_layers(1));
}

// What loss scaling looks for: an overflow of any rank reaches every rank's norm, also where the
// sum itself has not left the range.
TEST(GradientAccumulator, AnInfiniteFloat16GradientMakesTheNormNotFinite) {
  for (bool const fp32 : {true, false}) {
    GradientFixture<float16> gradients{{.fp32 = fp32}};
    gradients.step();
    EXPECT_TRUE(std::isfinite(gradients->norm()));
    gradients.round(1, true, [](int layer) {
      auto gradient = gradient_of<float16>(0, layer);
      gradient[0] = layer == 1 ? to_fp16(65520.0F) : gradient[0];
      return gradient;
    });
    EXPECT_FALSE(std::isfinite(gradients->norm()));
  }
}

TEST(GradientAccumulator, ANewStepForgetsTheOneBefore) {
  for (bool const flush : {false, true}) {
    GradientFixture<float> gradients{{.flush = flush, .in_memory = 2}};
    gradients.step();
    EXPECT_GT(gradients->norm(), 0.0);
    gradients->begin_step();
    gradients.round(
        1, true, [](int layer) { return std::vector<float>(gradient_of<float>(0, layer).size()); });
    EXPECT_EQ(gradients->norm(), 0.0);
    EXPECT_THAT(gradients.shard<float>(), testing::Each(0.0F));
    gradients.step();
    EXPECT_EQ(gradients.shard<float>(), gradients.expected_shard<float>());
  }
}

TEST(GradientAccumulator, FetchesAndWritesEachSubgroupOnceARoundFromTheLastOn) {
  GradientFixture<bfloat16> gradients{{.subgroup_chunks = 3}};
  auto const order = gradients.descending();
  auto const gradient = [&](int layer) { return gradient_of<bfloat16>(0, layer); };
  gradients->begin_step();
  gradients.round(1, false, gradient);
  EXPECT_EQ(gradients.accumulated().keys_of(Call::create), order);
  EXPECT_EQ(gradients.accumulated().keys_of(Call::commit), order);
  EXPECT_THAT(gradients.accumulated().keys_of(Call::fetch), testing::IsEmpty());
  gradients.accumulated().forget_events();
  gradients.round(1, true, gradient);
  EXPECT_EQ(gradients.accumulated().keys_of(Call::fetch), order);
  EXPECT_EQ(gradients.accumulated().keys_of(Call::commit), order);
  EXPECT_EQ(gradients.accumulated().passes(), 2);
  gradients.shard<float>();
  EXPECT_EQ(gradients.accumulated().passes(), 3);
}

// What the update will read in FP32 needs no 16-bit version.
TEST(GradientAccumulator, FlushWritesFp32InTheLastRoundAndNothingElse) {
  GradientFixture<bfloat16> gradients{{.fp32 = false, .flush = true, .subgroup_chunks = 3}};
  auto const order = gradients.descending();
  auto const gradient = [&](int layer) { return gradient_of<bfloat16>(0, layer); };
  gradients->begin_step();
  gradients.round(1, false, gradient);
  EXPECT_THAT(gradients.flushed().events(), testing::IsEmpty());
  gradients.accumulated().forget_events();
  gradients.round(1, true, gradient);
  EXPECT_THAT(gradients.accumulated().keys_of(Call::commit), testing::IsEmpty());
  EXPECT_EQ(gradients.flushed().keys_of(Call::create), order);
  EXPECT_EQ(gradients.flushed().keys_of(Call::commit), order);
  gradients.shard<float>();
  EXPECT_EQ(gradients.accumulated().traffic().misses, std::ssize(order));
  EXPECT_EQ(gradients.flushed().traffic().misses, std::ssize(order));
}

TEST(GradientAccumulator, RefusesAGradientFromAnIdleRankAndNoneFromAnActiveOne) {
  GradientFixture<float> gradients{{}};
  gradients->begin_round(1, true);
  auto const wrong =
      gradients.rank() == 0 ? std::vector<float>{} : gradient_of<float>(0, layers - 1);
  EXPECT_THROW(gradients->add(layers - 1, wrong), PreconditionError);
}

TEST(GradientAccumulator, RefusesLayersOutOfOrderAndRoundsThatAreNotComplete) {
  GradientFixture<float> gradients{{}, mpi::Communicator::self()};
  auto const gradient = gradient_of<float>(0, 1);
  EXPECT_THROW(gradients->add(1, gradient), PreconditionError);  // no round has begun
  EXPECT_THROW(gradients->begin_round(0, false), PreconditionError);
  EXPECT_THROW(gradients->begin_round(2, false), PreconditionError);
  gradients->begin_round(1, true);
  EXPECT_THROW(gradients->add(1, gradient), PreconditionError);
  EXPECT_THROW(static_cast<void>(gradients->norm()), PreconditionError);
  EXPECT_THROW(gradients->end_round(), PreconditionError);
  EXPECT_THROW(gradients->begin_round(1, true), PreconditionError);
}

}  // namespace
}  // namespace offstage::update
