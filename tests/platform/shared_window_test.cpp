#include "platform/mpi/shared_window.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <stdexcept>

#include "base/error.hpp"

namespace offstage::mpi {
namespace {

TEST(SharedWindow, IsTheSameZeroMemoryInEveryProcess) {
  auto const node = Communicator::world().split_by_node();
  Bytes const size = 3 * 64 + 5;
  SharedWindow const window{node, size};
  ASSERT_EQ(std::ssize(window.bytes()), size);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(window.bytes().data()) % 64, 0U);
  EXPECT_TRUE(std::ranges::all_of(window.bytes(), [](std::byte b) { return b == std::byte{0}; }));
  node.barrier();
  window.bytes()[static_cast<std::size_t>(node.rank())] = static_cast<std::byte>(node.rank() + 1);
  node.barrier();
  for (int r = 0; r < node.size(); ++r) {
    EXPECT_EQ(window.bytes()[static_cast<std::size_t>(r)], static_cast<std::byte>(r + 1));
  }
  node.barrier();
}

TEST(SharedWindow, AtomicsCountTheRanksTogether) {
  auto const node = Communicator::world().split_by_node();
  SharedWindow const window{node, 64};
  auto& count = *reinterpret_cast<std::atomic<std::uint32_t>*>(window.bytes().data());
  for (int i = 0; i < 10000; ++i) {
    count.fetch_add(1);
  }
  node.barrier();
  EXPECT_EQ(count, 10000U * static_cast<unsigned>(node.size()));
  node.barrier();
}

TEST(SharedWindow, TwoWindowsAreApart) {
  auto const node = Communicator::world().split_by_node();
  SharedWindow const first{node, 64};
  SharedWindow const second{node, 64};
  node.barrier();
  std::ranges::fill(first.bytes(), std::byte{1});
  node.barrier();
  EXPECT_EQ(second.bytes()[0], std::byte{0});
}

TEST(SharedWindow, MayBeEmpty) {
  auto const node = Communicator::world().split_by_node();
  SharedWindow const window{node, 0};
  EXPECT_TRUE(window.bytes().empty());
  EXPECT_THROW((SharedWindow{node, -1}), PreconditionError);
}

TEST(SharedWindow, ARankThatFailsAloneDoesNotWaitForTheOthers) {
  auto const node = Communicator::world().split_by_node();
  bool const first = node.rank() == 0;
  try {
    SharedWindow const window{node, 64};
    if (!first) {
      node.barrier();  // which the first rank comes to after its window's end
    }
    throw std::runtime_error{"now"};
  } catch (std::runtime_error const&) {
    if (first) {
      node.barrier();
    }
  }
  EXPECT_EQ(node.sum(1), node.size());
}

}  // namespace
}  // namespace offstage::mpi
