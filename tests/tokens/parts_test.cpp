#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tokens/merging.hpp"
#include "tokens/unicode.hpp"
#include "tokens/word_cache.hpp"

namespace offstage::tokens {
namespace {

// What Python's bytes.decode("utf-8", "replace") gives.
TEST(Unicode, ReplacesWhatIsNoUtf8AsPythonDoes) {
  EXPECT_EQ(replace_invalid("a\xFF\xFEz"), "a\uFFFD\uFFFDz");
  EXPECT_EQ(replace_invalid("\xE2\x82"), "\uFFFD");
  EXPECT_EQ(replace_invalid("\xF0\x9F\x9Ax"), "\uFFFDx");
  EXPECT_EQ(replace_invalid("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(replace_invalid("\xC0\xAF"), "\uFFFD\uFFFD");
  EXPECT_EQ(replace_invalid("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(replace_invalid("caf\u00E9 \U0001F6A2"), "caf\u00E9 \U0001F6A2");
  EXPECT_EQ(find_invalid("a\u00E9\xFFz\xE2\x82 \xED\xA0\x80").bytes, 6);
  EXPECT_EQ(find_invalid("a\u00E9\xFFz\xE2\x82 \xED\xA0\x80").first, 3U);
  EXPECT_EQ(find_invalid("caf\u00E9 \U0001F6A2").bytes, 0);
  EXPECT_FALSE(is_valid("\xE2\x82"));
  EXPECT_TRUE(is_valid("\U0010FFFF"));
}

TEST(Unicode, NormalFormsLeaveCharactersThatThePackageDoesNotKnow) {
  std::string text = "e\u0301\u32FF\uFB01";
  normalize(text, Form::nfkc);
  EXPECT_EQ(text,
            "\u00E9\u32FF"
            "fi");
  normalize(text, Form::nfd);
  EXPECT_EQ(text,
            "e\u0301\u32FF"
            "fi");
}

TEST(WordCache, GivesBackWhatItWasGivenUntilItForgetsAll) {
  WordCache cache;
  auto const key = [](int i) { return "word " + std::to_string(i); };
  int known = 0;
  for (int i = 0; i < 100'000; ++i) {
    ASSERT_FALSE(cache.find(key(i)));
    std::vector<std::int32_t> const tokens{i, i + 1};
    cache.put(key(i), tokens);
    auto const found = cache.find(key(i));
    ASSERT_TRUE(found);
    ASSERT_THAT(*found, testing::ElementsAreArray(tokens));
  }
  for (int i = 0; i < 100'000; ++i) {
    if (auto const found = cache.find(key(i))) {
      ASSERT_EQ(found->front(), i);
      ++known;
    }
  }
  EXPECT_GT(known, 0);
  EXPECT_LT(known, 100'000);
  EXPECT_FALSE(cache.find(std::string(WordCache::longest_key + 1, 'x')));
}

/// The definition: look through all pairs, merge the first of the lowest rank.
void merge_plainly(PairTable const& merges, std::vector<std::int32_t>& tokens) {
  for (;;) {
    std::size_t best = tokens.size();
    std::int32_t rank = -1;
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      auto const merge = merges.find(tokens[i], tokens[i + 1]);
      if (merge.rank >= 0 && (rank < 0 || merge.rank < rank)) {
        best = i;
        rank = merge.rank;
      }
    }
    if (best == tokens.size()) {
      return;
    }
    tokens[best] = merges.find(tokens[best], tokens[best + 1]).token;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(MergeAll, MergesWordsOfAnyLengthAsDefined) {
  std::mt19937 random{7};
  PairTable merges{200};
  std::vector<std::int32_t> made{0, 1, 2, 3};
  for (std::int32_t rank = 0; rank < 200; ++rank) {
    auto const pick = [&] { return made[random() % made.size()]; };
    auto const left = pick();
    auto const right = pick();
    if (merges.find(left, right).rank < 0) {
      made.push_back(100 + rank);
      merges.put(left, right, {rank, 100 + rank});
    }
  }
  for (int round = 0; round < 300; ++round) {
    std::vector<std::int32_t> tokens(random() % 200);
    for (auto& token : tokens) {
      token = static_cast<std::int32_t>(random() % 4);
    }
    auto expected = tokens;
    merge_plainly(merges, expected);
    merge_all(merges, tokens);
    ASSERT_EQ(tokens, expected);
  }
}

}  // namespace
}  // namespace offstage::tokens
