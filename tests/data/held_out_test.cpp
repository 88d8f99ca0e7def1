#include "data/held_out.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "data/dataset.hpp"
#include "formats.hpp"
#include "temporary_directory.hpp"

namespace offstage::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Optional;

TEST(HeldOut, BeginsAtATokenOrAtTheNearestDocument) {
  EXPECT_EQ(begin_of_held_out(1000, 0.01, std::nullopt), 990);
  EXPECT_EQ(begin_of_held_out(10, 0.25, std::nullopt), 8);  // 7.5
  std::vector<std::int64_t> const documents{0, 40, 60, 95};
  EXPECT_EQ(begin_of_held_out(100, 0.06, documents), 95);
  EXPECT_EQ(begin_of_held_out(100, 0.03, documents), 95);
  EXPECT_EQ(begin_of_held_out(100, 0.02, documents), 100);  // nothing: the end is nearer
  EXPECT_EQ(begin_of_held_out(100, 0.5, documents), 40);    // of two that are as near the earlier
  EXPECT_EQ(begin_of_held_out(100, 0.49, documents), 60);
  EXPECT_EQ(begin_of_held_out(100, 0.99, documents), 40);  // the first document is trained on
  EXPECT_EQ(begin_of_held_out(100, 0.5, std::vector<std::int64_t>{0}), 100);
}

TEST(HeldOut, IsANumberOfPercent) {
  EXPECT_THAT(parse_held_out("2.5%"), Optional(0.025));
  EXPECT_THAT(parse_held_out("2.5 %"), Optional(0.025));
  for (auto const* text : {"", "%", "2", "a%", "2%,b", "2 % b"}) {
    EXPECT_EQ(parse_held_out(text), std::nullopt) << text;
  }
  for (auto const* text : {"0%", "-1%", "100%", "inf%", "nan%"}) {
    EXPECT_THROW((void)parse_held_out(text), UsageError) << text;
  }
}

/// Both sides of a file's tokens.
class HeldOutEnds : public ::testing::Test {
 protected:
  [[nodiscard]] static DatasetOptions options(std::int64_t sequence, double part, bool is_taken) {
    return {.key = is_taken ? "data.valid" : "data.train",
            .vocab = 256,
            .sequence = sequence,
            .held_out = {part, is_taken}};
  }
  /// All tokens of a Dataset, window by window, '.' where there is none and in capitals where the
  /// next one is no target.
  [[nodiscard]] static std::string shown(Dataset const& dataset) {
    std::string text;
    for (std::int64_t w = 0; w < dataset.windows(); ++w) {
      auto const batch = dataset.batch(std::span{&w, 1});
      text += text.empty() ? "" : " ";
      for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
        auto const token = batch.tokens[i];
        bool const counts = batch.targets[i] != ignored_target;
        text += static_cast<char>(token == 0 ? '.' : counts ? token : token - 'a' + 'A');
      }
    }
    return text;
  }
  [[nodiscard]] std::string sides(std::string const& path, DatasetOptions of) const {
    of.held_out.is_taken = false;
    auto const text = shown(Dataset{{{path}}, of});
    of.held_out.is_taken = true;
    return text + " | " + shown(Dataset{{{path}}, of});
  }

  TemporaryDirectory folder_;
};

TEST_F(HeldOutEnds, OfTextAreItsLastTokens) {
  auto const path = folder_.write("a.txt", "abcdefghijklm");
  EXPECT_EQ(sides(path, options(2, 0.4, false)), "ab cd ef | ij kl");
  Dataset const valid{{{path}}, options(2, 0.4, true)};
  auto const facts = valid.files()[0];
  EXPECT_EQ(facts.path, path);
  EXPECT_EQ(facts.part, "the last 40 %");
  EXPECT_EQ(facts.tokens, 5);
  EXPECT_EQ((Dataset{{{path}}, options(2, 0.4, false)}.files()[0].part), "all but the last 40 %");
  EXPECT_NE(facts.checksum, (Dataset{{{path}}, options(2, 0.0, false)}.files()[0].checksum));
}

TEST_F(HeldOutEnds, AreWholeDocumentsUnderEveryRule) {
  auto const path = write_documents(folder_, "a", {"abcd", "efg", "hi", "jkl"});
  auto of = options(3, 0.5, false);  // token 6 of 12: the nearest begin is 7
  EXPECT_EQ(sides(path, of), "abc def | hij");
  of.rule = WindowRule::apart;
  EXPECT_EQ(sides(path, of), "abc ef. | h.. jk.");
  of.rule = WindowRule::whole;
  of.sequence = 5;
  EXPECT_EQ(sides(path, of), "abcD. efG.. | hIjkL");
  EXPECT_EQ((Dataset{{{path}}, of}.files()[0].left_out), 0) << "none begins behind the end";
  EXPECT_THAT((Dataset{{{path}}, of}.files()[0].documents), Optional(2));
  of.rule = WindowRule::crossing;
  of.documents_apart = true;
  of.held_out.is_taken = true;
  of.sequence = 4;
  Dataset const apart{{{path}}, of};
  std::int64_t const first = 0;
  EXPECT_THAT(apart.batch(std::span{&first, 1}).begins, ElementsAre(0, 0, 2, 2));
}

TEST_F(HeldOutEnds, EndWhereASeparatorEndsADocument) {
  auto const path = folder_.write("a.txt", "abzcdezfghizj");
  auto of = options(2, 0.5, false);
  of.separator = 'z';
  EXPECT_EQ(sides(path, of), "ab zc de | fg hi");  // token 6.5 of 13: the nearest begin is 7
  of.rule = WindowRule::apart;
  EXPECT_EQ(sides(path, of), "ab cd e. | fg hi");
  of.separator = 300;
  EXPECT_THAT([&] { (void)sides(path, of); },
              testing::ThrowsMessage<DataError>(HasSubstr("data.separator=300 is no token")));
}

TEST_F(HeldOutEnds, BySeparatorsBeginAsByAListOfDocuments) {
  std::string text;
  std::uint64_t state = 7;
  for (int i = 0; i < 400; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    text += state >> 60U == 0 ? 'z' : 'a';
  }
  for (std::string const& tokens : {text, std::string(50, 'a'), std::string(50, 'z'), text + "z"}) {
    auto const path = folder_.write("s.txt", tokens);
    auto const file = open_tokens({.path = path, .key = "data.train", .vocab = 256});
    std::optional const documents{documents_by_separator(*file, 'z')};
    for (int percent = 1; percent < 100; ++percent) {
      double const part = percent / 100.0;
      EXPECT_EQ(begin_of_held_out(*file, part, 'z'),
                begin_of_held_out(file->tokens(), part, documents))
          << percent << ' ' << tokens;
    }
  }
}

TEST_F(HeldOutEnds, LeaveATokenThatCountsInTraining) {
  auto const path = write_documents(folder_, "a", {"abcd", "xyz"});
  folder_.write("a.mask", "OFFMASK1" + array_of<std::uint64_t>({7, 1, 0, 0}) +
                              std::string{"\0\0\0\0\0\0\1", 7});
  EXPECT_THAT([&] { (void)Dataset({{path}}, options(3, 0.4, false)).windows(); },
              testing::ThrowsMessage<DataError>(
                  HasSubstr("a.bin, all but the last 40 %: no token counts there")));
  EXPECT_EQ((Dataset{{{path}}, options(2, 0.4, true)}.files()[0].counted), 1);
}

TEST_F(HeldOutEnds, HaveTheirPartOfTheMask) {
  auto const path = write_documents(folder_, "a", {"abcd", "xyz"});
  std::string const mask{"\0\1\0\1\1\0\1", 7};
  folder_.write("a.mask", "OFFMASK1" + array_of<std::uint64_t>({7, 4, 0, 0}) + mask);
  auto of = options(3, 0.4, false);
  of.verifies_masks = true;
  of.rule = WindowRule::whole;
  EXPECT_EQ(sides(path, of), "aBc | XyZ");
  EXPECT_THAT((Dataset{{{path}}, of}.files()[0].counted), Optional(2));
  of.held_out.is_taken = true;
  EXPECT_THAT((Dataset{{{path}}, of}.files()[0].counted), Optional(2));
}

TEST_F(HeldOutEnds, AreLeftOutWhereTheyHaveNoWindow) {
  auto const path_of_long = folder_.write("long.txt", std::string(100, 'a'));
  auto const path_of_short = folder_.write("short.txt", std::string(20, 'b'));
  std::vector<Source> const sources{{path_of_short}, {path_of_long}};
  Dataset const valid{sources, options(8, 0.1, true)};
  ASSERT_EQ(valid.files().size(), 1);
  EXPECT_EQ(valid.files()[0].path, path_of_long);
  EXPECT_EQ(shown(valid), "aaaaaaaa");
  EXPECT_EQ(valid.sources()[0].end, 0);
  EXPECT_EQ(valid.sources()[1].end, 1);
  EXPECT_EQ((Dataset{sources, options(8, 0.1, false)}.windows()), 2 + 11);
  auto const without_window = [&] { Dataset const none{sources, options(10, 0.1, true)}; };
  EXPECT_THAT(without_window,
              testing::ThrowsMessage<DataError>(
                  HasSubstr("data.valid: the last 10 % of no file has the 11 tokens that "
                            "train.sequence=10 needs; hold "
                            "out more (a document stays whole), or name files for validation")));
  EXPECT_THAT([&] { (void)Dataset(sources, options(50, 0.9, false)).windows(); },
              testing::ThrowsMessage<DataError>(testing::AllOf(
                  HasSubstr("short.txt, all but the last 90 %: has 2 tokens"),
                  HasSubstr("give a longer text or a shorter sequence, or hold out less"))));
}

}  // namespace
}  // namespace offstage::data
