#include "data/tokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "formats.hpp"
#include "temporary_directory.hpp"

namespace offstage::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char const* sea = OFFSTAGE_TEST_DATA "/sea.model";

TEST(ByteTokenizer, GivesEveryByteBackAsItWas) {
  auto const tokenizer = open_tokenizer("bytes", "data.tokenizer");
  EXPECT_EQ(tokenizer->vocab(), 256);
  EXPECT_EQ(tokenizer->end_of_document(), std::nullopt);
  std::string text;
  for (int i = 0; i < 256; ++i) {
    text += static_cast<char>(i);
  }
  auto const tokens = tokenizer->encode(text);
  EXPECT_EQ(tokens.front(), 0);
  EXPECT_EQ(tokens.back(), 255);
  EXPECT_EQ(tokenizer->decode(tokens), text);
  EXPECT_THAT(tokenizer->encode(""), testing::IsEmpty());
}

TEST(SentencePieceTokenizer, MakesWordsOfPiecesAndGivesTheTextBack) {
  auto const tokenizer = open_tokenizer(sea, "data.tokenizer");
  EXPECT_EQ(tokenizer->vocab(), 420);
  EXPECT_EQ(tokenizer->end_of_document(), 2);
  std::string const text = "The ship waits for nothing.\n  \xC3\xA9t\xC3\xA9, 42%";
  auto const tokens = tokenizer->encode(text);
  EXPECT_LT(tokens.size(), text.size());
  EXPECT_EQ(tokenizer->decode(tokens), text);
  // What `echo -n ... | spm_encode --model=sea.model --output_format=id` says.
  EXPECT_THAT(tokenizer->encode("The ship waits for nothing."),
              ElementsAre(269, 278, 388, 399, 360, 357, 375, 393));
  EXPECT_THAT(tokenizer->encode(""), testing::IsEmpty());
}

/// The model with a table of characters of 256 units, which `change` may change: A becomes a.
template <class Change>
std::string with_character_map(Change const& change) {
  constexpr std::uint32_t offset_unit = 1U << 10U, has_text = 1U << 8U, leaf = 1U << 31U;
  std::vector<std::uint32_t> units(256);
  units[0] = 1 * offset_unit;  // the children of the root are at 1 ^ their letter
  units[1 ^ 'A'] = 'A' | has_text | 0xC0 * offset_unit;
  units[0x80] = leaf | 0;  // 0x40 ^ 0xC0: the first text
  std::string texts{"a\0", 2};
  change(units, texts);
  auto const as_text = [](auto const& numbers) {
    return std::string{reinterpret_cast<char const*>(numbers.data()), 4 * numbers.size()};
  };
  auto const field = [](char tag, std::string const& contents) {
    auto const size = static_cast<unsigned>(contents.size());
    std::string const length{static_cast<char>(0x80 | (size & 0x7FU)),
                             static_cast<char>(size >> 7U)};
    return tag + length + contents;
  };
  std::vector<std::uint32_t> const bytes{static_cast<std::uint32_t>(4 * units.size())};
  std::ifstream file{sea, std::ios::binary};
  return std::string{std::istreambuf_iterator<char>{file}, {}} +
         field(0x1A, field(0x12, as_text(bytes) + as_text(units) + texts));
}

TEST(SentencePieceTokenizer, RefusesATableOfCharactersThatLeadsOutOfItself) {
  using Units = std::vector<std::uint32_t>;
  TemporaryDirectory const folder;
  auto const problem = [&](auto const& change) -> std::string {
    auto const path = folder.write("m.model", with_character_map(change));
    try {
      auto const tokenizer = open_tokenizer(path, "data.tokenizer");
      return tokenizer->encode("sAid") == tokenizer->encode("said") ? "none" : "other tokens";
    } catch (DataError const& error) {
      return error.what();
    }
  };
  EXPECT_EQ(problem([](Units&, std::string&) {}), "none");
  EXPECT_THAT(problem([](Units& units, std::string&) { units[0] = 1U << 18U; }),
              HasSubstr("table of characters is damaged"));
  EXPECT_THAT(problem([](Units& units, std::string&) { units[0] = ~0U; }),
              HasSubstr("table of characters is damaged"));
  EXPECT_THAT(problem([](Units& units, std::string&) { units[7] = (1U << 31U) - 1; }),
              HasSubstr("table of characters is damaged"));
  EXPECT_THAT(problem([](Units& units, std::string&) { units[0x80] = 2; }),
              HasSubstr("table of characters is damaged"));
  EXPECT_THAT(problem([](Units& units, std::string&) { units.resize(255); }),
              HasSubstr("table of characters is damaged"));
  EXPECT_THAT(problem([](Units&, std::string& texts) { texts = "a"; }),
              HasSubstr("table of characters is damaged"));
}

TEST(Tokenizer, RefusesTokensOutsideTheVocabulary) {
  for (std::string const name : {"bytes", sea}) {
    auto const tokenizer = open_tokenizer(name, "data.tokenizer");
    for (auto const bad : {-1, static_cast<std::int32_t>(tokenizer->vocab())}) {
      EXPECT_THAT(data_error([&] {
                    (void)tokenizer->decode(std::vector{1, bad});
                  }),
                  AllOf(HasSubstr("token " + std::to_string(bad)),
                        HasSubstr(std::to_string(tokenizer->vocab()))));
    }
  }
}

TEST(Tokenizer, RefusesWhatIsNoModelWithoutAWordFromTheLibrary) {
  TemporaryDirectory const folder;
  std::ifstream file{sea, std::ios::binary};
  std::string const model{std::istreambuf_iterator<char>{file}, {}};
  ASSERT_GT(model.size(), 1'000U);
  testing::internal::CaptureStderr();
  for (std::string const& bytes : {std::string{"no model"}, std::string(1'000, '\0'),
                                   std::string(1'000, '\xFF'), model.substr(0, 700)}) {
    auto const path = folder.write("a.model", bytes);
    EXPECT_THAT(data_error([&] { (void)open_tokenizer(path, "data.tokenizer"); }),
                AllOf(HasSubstr("data.tokenizer=" + path), HasSubstr("no SentencePiece model")));
  }
  auto const pointer = folder.write("a.model", "version https://git-lfs.github.com/spec/v1\n");
  EXPECT_THAT(data_error([&] { (void)open_tokenizer(pointer, "data.tokenizer"); }),
              HasSubstr("a.model: is a Git LFS pointer: run git lfs pull"));
  EXPECT_THAT(data_error([] { (void)open_tokenizer("/nowhere/a.model", "data.tokenizer"); }),
              AllOf(HasSubstr("data.tokenizer=/nowhere/a.model"), HasSubstr("No such file")));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace offstage::data
