#include "data/megatron_index.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "formats.hpp"

namespace offstage::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

struct Read {
  MegatronIndex index;
  std::vector<std::int64_t> documents;
};

Read read(std::string const& bytes, Bytes data_bytes) {
  Read result;
  result.index = read_megatron_index(MemorySource{bytes}, data_bytes, [&](std::int64_t begin) {
    result.documents.push_back(begin);
  });
  return result;
}

std::string refusal(Index const& index, Bytes data_bytes) {
  return data_error([&] { (void)read(index.bytes(), data_bytes); });
}

TEST(MegatronIndex, ADocumentIsItsSequencesTogether) {
  Index index{{3, 1, 2, 5}};
  index.set_documents({0, 1, 3, 4});
  auto const found = read(index.bytes(), 22);
  EXPECT_EQ(found.index.type, TokenType::u16);
  EXPECT_EQ(found.index.tokens, 11);
  EXPECT_EQ(found.index.documents, 3);
  EXPECT_THAT(found.documents, ElementsAre(0, 3, 6));
}

TEST(MegatronIndex, DocumentsWithoutTokensAreLeftOut) {
  Index index{{0, 3, 0, 2, 0}};
  EXPECT_THAT(read(index.bytes(), 10).documents, ElementsAre(0, 3));
  index.set_documents({0, 0, 2, 2, 5, 5});
  EXPECT_THAT(read(index.bytes(), 10).documents, ElementsAre(0, 3));
}

TEST(MegatronIndex, IsReadInPiecesHoweverLongItIs) {
  std::vector<std::int32_t> lengths(100'000);
  std::iota(lengths.begin(), lengths.end(), 0);
  auto const tokens = std::int64_t{100'000} * 99'999 / 2;
  auto const found = read(Index{lengths}.bytes(), 2 * tokens);
  EXPECT_EQ(found.index.tokens, tokens);
  ASSERT_EQ(found.documents.size(), 99'999U);  // the first one is empty
  EXPECT_EQ(found.documents.back(), tokens - 99'999);
}

TEST(MegatronIndex, KnowsEveryTypeOfWholeNumbers) {
  std::vector<std::pair<int, TokenType>> const known{{1, TokenType::u8},  {2, TokenType::i8},
                                                     {3, TokenType::i16}, {4, TokenType::i32},
                                                     {5, TokenType::i64}, {8, TokenType::u16}};
  for (auto const& [code, type] : known) {
    Index index{{2, 3}, size_of(type)};
    index.type = static_cast<std::uint8_t>(code);
    EXPECT_EQ(read(index.bytes(), 5 * size_of(type)).index.type, type);
    EXPECT_EQ(megatron_code(type), code);
  }
  EXPECT_THROW((void)megatron_code(TokenType::u32), PreconditionError);
}

TEST(MegatronIndex, RefusesRealAndUnknownTypesByName) {
  Index index{{2}};
  index.type = 6;
  EXPECT_THAT(refusal(index, 4), AllOf(HasSubstr("data.train=memory"), HasSubstr("f64")));
  index.type = 7;
  EXPECT_THAT(refusal(index, 4), HasSubstr("f32"));
  for (int const code : {0, 9, 255}) {
    index.type = static_cast<std::uint8_t>(code);
    EXPECT_THAT(refusal(index, 4), HasSubstr("token type " + std::to_string(code)));
  }
}

TEST(MegatronIndex, RefusesAnotherMagicOrVersion) {
  Index index{{2}};
  index.version = 2;
  EXPECT_THAT(refusal(index, 4), AllOf(HasSubstr("version 2"), HasSubstr("version 1 is")));
  index.version = 1;
  index.magic = std::string{"TNTIDX\0\0\0", 9};
  EXPECT_THAT(refusal(index, 4), HasSubstr("MMIDIDX"));
}

TEST(MegatronIndex, RefusesEveryTruncation) {
  std::string const whole = Index{{3, 1, 2}}.bytes();
  ASSERT_EQ(read(whole, 12).index.tokens, 6);
  for (std::size_t size = 1; size < whole.size(); ++size) {
    auto const message = data_error([&] { (void)read(whole.substr(0, size), 12); });
    EXPECT_THAT(message, AllOf(HasSubstr("data.train=memory"), HasSubstr("copy it again"))) << size;
  }
  EXPECT_THAT(data_error([&] { (void)read(whole + '\0', 12); }), HasSubstr("3 sequences"));
}

TEST(MegatronIndex, RefusesCountsWhoseProductsOverflow) {
  for (std::uint64_t const huge : {std::uint64_t{1} << 61, std::uint64_t{1} << 62,
                                   std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    Index index{{3, 1, 2}};
    index.sequences_said = huge;
    EXPECT_THAT(refusal(index, 12), HasSubstr(std::to_string(huge)));
    index = Index{{3, 1, 2}};
    index.documents_said = huge;
    EXPECT_THAT(refusal(index, 12), HasSubstr(std::to_string(huge)));
  }
  Index index{{3, 1, 2}};
  // 12 times this is 36 modulo 2^64, as for the 3 sequences that there are.
  index.sequences_said = 3 + (std::uint64_t{1} << 62);
  EXPECT_THAT(refusal(index, 12), HasSubstr("do not hold"));
}

TEST(MegatronIndex, RefusesLengthsThatDoNotFitTheData) {
  Index index{{3, 1, 2}};
  EXPECT_THAT(refusal(index, 10),
              AllOf(HasSubstr("sequence 2 of 2 tokens"), HasSubstr("10 bytes")));
  EXPECT_THAT(refusal(index, 14), AllOf(HasSubstr("6 tokens"), HasSubstr("14 bytes, not 12")));
  EXPECT_THAT(refusal(index, 13), HasSubstr("13 bytes, not 12"));
  index.lengths[1] = -1;
  EXPECT_THAT(refusal(index, 12), HasSubstr("sequence 1 has length -1"));
  index.lengths[1] = std::numeric_limits<std::int32_t>::max();
  EXPECT_THAT(refusal(index, 12), HasSubstr("ends beyond"));
}

TEST(MegatronIndex, RefusesPointersThatLeaveGapsOrOverlap) {
  for (std::int64_t const pointer : {std::int64_t{0}, std::int64_t{4}, std::int64_t{8},
                                     std::int64_t{-6}, std::numeric_limits<std::int64_t>::min()}) {
    Index index{{3, 1, 2}};
    index.pointers[1] = pointer;
    EXPECT_THAT(refusal(index, 12),
                HasSubstr("sequence 1 begins at byte " + std::to_string(pointer)));
  }
}

TEST(MegatronIndex, RefusesDocumentsThatDoNotAscendFromFirstToLast) {
  Index index{{3, 1, 2}};
  index.set_documents({1, 2, 3});
  EXPECT_THAT(refusal(index, 12), HasSubstr("document index 0 is 1"));
  index.set_documents({0, 2, 1, 3});
  EXPECT_THAT(refusal(index, 12), HasSubstr("document index 2 is 1"));
  index.set_documents({0, 4});
  EXPECT_THAT(refusal(index, 12), HasSubstr("document index 1 is 4"));
  index.set_documents({0, -1});
  EXPECT_THAT(refusal(index, 12), HasSubstr("document index 1 is -1"));
  index.set_documents({0, 2});
  EXPECT_THAT(refusal(index, 12), HasSubstr("the last document index is 2"));
  index.set_documents({});
  EXPECT_THAT(refusal(index, 12), HasSubstr("the last document index is 0"));
}

}  // namespace
}  // namespace offstage::data
