#include "plan/memory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/chunk.hpp"
#include "base/error.hpp"

namespace offstage::plan {
namespace {

using testing::AllOf;
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
          .on_storage = true,
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
  wanted.on_storage = false;
  wanted.host_memory = 256 * MiB;
  auto const plan = plan_memory(wanted);
  EXPECT_EQ(plan.buffers, 0);
  EXPECT_EQ(plan.gradients, 64 * MiB);
  EXPECT_EQ(plan.state, 192 * MiB);
  EXPECT_EQ(plan.node_total, 256 * MiB);
}

TEST(PlanMemory, StateThatDoesNotFitSendsTheUserToStorage) {
  auto wanted = demand();
  wanted.on_storage = false;
  wanted.host_memory = 256 * MiB - 1;
  EXPECT_THAT(usage_error(wanted), AllOf(HasSubstr("tiers.host-memory="), HasSubstr("192 MiB"),
                                         HasSubstr("64.0 MiB"), HasSubstr("tiers.path")));
}

TEST(PlanMemory, StorageTakesFourBuffersWhereTheyFitAndThreeAtLeast) {
  auto wanted = demand();
  wanted.host_memory = (64 + 4 * 12) * MiB;
  EXPECT_EQ(plan_memory(wanted).buffers, 4);
  EXPECT_EQ(plan_memory(wanted).state, 48 * MiB);
  wanted.host_memory -= 1;
  EXPECT_EQ(plan_memory(wanted).buffers, 3);
  wanted.host_memory = (64 + 3 * 12) * MiB;
  EXPECT_EQ(plan_memory(wanted).buffers, 3);
  EXPECT_EQ(plan_memory(wanted).node_total, wanted.host_memory);
}

TEST(PlanMemory, ASubgroupThatTheUserChoseIsNotChanged) {
  auto wanted = demand();
  wanted.host_memory = (64 + 3 * 12) * MiB - 1;
  EXPECT_THAT(usage_error(wanted),
              AllOf(HasSubstr("tiers.host-memory="), HasSubstr("update.subgroup-size=1048576"),
                    HasSubstr("lower update.subgroup-size")));
}

TEST(PlanMemory, ADefaultSubgroupIsHalvedUntilThreeBuffersFit) {
  auto wanted = demand();
  wanted.subgroup_is_default = true;
  wanted.subgroup_elements = 100'000'000;
  wanted.host_memory = (64 + 3 * 12) * MiB;
  auto const plan = plan_memory(wanted);
  EXPECT_EQ(plan.subgroup_elements, mebi);  // 16 Mi, the shard, halved four times
  EXPECT_EQ(plan.buffers, 3);
  wanted.host_memory = 64 * MiB + 3 * 12 * chunk_elements - 1;
  EXPECT_THAT(usage_error(wanted), Not(HasSubstr("lower update.subgroup-size")));
}

TEST(PlanMemory, TheReserveStaysFreeWhereASmallerSubgroupAllowsIt) {
  auto wanted = demand();
  wanted.reserve_bytes = 10 * MiB;
  wanted.subgroup_is_default = true;
  wanted.subgroup_elements = 2 * mebi;
  wanted.host_memory = (64 + 3 * 12 + 10) * MiB;
  EXPECT_EQ(plan_memory(wanted).subgroup_elements, mebi);
  EXPECT_EQ(plan_memory(wanted).buffers, 3);
  wanted.host_memory += 12 * MiB;
  EXPECT_EQ(plan_memory(wanted).buffers, 4);
}

TEST(PlanMemory, TheReserveYieldsToASubgroupThatTheUserChose) {
  auto wanted = demand();
  wanted.reserve_bytes = 10 * MiB;
  wanted.host_memory = (64 + 3 * 12) * MiB;
  EXPECT_EQ(plan_memory(wanted).subgroup_elements, mebi);
  EXPECT_EQ(plan_memory(wanted).buffers, 3);
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

}  // namespace
}  // namespace offstage::plan
