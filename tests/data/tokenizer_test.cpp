#include "data/tokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

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
