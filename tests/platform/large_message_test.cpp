// Messages beyond 2 GiB, where int counts end: each operation moves one such message from rank 0.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "platform/memory/huge_buffer.hpp"
#include "platform/memory/process_memory.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::mpi {
namespace {

constexpr Bytes large = 2 * GiB + 4 * KiB + 8;

/// One buffer a rank, 4.2 GiB on two, for all tests, because its pages take longer than a message:
/// rank 0 writes a number into every 64th KiB and the last word, the other rank finds them there.
class LargeMessage : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(comm_.size(), 2) << "for two ranks";
    auto const available = comm_.minimum(memory::available_bytes());
    if (buffer_.bytes().empty() && available < 3 * large) {
      GTEST_SKIP() << fmt::format("needs {} of free memory, {} are there", format_bytes(3 * large),
                                  format_bytes(available));
    }
    if (buffer_.bytes().empty()) {
      buffer_ = memory::HugeBuffer{large};
    }
    bool const sends = comm_.rank() == 0;
    for_each_mark([&](std::uint64_t& word, std::uint64_t mark) { word = sends ? mark : 0; });
  }
  static void TearDownTestSuite() { buffer_ = {}; }

  void expect_arrived() const {
    std::int64_t wrong = 0;
    for_each_mark([&](std::uint64_t word, std::uint64_t mark) { wrong += word == mark ? 0 : 1; });
    EXPECT_EQ(wrong, 0);
  }

  template <class Visit>
  void for_each_mark(Visit const& visit) const {
    auto const words = buffer_.as<std::uint64_t>();
    for (std::size_t i = 0; i < words.size(); i += 8192) {
      visit(words[i], i + 1);
    }
    visit(words.back(), 42);
  }

  Communicator comm_{Communicator::world()};
  static inline memory::HugeBuffer buffer_;
  std::array<Slice, 2> parts_{Slice{0, large}, Slice{large, 0}};
};

TEST_F(LargeMessage, Broadcast) {
  comm_.broadcast(buffer_.bytes(), 0);
  expect_arrived();
}

/// Each rank has a half, of whole pages, and with it the marks in it.
TEST_F(LargeMessage, AllGather) {
  constexpr auto half = static_cast<std::size_t>(large / (2 * page_bytes) * page_bytes);
  auto const whole = buffer_.bytes().first(2 * half);
  for_each_mark([&](std::uint64_t& word, std::uint64_t mark) { word = mark; });
  std::ranges::fill(whole.subspan(comm_.rank() == 0 ? half : 0, half), std::byte{0});
  comm_.all_gather(whole);
  expect_arrived();
}

TEST_F(LargeMessage, Gather) {
  bool const sends = comm_.rank() == 0;
  comm_.gather(sends ? buffer_.bytes() : std::span<std::byte>{}, buffer_.bytes(), parts_, 1);
  expect_arrived();
}

TEST_F(LargeMessage, AllToAll) {
  std::array<Slice, 2> const nothing{};
  std::array<Slice, 2> const to_one{Slice{}, Slice{0, large}};
  if (comm_.rank() == 0) {
    comm_.all_to_all(buffer_.bytes(), to_one, {}, nothing);
  } else {
    comm_.all_to_all({}, nothing, buffer_.bytes(), std::array<Slice, 2>{Slice{0, large}, Slice{}});
  }
  expect_arrived();
}

}  // namespace
}  // namespace offstage::mpi
