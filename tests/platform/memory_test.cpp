#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/error.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "platform/memory/process_memory.hpp"

namespace offstage::memory {
namespace {

std::uintptr_t address_of(HugeBuffer const& buffer) {
  return reinterpret_cast<std::uintptr_t>(buffer.bytes().data());
}

TEST(HugeBuffer, IsZeroedAndAlignedForDirectIo) {
  for (Bytes const size : {Bytes{1}, 4 * KiB, 4 * KiB + 1, MiB, 2 * MiB, 3 * MiB + 5, 8 * MiB}) {
    HugeBuffer const buffer{size};
    ASSERT_EQ(buffer.size(), size);
    EXPECT_EQ(address_of(buffer) % static_cast<std::uintptr_t>(size >= 2 * MiB ? 2 * MiB : 4 * KiB),
              0U);
    EXPECT_TRUE(std::ranges::all_of(buffer.bytes(), [](std::byte b) { return b == std::byte{0}; }));
    std::memset(buffer.bytes().data(), 0xFF, static_cast<std::size_t>(size));
  }
}

TEST(HugeBuffer, ViewsHoldWholeElements) {
  HugeBuffer const buffer{4 * 100 + 3};
  EXPECT_EQ(buffer.as<float>().size(), 100U);
}

TEST(HugeBuffer, MovesWithoutCopiesAndLeavesTheSourceEmpty) {
  HugeBuffer first{MiB};
  auto const address = address_of(first);
  HugeBuffer second{std::move(first)};
  EXPECT_EQ(address_of(second), address);
  HugeBuffer third{4 * KiB};
  third = std::move(second);
  EXPECT_EQ(address_of(third), address);
  EXPECT_EQ(third.size(), MiB);
  third.reset();
  EXPECT_EQ(third.size(), 0);
  EXPECT_TRUE(third.bytes().empty());
}

TEST(HugeBuffer, NothingIsFineAndLessIsNot) {
  EXPECT_TRUE(HugeBuffer{0}.bytes().empty());
  EXPECT_THROW(HugeBuffer{-1}, PreconditionError);
}

TEST(HugeBuffer, SaysHowMuchIsNotToBeHad) {
  try {
    HugeBuffer const buffer{Bytes{1} << 56};
    FAIL() << "must throw";
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), ExitCode::other);
    EXPECT_STREQ(error.what(), "out of memory: cannot map 64.0 PiB");
  }
}

TEST(ProcessMemory, FollowsWhatIsAllocated) {
  Bytes const before = resident_bytes();
  EXPECT_GT(before, MiB);
  {
    HugeBuffer const buffer{64 * MiB};
    EXPECT_GE(resident_bytes(), before + 60 * MiB);
  }
  EXPECT_LT(resident_bytes(), before + 60 * MiB);
  EXPECT_GE(peak_resident_bytes(), before + 60 * MiB);
}

TEST(ProcessMemory, TheNodeHasSomeLeft) {
  EXPECT_GT(available_bytes(), 0);
  EXPECT_LT(available_bytes(), Bytes{1} << 50);
}

}  // namespace
}  // namespace offstage::memory
