#include "train/memory/memory_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace offstage::train {
namespace {

using testing::HasSubstr;

/// Ten subgroups of 4096, two of them cached, four gradients in memory; a copy of parameters on
/// storage.
MemoryFacts facts() {
  MemoryFacts facts;
  facts.plan.subgroup_elements = 4096;
  facts.plan.subgroups = 10;
  facts.plan.buffers = 3;
  facts.plan.cached = 2;
  facts.plan.gradient_buffers = 3;
  facts.plan.gradients_cached = 4;
  facts.plan.gradients = 7 * 4096 * 2;
  facts.plan.parameters = 3 * 4096 * 2;
  facts.plan.state = 5 * 4096 * 12;
  facts.device = {.working_copy = 1000,
                  .model = 2000,
                  .gradient = 300,
                  .chunk_buffers = 40,
                  .held = 5,
                  .rank_link = 6};
  facts.shard_elements = 10 * 4096;
  facts.gradient_bytes = 2;
  facts.parameter_bytes = 2;
  facts.spare_slots = 8;
  return facts;
}

config::RunConfig on_storage() {
  config::RunConfig config;
  config.numerics.dtype = DType::bf16;
  config.parameter_home = parameters::Home::storage;
  return config;
}

TEST(MemoryRows, SayWhatLivesWhere) {
  auto const rows = memory_rows(on_storage(), facts());
  ASSERT_EQ(rows.size(), 7U);
  EXPECT_EQ(rows[0].what, "16-bit parameters");
  EXPECT_EQ(rows[0].device, 1000);
  EXPECT_EQ(rows[0].host, 3 * 4096 * 2);
  EXPECT_EQ(rows[0].storage, 10 * 4096 * 2);
  EXPECT_EQ(rows[1].device, 2000);
  EXPECT_EQ(rows[2].device, 305);
  EXPECT_EQ(rows[2].host, 7 * 4096 * 2);
  EXPECT_EQ(rows[2].storage, 6 * 4096 * 2) << "those that spill";
  EXPECT_EQ(rows[3].host, 5 * 4096 * 12);
  EXPECT_EQ(rows[3].storage, 8 * 4096 * 12);
  EXPECT_EQ(rows[4].host, 0);
  EXPECT_EQ(rows[4].storage, 8 * 4096 * 12);
  EXPECT_EQ(rows[5].device, 40);
  EXPECT_EQ(rows[6].what, "NCCL's buffers");
  EXPECT_EQ(rows[6].device, 6);
}

TEST(MemoryRows, HaveAllGradientsOnStorageInFp32IfTheyAreFlushed) {
  auto config = on_storage();
  config.storage.flush_fp32 = true;
  config.paths.emplace_back();
  auto here = facts();
  here.plan.gradients_cached = here.plan.subgroups;
  EXPECT_EQ(memory_rows(config, here)[2].storage, 10 * 4096 * 4);
}

TEST(MemoryRows, LeaveOutWhatTakesNothing) {
  auto config = on_storage();
  config.parameter_home = parameters::Home::device;
  config.numerics.dtype = DType::fp32;
  auto here = facts();
  here.plan.parameters = 0;
  here.plan.cached = 10;
  here.plan.gradient_buffers = 0;
  here.plan.spares = 4;
  here.plan.state = 14 * 4096 * 12;
  here.spare_slots = 0;
  here.device.chunk_buffers = 0;
  here.device.rank_link = 0;
  auto const rows = memory_rows(config, here);
  ASSERT_EQ(rows.size(), 5U);
  EXPECT_EQ(rows[0].what, "parameters");
  EXPECT_EQ(rows[2].storage, 0);
  EXPECT_EQ(rows[3].host, 10 * 4096 * 12);
  EXPECT_EQ(rows[3].storage, 0);
  EXPECT_EQ(rows[4].host, 4 * 4096 * 12) << "second versions in host memory";
}

TEST(MemoryTable, AddsUpAndSaysTheLimits) {
  auto const table = memory_table({{.what = "one", .device = KiB, .host = 2 * KiB},
                                   {.what = "two", .device = 3 * KiB, .storage = 5 * KiB}},
                                  {.device = 8 * KiB, .host = 0});
  ASSERT_EQ(table.size(), 5U);
  EXPECT_THAT(table[0], HasSubstr("memory, per rank"));
  EXPECT_EQ(table[1], "  one                            1.00 KiB     2.00 KiB            -");
  EXPECT_EQ(table[3], "  together                       4.00 KiB     2.00 KiB     5.00 KiB");
  EXPECT_EQ(table[4], "  limit                          8.00 KiB         none      by path");
}

}  // namespace
}  // namespace offstage::train
