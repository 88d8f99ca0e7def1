#include "base/state_layout.hpp"

#include <gtest/gtest.h>

#include "base/chunk.hpp"
#include "base/error.hpp"

namespace offstage {
namespace {

StateLayout eight_bits() {
  return StateLayout{{{"parameter", PlaneType::fp32},
                      {"momentum", PlaneType::signed8},
                      {"variance", PlaneType::unsigned8},
                      {"momentum_scale", PlaneType::fp32, scale_block},
                      {"variance_scale", PlaneType::fp32, scale_block}}};
}

TEST(StateLayout, PlanesFollowEachOther) {
  StateLayout const layout = adamw_layout();
  EXPECT_EQ(layout.plane_offset(0, 8192), 0);
  EXPECT_EQ(layout.plane_offset(1, 8192), 4 * 8192);
  EXPECT_EQ(layout.plane_offset(2, 8192), 8 * 8192);
  EXPECT_EQ(layout.bytes(8192), 12 * 8192);
  EXPECT_EQ(layout.bytes_per_element(), 12.0);
  EXPECT_EQ(format_bytes_per_element(layout), "12");
}

// 4096 elements have 16384 bytes of the parameter, 4096 of each moment, 16 scales of each.
TEST(StateLayout, ScalesAreOnePerBlockAndPlanesWholeStorageBlocks) {
  StateLayout const layout = eight_bits();
  EXPECT_EQ(layout.plane_offset(1, chunk_elements), 16384);
  EXPECT_EQ(layout.plane_offset(2, chunk_elements), 20480);
  EXPECT_EQ(layout.plane_offset(3, chunk_elements), 24576);
  EXPECT_EQ(layout.plane_bytes(3, chunk_elements), 64);
  EXPECT_EQ(layout.padded_bytes(3, chunk_elements), 4096);
  EXPECT_EQ(layout.plane_offset(4, chunk_elements), 28672);
  EXPECT_EQ(layout.bytes(chunk_elements), 32768);
  EXPECT_EQ(layout.bytes(64 * chunk_elements), 64 * (24576 + 128));
  EXPECT_EQ(format_bytes_per_element(layout), "6.03");
}

TEST(StateLayout, LowHalvesTakeTwoBytes) {
  StateLayout const layout{{{"parameter", PlaneType::low16}, {"momentum", PlaneType::bf16}}};
  EXPECT_EQ(layout.bytes_per_element(), 4.0);
  EXPECT_EQ(layout.plane_offset(1, chunk_elements), 2 * chunk_elements);
}

TEST(StateLayout, NeedsTheParameterFirst) {
  EXPECT_THROW(StateLayout{{}}, PreconditionError);
  EXPECT_THROW((StateLayout{{{"momentum", PlaneType::fp32}}}), PreconditionError);
  EXPECT_THROW((StateLayout{{{"parameter", PlaneType::fp32, scale_block}}}), PreconditionError);
  EXPECT_THROW(
      (StateLayout{{{"parameter", PlaneType::fp32}, {"momentum_scale", PlaneType::fp32, 100}}}),
      PreconditionError);
}

TEST(StateLayout, EqualsWhatHasTheSamePlanes) {
  EXPECT_EQ(adamw_layout(), adamw_layout());
  EXPECT_NE(adamw_layout(), eight_bits());
}

}  // namespace
}  // namespace offstage
