#include "plan/memory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/chunk.hpp"
#include "base/error.hpp"

namespace offstage::plan {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

constexpr std::int64_t mebi = 1 << 20;

/// 16 Mi parameters a rank, gradients in FP32: 64 MiB of gradients, 192 MiB of state.
MemoryDemand demand() {
  return {.shard_elements = 16 * mebi,
          .ranks_per_node = 1,
          .gradient_bytes_per_element = 4,
          .exchange_bytes = 0,
          .reserve_bytes = 0,
          .subgroup_elements = mebi,
          .subgroup_is_default = false,
          .paths = 1,
          .most_cache = 0,
          .host_memory = GiB};
}

std::string usage_error(MemoryDemand const& wanted) {
  try {
    (void)plan_memory(wanted);
  } catch (UsageError const& error) {
    return error.what();
  }
  return "no UsageError";
}

TEST(PlanMemory, StateInHostMemoryNeedsTwelveBytesPerParameter) {
  auto wanted = demand();
  wanted.paths = 0;
  wanted.host_memory = 256 * MiB;
  auto const plan = plan_memory(wanted);
  EXPECT_EQ(plan.buffers, 0);
  EXPECT_EQ(plan.gradients, 64 * MiB);
  EXPECT_EQ(plan.state, 192 * MiB);
  EXPECT_EQ(plan.node_total, 256 * MiB);
}

// 4 + 2 + 2 bytes; with the scales of 8 bits 4 + 2 * (1 + 4 / 256), in whole storage blocks of each
// subgroup.
TEST(PlanMemory, StateTakesWhatItsLayoutSays) {
  auto wanted = demand();
  wanted.paths = 0;
  wanted.host_memory = 256 * MiB;
  wanted.state = StateLayout{{{"parameter", PlaneType::fp32},
                              {"momentum", PlaneType::bf16},
                              {"variance", PlaneType::bf16}}};
  EXPECT_EQ(plan_memory(wanted).state, 128 * MiB);
  wanted.state = StateLayout{{{"parameter", PlaneType::fp32},
                              {"momentum", PlaneType::signed8},
                              {"momentum_scale", PlaneType::fp32, scale_block}}};
  wanted.shard_elements = mebi + chunk_elements;
  EXPECT_EQ(plan_memory(wanted).state, 5 * mebi + mebi / 64 + 5 * chunk_elements + plane_alignment);
}

TEST(PlanMemory, StateThatIsResidentOnTheDeviceTakesNoHostMemory) {
  auto wanted = demand();
  wanted.paths = 0;
  wanted.host_memory = 256 * MiB;
  wanted.resident_elements = 4 * mebi;
  auto const plan = plan_memory(wanted);
  EXPECT_EQ(plan.gradients, 64 * MiB) << "gradients come by way of the host all the same";
  EXPECT_EQ(plan.state, 144 * MiB);
  EXPECT_EQ(plan.subgroups, 12);
  EXPECT_EQ(plan.gradients_cached, 16);
}

TEST(PlanMemory, ActivationsInHostMemoryComeBeforeAllThatMaySpill) {
  auto wanted = demand();
  auto const without = plan_memory(wanted);
  wanted.activation_bytes = 100 * MiB;
  wanted.host_memory += 100 * MiB;
  auto plan = plan_memory(wanted);
  EXPECT_EQ(plan.activations, 100 * MiB);
  EXPECT_EQ(plan.state, without.state);
  EXPECT_EQ(plan.gradients, without.gradients);
  EXPECT_EQ(plan.node_total, without.node_total + 100 * MiB);
  wanted.paths = 0;
  wanted.host_memory = (256 + 100) * MiB;
  EXPECT_EQ(plan_memory(wanted).node_total, wanted.host_memory);
  wanted.host_memory -= 1;
  EXPECT_THAT(usage_error(wanted), HasSubstr(", activations 100 MiB (train.activations)"));
}

TEST(PlanMemory, ActivationsThatMayGoToStorageTakeTwoBuffersAtLeastAndComeBeforeTheState) {
  auto wanted = demand();
  wanted.most_cache = -1;
  wanted.activation_extents = 10;
  wanted.activation_extent = 10 * MiB;
  wanted.activation_buffers = 4;
  auto plan = plan_memory(wanted);
  EXPECT_EQ(plan.activations_cached, 10) << "all stay";
  EXPECT_EQ(plan.activations, 100 * MiB);
  EXPECT_EQ(plan.cached, 16);
  // Three state buffers of 12 MiB, three of gradients of 4, two of activations.
  Bytes const least = (36 + 12 + 20) * MiB;
  wanted.host_memory = least;
  plan = plan_memory(wanted);
  EXPECT_EQ(plan.activation_buffers, 2);
  EXPECT_EQ(plan.activations_cached, 0);
  EXPECT_EQ(plan.activations, 20 * MiB);
  EXPECT_EQ(plan.node_total, least);
  // All gradients, and then half of the activations: four buffers and one that stays.
  wanted.host_memory = (36 + 64 + 50) * MiB;
  plan = plan_memory(wanted);
  EXPECT_EQ(plan.gradient_buffers, 0);
  EXPECT_EQ(plan.activation_buffers, 4);
  EXPECT_EQ(plan.activations_cached, 1);
  EXPECT_EQ(plan.activations, 50 * MiB);
  EXPECT_EQ(plan.cached, 0);
  wanted.host_memory = least - 1;
  EXPECT_THAT(usage_error(wanted), HasSubstr("train.activations"));
  wanted.paths = 0;
  EXPECT_THROW((void)plan_memory(wanted), PreconditionError);
}

TEST(PlanMemory, AllOfItMayBeResident) {
  for (std::int64_t const paths : {0, 1}) {
    auto wanted = demand();
    wanted.paths = paths;
    wanted.resident_elements = wanted.shard_elements;
    auto const plan = plan_memory(wanted);
    EXPECT_EQ(plan.state, 0);
    EXPECT_EQ(plan.subgroups, 0);
    EXPECT_EQ(plan.buffers, 0);
    EXPECT_EQ(plan.gradient_buffers, 0);
    EXPECT_EQ(plan.gradients_cached, 16);
  }
}

TEST(PlanMemory, GradientsOfResidentSubgroupsSpillToo) {
  auto wanted = demand();
  wanted.resident_elements = 8 * mebi;
  wanted.host_memory = 60 * MiB;  // three buffers of the state, and six places for gradients
  auto const plan = plan_memory(wanted);
  EXPECT_EQ(plan.gradient_buffers, 3);
  EXPECT_EQ(plan.gradients_cached, 3);
}

TEST(PlanMemory, StateThatDoesNotFitSendsTheUserToStorage) {
  auto wanted = demand();
  wanted.paths = 0;
  wanted.host_memory = 256 * MiB - 1;
  EXPECT_THAT(usage_error(wanted), AllOf(HasSubstr("tiers.host-memory="), HasSubstr("192 MiB"),
                                         HasSubstr("64.0 MiB"), HasSubstr("tiers.path")));
}

TEST(PlanMemory, StorageTakesTwoBuffersAndTwoPerPathWhereTheyFitAndThreeAtLeast) {
  auto wanted = demand();
  wanted.host_memory = (64 + 4 * 12) * MiB;
  EXPECT_EQ(plan_memory(wanted).buffers, 4);
  EXPECT_EQ(plan_memory(wanted).state, 48 * MiB);
  wanted.host_memory -= 1;
  EXPECT_EQ(plan_memory(wanted).buffers, 3);
  wanted.host_memory = (64 + 3 * 12) * MiB;
  EXPECT_EQ(plan_memory(wanted).buffers, 3);
  EXPECT_EQ(plan_memory(wanted).node_total, wanted.host_memory);
  wanted.paths = 3;
  wanted.host_memory = GiB;
  EXPECT_EQ(plan_memory(wanted).buffers, 8);
}

// 256 subgroups; nine buffers of 0.75 MiB for four paths, and gradients of 64 MiB.
TEST(PlanMemory, BuffersThatKeepSeveralPathsBusyComeBeforeGradients) {
  auto wanted = demand();
  wanted.paths = 4;
  wanted.subgroup_elements = mebi / 16;
  Bytes const extent = 12 * wanted.subgroup_elements;
  wanted.host_memory = 9 * extent + 64 * MiB;
  EXPECT_EQ(plan_memory(wanted).buffers, 9);
  EXPECT_EQ(plan_memory(wanted).gradient_buffers, 0);
  wanted.host_memory -= 1;
  EXPECT_EQ(plan_memory(wanted).buffers, 9);
  EXPECT_EQ(plan_memory(wanted).gradients_cached, 252) << "and three buffers of theirs";
  wanted.host_memory = 6 * extent;  // three of gradients take as much as one of the state
  EXPECT_EQ(plan_memory(wanted).buffers, 5);
  EXPECT_EQ(plan_memory(wanted).gradients_cached, 0);
  wanted.ranks_per_node = 4;  // three buffers of each rank are twelve
  wanted.host_memory = 4 * (3 * extent + 64 * MiB);
  EXPECT_EQ(plan_memory(wanted).buffers, 3);
  EXPECT_EQ(plan_memory(wanted).gradient_buffers, 0);
}

TEST(PlanMemory, FewSubgroupsHaveNoBuffersThatMakeGradientsSpill) {
  auto wanted = demand();  // 16 subgroups
  wanted.paths = 4;
  wanted.host_memory = (36 + 64) * MiB;
  EXPECT_EQ(plan_memory(wanted).buffers, 3);
  EXPECT_EQ(plan_memory(wanted).gradient_buffers, 0);
}

TEST(PlanMemory, NoMoreBuffersThanSubgroups) {
  auto wanted = demand();
  wanted.subgroup_elements = 8 * mebi;
  auto const plan = plan_memory(wanted);
  EXPECT_EQ(plan.subgroups, 2);
  EXPECT_EQ(plan.buffers, 2);
  EXPECT_EQ(plan.state, 192 * MiB);
}

TEST(PlanMemory, GradientsThatDoNotFitSpillButForThreeBuffersAndWhatFits) {
  auto wanted = demand();
  wanted.most_cache = -1;
  wanted.host_memory = (64 + 3 * 12) * MiB;
  EXPECT_EQ(plan_memory(wanted).gradient_buffers, 0);
  EXPECT_EQ(plan_memory(wanted).gradients_cached, 16);
  wanted.host_memory -= 1;  // one of 16 extents leaves, and three places become buffers
  auto plan = plan_memory(wanted);
  EXPECT_EQ(plan.gradient_buffers, 3);
  EXPECT_EQ(plan.gradients_cached, 12);
  EXPECT_EQ(plan.gradients, 60 * MiB);
  EXPECT_EQ(plan.buffers, 3);
  EXPECT_EQ(plan.cached, 0);
  wanted.host_memory = (3 * 4 + 3 * 12) * MiB;
  plan = plan_memory(wanted);
  EXPECT_EQ(plan.gradient_buffers, 3);
  EXPECT_EQ(plan.gradients_cached, 0);
  EXPECT_EQ(plan.node_total, wanted.host_memory);
}

TEST(PlanMemory, GradientsFlushedInFp32NeedRoomForAllOfThemAndThreeBuffers) {
  auto wanted = demand();
  wanted.gradient_bytes_per_element = 2;
  wanted.flush_fp32 = true;
  wanted.host_memory = (32 + 3 * 4 + 3 * 12) * MiB;
  auto const plan = plan_memory(wanted);
  EXPECT_EQ(plan.gradient_buffers, 3);
  EXPECT_EQ(plan.gradients_cached, 16);
  EXPECT_EQ(plan.gradients, 44 * MiB);
  EXPECT_EQ(plan.node_total, wanted.host_memory);
  wanted.host_memory -= 1;
  EXPECT_THAT(usage_error(wanted),
              AllOf(HasSubstr("tiers.host-memory="), HasSubstr("gradients 44.0 MiB"),
                    HasSubstr("update.gradients=delayed")));
  wanted.flush_fp32 = false;
  EXPECT_NO_THROW((void)plan_memory(wanted));
  wanted.flush_fp32 = true;
  wanted.paths = 0;
  EXPECT_THROW((void)plan_memory(wanted), PreconditionError);
}

TEST(PlanMemory, TheCacheTakesWhatBuffersAndGradientsLeave) {
  auto wanted = demand();
  wanted.most_cache = -1;
  wanted.host_memory = (64 + (4 + 5) * 12) * MiB;
  auto plan = plan_memory(wanted);
  EXPECT_EQ(plan.buffers, 4);
  EXPECT_EQ(plan.cached, 5);
  EXPECT_EQ(plan.node_total, wanted.host_memory);
  wanted.host_memory -= 1;
  EXPECT_EQ(plan_memory(wanted).cached, 4);
}

TEST(PlanMemory, AllExtentsStayWhereThereIsAPlaceForEach) {
  auto wanted = demand();
  wanted.most_cache = -1;
  wanted.host_memory = (64 + 16 * 12) * MiB;
  auto plan = plan_memory(wanted);
  EXPECT_EQ(plan.subgroups, 16);
  EXPECT_EQ(plan.cached, 16);
  EXPECT_EQ(plan.state, 192 * MiB);
  wanted.host_memory -= 1;
  plan = plan_memory(wanted);
  EXPECT_EQ(plan.buffers + plan.cached, 15);
}

TEST(PlanMemory, TheCacheIsLimitedPerNode) {
  auto wanted = demand();
  wanted.ranks_per_node = 2;
  wanted.host_memory = 4 * GiB;
  wanted.most_cache = 2 * 3 * 12 * MiB;
  EXPECT_EQ(plan_memory(wanted).cached, 3);
  wanted.most_cache -= 1;
  EXPECT_EQ(plan_memory(wanted).cached, 2);
  wanted.most_cache = 0;
  EXPECT_EQ(plan_memory(wanted).cached, 0);
  wanted.shard_elements = 15 * mebi + mebi / 2;  // the last extent is half as large
  wanted.most_cache = 2 * 12 * wanted.shard_elements;
  EXPECT_EQ(plan_memory(wanted).cached, 16);
}

TEST(PlanMemory, ASubgroupThatTheUserChoseIsNotChanged) {
  auto wanted = demand();
  wanted.host_memory = (3 * 4 + 3 * 12) * MiB - 1;
  EXPECT_THAT(usage_error(wanted),
              AllOf(HasSubstr("tiers.host-memory="), HasSubstr("3 buffers"), HasSubstr("36.0 MiB"),
                    HasSubstr("12.0 MiB"), HasSubstr("update.subgroup-size=1048576"),
                    HasSubstr("lower update.subgroup-size")));
}

TEST(PlanMemory, ADefaultSubgroupIsHalvedUntilThreeBuffersOfStateAndGradientsFit) {
  auto wanted = demand();
  wanted.subgroup_is_default = true;
  wanted.subgroup_elements = 100'000'000;
  wanted.host_memory = (3 * 4 + 3 * 12) * MiB;
  auto const plan = plan_memory(wanted);
  EXPECT_EQ(plan.subgroup_elements, mebi);  // 16 Mi, the shard, halved four times
  EXPECT_EQ(plan.buffers, 3);
  wanted.host_memory = 3 * (4 + 12) * chunk_elements - 1;
  EXPECT_THAT(usage_error(wanted), Not(HasSubstr("lower update.subgroup-size")));
}

TEST(PlanMemory, ADefaultSubgroupLeavesEveryRankEnoughOfThemToSplitOverPaths) {
  auto wanted = demand();
  wanted.shard_elements = 512 * mebi;
  wanted.host_memory = 64 * GiB;
  wanted.subgroup_elements = 96 * mebi;
  wanted.subgroup_is_default = true;
  EXPECT_EQ(plan_memory(wanted).subgroups, 6) << "one path has nothing to split";
  wanted.paths = 2;
  EXPECT_EQ(plan_memory(wanted).subgroups, 32);
  EXPECT_EQ(plan_memory(wanted).subgroup_elements, 16 * mebi);
  wanted.ranks_per_node = 2;
  EXPECT_EQ(plan_memory(wanted).subgroups, 16);
  wanted.ranks_per_node = 8;
  EXPECT_EQ(plan_memory(wanted).subgroups, 8);
  wanted.shard_elements = 4096 * mebi;  // enough of them already
  wanted.host_memory = 640 * GiB;
  EXPECT_EQ(plan_memory(wanted).subgroup_elements, 96 * mebi);
  wanted.shard_elements = 5 * mebi;
  EXPECT_EQ(plan_memory(wanted).subgroup_elements, 2 * mebi)
      << "smaller ones cost more than they give";
  wanted.shard_elements = 512 * mebi;
  wanted.subgroup_is_default = false;
  EXPECT_EQ(plan_memory(wanted).subgroup_elements, 96 * mebi) << "what the user chose stands";
}

TEST(PlanMemory, TheReserveStaysFreeWhereASmallerSubgroupAllowsIt) {
  auto wanted = demand();
  wanted.reserve_bytes = 10 * MiB;
  wanted.subgroup_is_default = true;
  wanted.subgroup_elements = 2 * mebi;
  wanted.host_memory = (3 * 4 + 3 * 12 + 10) * MiB;
  auto const plan = plan_memory(wanted);
  EXPECT_EQ(plan.subgroup_elements, mebi);
  EXPECT_EQ(plan.node_total, wanted.host_memory - wanted.reserve_bytes);
  wanted.host_memory += (3 * 4 + 3 * 12) * MiB;
  EXPECT_EQ(plan_memory(wanted).subgroup_elements, 2 * mebi);
}

TEST(PlanMemory, AReserveWithoutRoomMakesNoTinySubgroups) {
  auto wanted = demand();
  wanted.subgroup_is_default = true;
  wanted.subgroup_elements = 2 * mebi;
  wanted.host_memory = GiB;
  wanted.reserve_bytes = GiB;  // not even with the smallest subgroups
  EXPECT_EQ(plan_memory(wanted).subgroup_elements, 2 * mebi);
}

TEST(PlanMemory, TheReserveYieldsToASubgroupThatTheUserChose) {
  auto wanted = demand();
  wanted.reserve_bytes = 10 * MiB;
  wanted.host_memory = (3 * 4 + 3 * 12) * MiB;
  EXPECT_EQ(plan_memory(wanted).subgroup_elements, mebi);
  EXPECT_EQ(plan_memory(wanted).buffers, 3);
  wanted.reserve_bytes = GiB;
  EXPECT_EQ(plan_memory(wanted).node_total, wanted.host_memory);
}

TEST(PlanMemory, SecondVersionsTakeWhatIsLeftBesideTheReserve) {
  auto wanted = demand();
  wanted.paths = 0;
  wanted.spares = true;
  wanted.reserve_bytes = 10 * MiB;
  wanted.host_memory = (64 + 192 + 40 + 10) * MiB;
  auto const plan = plan_memory(wanted);
  EXPECT_EQ(plan.spares, 3);
  EXPECT_EQ(plan.state, (192 + 3 * 12) * MiB);
  wanted.host_memory = GiB;
  EXPECT_EQ(plan_memory(wanted).spares, 16) << "one of each";
  wanted.host_memory = (64 + 192 + 10) * MiB;
  EXPECT_EQ(plan_memory(wanted).spares, 0);
}

TEST(PlanMemory, SubgroupsHoldWholeChunksAtLeastOneAndNoMoreThanTheShard) {
  auto wanted = demand();
  wanted.subgroup_elements = 3 * chunk_elements + 17;
  EXPECT_EQ(plan_memory(wanted).subgroup_elements, 3 * chunk_elements);
  wanted.subgroup_elements = 1;
  EXPECT_EQ(plan_memory(wanted).subgroup_elements, chunk_elements);
  wanted.subgroup_elements = 64 * mebi;
  EXPECT_EQ(plan_memory(wanted).subgroup_elements, 16 * mebi);
  wanted.shard_elements = 0;  // more ranks than chunks
  EXPECT_EQ(plan_memory(wanted).subgroup_elements, chunk_elements);
}

TEST(PlanMemory, TheLimitIsSharedByTheRanksOfANode) {
  auto wanted = demand();
  wanted.ranks_per_node = 4;
  wanted.host_memory = 4 * (64 + 3 * 12) * MiB;
  auto const plan = plan_memory(wanted);
  EXPECT_EQ(plan.buffers, 3);
  EXPECT_EQ(plan.node_total, wanted.host_memory);
}

TEST(PlanMemory, ExchangeBuffersCountWithTheGradients) {
  auto wanted = demand();
  wanted.exchange_bytes = 10 * MiB;
  wanted.gradient_bytes_per_element = 2;
  EXPECT_EQ(plan_memory(wanted).gradients, 42 * MiB);
}

TEST(PlanMemory, ParametersInHostMemoryComeBeforeEverythingThatCanGo) {
  auto wanted = demand();
  wanted.parameter_bytes_per_element = 2;
  auto const plan = plan_memory(wanted);
  EXPECT_EQ(plan.parameters, 32 * MiB);
  EXPECT_EQ(plan.parameter_buffers, 0);
  EXPECT_EQ(plan.node_total, plan.state + plan.gradients + 32 * MiB);
  wanted.host_memory =
      32 * MiB + 36 * MiB + 12 * MiB;  // three extents of state, three of gradients
  EXPECT_EQ(plan_memory(wanted).parameters, 32 * MiB);
  wanted.host_memory -= 1;
  EXPECT_THAT(usage_error(wanted),
              AllOf(HasSubstr("the parameters 32.0 MiB (parameters.home=host)"),
                    HasSubstr("or set parameters.home=storage")));
}

TEST(PlanMemory, ParametersThatANodeSharesCountOnceForAllOfItsRanks) {
  auto wanted = demand();
  wanted.parameter_bytes_per_element = 2;
  wanted.ranks_per_node = 4;
  wanted.host_memory = 8 * GiB;
  wanted.shared_parameters = 50 * mebi;
  auto const plan = plan_memory(wanted);
  EXPECT_EQ(plan.parameters, 25 * MiB) << "a quarter of 100 MiB";
  EXPECT_EQ(plan.node_total, 4 * (plan.state + plan.gradients) + 100 * MiB);
  wanted.host_memory = 100 * MiB;
  EXPECT_THAT(usage_error(wanted), AllOf(HasSubstr("the parameters 100 MiB (parameters.home=node)"),
                                         HasSubstr("set parameters.home=storage")));
  wanted.shared_parameters = -1;
  EXPECT_THROW((void)plan_memory(wanted), PreconditionError);
}

TEST(PlanMemory, ParametersOnStorageTakeAFewBuffers) {
  auto wanted = demand();
  wanted.parameter_bytes_per_element = 2;
  wanted.parameters_on_storage = true;
  wanted.parameter_buffers = 5;
  auto const plan = plan_memory(wanted);
  EXPECT_EQ(plan.parameter_buffers, 5);
  EXPECT_EQ(plan.parameters, 10 * MiB);
  wanted.host_memory = 6 * MiB + 36 * MiB + 12 * MiB;
  EXPECT_EQ(plan_memory(wanted).parameter_buffers, 3);
  EXPECT_EQ(plan_memory(wanted).parameters, 6 * MiB);
  wanted.host_memory -= 1;
  EXPECT_THAT(usage_error(wanted), HasSubstr("the parameters 6.00 MiB (parameters.home=storage)"));
  wanted.host_memory = GiB;
  wanted.paths = 0;
  EXPECT_THROW((void)plan_memory(wanted), PreconditionError);
}

TEST(PlanMemory, ParametersOfResidentSubgroupsCountWithTheOthers) {
  auto wanted = demand();
  wanted.resident_elements = 15 * mebi;
  wanted.parameter_bytes_per_element = 2;
  wanted.parameters_on_storage = true;
  wanted.parameter_buffers = 5;
  EXPECT_EQ(plan_memory(wanted).parameter_buffers, 5);
}

TEST(PlanMemory, WithoutPathsParametersInHostMemoryHaveToFitBesideTheState) {
  auto wanted = demand();
  wanted.paths = 0;
  wanted.parameter_bytes_per_element = 4;
  wanted.host_memory = 320 * MiB;
  EXPECT_EQ(plan_memory(wanted).node_total, 320 * MiB);
  wanted.host_memory -= 1;
  EXPECT_THAT(usage_error(wanted), HasSubstr("the parameters 64.0 MiB (parameters.home=host)"));
}

// Parameters of 32 MiB in host memory, three buffers of state, three of gradients, and an exchange.
TEST(PlanMemory, NamesKeysThatMakeTheRunFitAndNoOthers) {
  auto wanted = demand();
  wanted.parameter_bytes_per_element = 2;
  wanted.exchange_bytes = 20 * MiB;
  wanted.host_memory = 55 * MiB;  // less than 20 + 32 + 48 MiB
  EXPECT_THAT(usage_error(wanted), EndsWith("; raise it, or lower update.subgroup-size"));
  wanted.host_memory = 80 * MiB;
  EXPECT_THAT(usage_error(wanted), EndsWith("; raise it, or lower update.subgroup-size, or set "
                                            "parameters.home=storage"));
  wanted.host_memory = 40 * MiB;
  EXPECT_THAT(usage_error(wanted), EndsWith("; raise it, or lower update.subgroup-size and set "
                                            "parameters.home=storage"));
  wanted.host_memory = 20 * MiB;
  EXPECT_THAT(usage_error(wanted), EndsWith("; raise it"));
  wanted.paths = 0;
  EXPECT_THAT(usage_error(wanted), EndsWith("; raise it"));
  wanted.host_memory = 100 * MiB;
  EXPECT_THAT(usage_error(wanted), EndsWith("; raise it, or set tiers.path to a directory on "
                                            "local storage"));
  wanted.host_memory = 70 * MiB;
  EXPECT_THAT(usage_error(wanted),
              EndsWith("; raise it, or set tiers.path to a directory on local storage and lower "
                       "update.subgroup-size and set parameters.home=storage"));
}

TEST(PlanMemory, NeverPlansMoreThanTheLimitNorLess) {
  std::mt19937_64 random{5};
  // Numbers of every magnitude, up to the type's end.
  auto const any = [&](int most_bits) {
    auto const bits = random() % static_cast<std::uint64_t>(most_bits + 1);
    return static_cast<std::int64_t>(random() >> 1 >> (63 - bits));
  };
  auto const coin = [&] { return random() % 2 == 0; };
  int planned = 0;
  for (int round = 0; round < 100'000; ++round) {
    MemoryDemand wanted{.shard_elements = any(coin() ? 30 : 63),
                        .ranks_per_node = 1 + any(coin() ? 3 : 20),
                        .gradient_bytes_per_element = coin() ? 2 : 4,
                        .flush_fp32 = false,
                        .exchange_bytes = any(coin() ? 28 : 63),
                        .reserve_bytes = any(coin() ? 28 : 63),
                        .subgroup_elements = any(coin() ? 28 : 63),
                        .subgroup_is_default = coin(),
                        .paths = coin() ? any(2) : any(63),
                        .most_cache = coin() ? -1 : any(40),
                        .host_memory = any(coin() ? 40 : 63)};
    wanted.flush_fp32 = wanted.paths > 0 && coin();
    wanted.parameter_bytes_per_element = coin() ? 0 : 2 * any(1) + 2;
    wanted.parameters_on_storage = wanted.paths > 0 && coin();
    wanted.parameter_buffers = static_cast<int>(any(coin() ? 3 : 31));
    MemoryPlan plan;
    try {
      plan = plan_memory(wanted);
    } catch (UsageError const&) {
      continue;
    }
    ++planned;
    ASSERT_LE(plan.node_total, wanted.host_memory);
    ASSERT_EQ(plan.node_total,
              (plan.gradients + plan.state + plan.parameters) * wanted.ranks_per_node);
    ASSERT_GE(plan.gradients, wanted.exchange_bytes);
    if (wanted.parameter_bytes_per_element > 0 && wanted.parameters_on_storage) {
      ASSERT_GE(plan.parameter_buffers, std::min<std::int64_t>(3, plan.subgroups));
      ASSERT_LE(plan.parameter_buffers,
                std::min(plan.subgroups, std::max<std::int64_t>(3, wanted.parameter_buffers)));
    } else {
      ASSERT_EQ(plan.parameter_buffers, 0);
      ASSERT_EQ(plan.parameters, wanted.parameter_bytes_per_element * wanted.shard_elements);
    }
    ASSERT_GE(std::min({plan.state, plan.cached, plan.gradients_cached}), 0);
    ASSERT_LE(std::max({plan.cached, plan.gradients_cached}), plan.subgroups);
    ASSERT_EQ(plan.subgroup_elements % chunk_elements, 0);
    ASSERT_GE(plan.subgroup_elements, chunk_elements);
    ASSERT_GE(static_cast<__int128>(plan.subgroups) * plan.subgroup_elements,
              wanted.shard_elements);
    if (wanted.paths > 0) {
      ASSERT_GE(plan.buffers, std::min<std::int64_t>(3, plan.subgroups));
      ASSERT_LE(plan.buffers, std::min<std::int64_t>(2050, plan.subgroups));
    } else {
      ASSERT_EQ(plan.cached, plan.subgroups);
    }
    if (plan.gradients_cached < plan.subgroups || wanted.flush_fp32) {
      ASSERT_EQ(plan.gradient_buffers, std::min<std::int64_t>(3, plan.subgroups));
    } else {
      ASSERT_EQ(plan.gradient_buffers, 0);
    }
  }
  EXPECT_GT(planned, 10'000);
}

}  // namespace
}  // namespace offstage::plan
