#include "data/tokenizer_note.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "temporary_directory.hpp"

namespace offstage::data {
namespace {

TEST(TokenizerNotes, TheSampleOfATokenizerStaysTheSame) {
  // Notes that were written before have these numbers.
  EXPECT_EQ(sample_of(*open_tokenizer("bytes", "")), 12329771734790255963U);
  EXPECT_EQ(sample_of(*open_tokenizer(OFFSTAGE_TEST_DATA "/sea.model", "")), 8457259720833691218U);
}

TEST(TokenizerNotes, ATokenizerThatCannotTakeTheTextHasNone) {
  class Nothing : public Tokenizer {
   public:
    class Silent final : public Encoder {
     public:
      void encode(std::string_view, std::vector<std::int32_t>&) override {}
    };
    [[nodiscard]] std::int64_t vocab() const override { return 1; }
    [[nodiscard]] std::unique_ptr<Encoder> encoder() const override {
      return std::make_unique<Silent>();
    }
    [[nodiscard]] std::string decode(std::span<std::int32_t const>) const override { return {}; }
    [[nodiscard]] std::optional<std::int32_t> end_of_document() const override { return {}; }
    [[nodiscard]] std::optional<std::int32_t> token(std::string_view) const override { return {}; }
    [[nodiscard]] std::string name_of(std::int32_t) const override { return {}; }
  };
  EXPECT_FALSE(sample_of(Nothing{}));
}

TEST(TokenizerNotes, AreReadBesideTheirTokens) {
  TemporaryDirectory const folder;
  auto const prefix = folder.path() / "a";
  folder.write("a.bin", "1234");
  EXPECT_FALSE(note_beside(prefix));
  write_note(prefix, TokenizerNote{.name = "another", .sample = 1});
  write_note(prefix, TokenizerNote{.name = "models/One of many",
                                   .sample = 0x0123456789abcdef,
                                   .vocab = 32000,
                                   .is_masked = true});
  for (std::string const suffix : {"", ".bin", ".idx"}) {
    auto const note = note_beside(prefix.string() + suffix);
    ASSERT_TRUE(note) << suffix;
    EXPECT_EQ(note->name, "models/One of many");
    EXPECT_EQ(note->sample, 0x0123456789abcdefU);
    EXPECT_EQ(note->bytes, 4);
    EXPECT_EQ(note->vocab, 32000);
    EXPECT_TRUE(note->is_masked);
  }
  EXPECT_FALSE(std::filesystem::exists(prefix.string() + ".tokenizer.part"));
  folder.write("a.tokenizer", "offstage tokenizer 1\nname=b\nsample=2\nbytes=4\n");
  auto const older = note_beside(prefix);
  ASSERT_TRUE(older);
  EXPECT_EQ(older->vocab, 0);
  EXPECT_FALSE(older->is_masked);
}

TEST(TokenizerNotes, OfOtherTokensAreNone) {
  TemporaryDirectory const folder;
  auto const prefix = folder.path() / "a";
  folder.write("a.bin", "1234");
  write_note(prefix, TokenizerNote{.name = "one", .sample = 1});
  folder.write("a.bin", "12345678");
  EXPECT_FALSE(note_beside(prefix));
  write_note(prefix, std::nullopt);
  EXPECT_FALSE(std::filesystem::exists(prefix.string() + ".tokenizer"));
}

TEST(TokenizerNotes, AFileThatSaysSomethingElseIsNoneAndStays) {
  TemporaryDirectory const folder;
  auto const prefix = folder.path() / "a";
  folder.write("a.bin", "1234");
  EXPECT_FALSE(note_beside(prefix));
  EXPECT_NO_THROW(refuse_other_than_note(prefix));
  for (std::string const text :
       {"", "offstage tokenizer 1\n", "offstage tokenizer 2\nname=a\nsample=1\nbytes=4\n",
        "offstage tokenizer 1\nname=a\nsample=\nbytes=4\n",
        "offstage tokenizer 1\nname=a\nsample=1x\nbytes=4\n",
        "offstage tokenizer 1\nname=a\nsample=11111111111111111\nbytes=4\n",
        "offstage tokenizer 1\nname=a\nsample=1\n",
        "offstage tokenizer 1\nsample=1\nname=a\nbytes=4\n"}) {
    folder.write("a.tokenizer", text);
    EXPECT_FALSE(note_beside(prefix)) << text;
    EXPECT_THROW(write_note(prefix, TokenizerNote{.name = "a", .sample = 1}), UsageError) << text;
  }
  std::filesystem::remove(prefix.string() + ".tokenizer");
  std::filesystem::create_directory(prefix.string() + ".tokenizer");
  EXPECT_FALSE(note_beside(prefix));
  EXPECT_THROW(refuse_other_than_note(prefix), UsageError);
}

}  // namespace
}  // namespace offstage::data
