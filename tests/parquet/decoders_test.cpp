#include "parquet/decoders.hpp"

#include <gtest/gtest.h>

#include <array>

#include "parquet/damage.hpp"
#include "parquet/thrift.hpp"
#include "parquet/unpack.hpp"

namespace offstage::parquet {
namespace {

std::vector<std::byte> bytes_of(std::vector<int> const& octets) {
  std::vector<std::byte> bytes;
  for (int const octet : octets) {
    bytes.push_back(static_cast<std::byte>(octet));
  }
  return bytes;
}

// The example of the format's description: 0 to 7 in three bits.
TEST(RunLengths, GiveTheExampleOfTheFormat) {
  auto const bytes = bytes_of({0x03, 0x88, 0xC6, 0xFA, 0x0A, 0x05});
  RunLengths numbers{bytes, 3};
  for (std::uint32_t i = 0; i < 8; ++i) {
    EXPECT_EQ(numbers.next(), i);
  }
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(numbers.next(), 5U);  // a run of five
  }
  EXPECT_THROW(static_cast<void>(numbers.next()), Damage);
}

// Both examples of the format's description: 1 to 5, and then numbers that ascend unevenly.
TEST(Differences, GiveTheExamplesOfTheFormat) {
  // Blocks of 128 in 4 parts, 5 values from 1 on, differences of 1 in no bits.
  auto const even = bytes_of({0x80, 0x01, 0x04, 0x05, 0x02, 0x02, 0, 0, 0, 0});
  Differences numbers{even, 5};
  for (std::int64_t i = 1; i <= 5; ++i) {
    EXPECT_EQ(numbers.next(), i);
  }
  EXPECT_EQ(numbers.left(), 0U);
  EXPECT_EQ(numbers.end(), even.size());
  // 7, 5, 3, 1, 2, 3, 4, 5: differences -2 and 1, which are 0 and 3 above the least, in two bits.
  auto const uneven =
      bytes_of({0x80, 0x01, 0x04, 0x08, 0x0E, 0x03, 2, 0, 0, 0, 0xC0, 0x3F, 0, 0, 0, 0, 0, 0});
  Differences others{uneven, 8};
  for (std::int64_t const wanted : {7, 5, 3, 1, 2, 3, 4, 5}) {
    EXPECT_EQ(others.next(), wanted);
  }
  EXPECT_EQ(others.end(), uneven.size());
  EXPECT_THROW(static_cast<void>(others.next()), Damage);
  EXPECT_THROW((Differences{uneven, 7}), Damage) << "more values than the page has";
}

TEST(Snappy, UnpacksLiteralsAndCopiesThatOverlap) {
  // "abcabcabc!": a literal of three, a copy of six bytes from three before, a literal.
  auto const packed = bytes_of({10, 2 << 2, 'a', 'b', 'c', (6 - 4) << 2 | 1, 3, 0, '!'});
  std::array<std::byte, 10> out{};
  unpack_snappy(packed, out);
  EXPECT_EQ((std::string_view{reinterpret_cast<char const*>(out.data()), out.size()}),
            "abcabcabc!");
  auto wrong = packed;
  wrong[6] = std::byte{4};  // before the first byte
  EXPECT_THROW(unpack_snappy(wrong, out), Damage);
  EXPECT_THROW(unpack_snappy(std::span{packed}.first(8), out), Damage);
}

TEST(Thrift, RefusesStructuresInTooManyOthers) {
  std::vector<std::byte> const deep(200, std::byte{0x1C});  // field 1, a structure
  Thrift in{deep};
  EXPECT_THROW(in.structure([](Thrift::Field const&) { return false; }), Damage);
}

}  // namespace
}  // namespace offstage::parquet
