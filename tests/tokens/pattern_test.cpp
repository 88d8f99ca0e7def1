#include "tokens/pattern.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "tokens/segments.hpp"

namespace offstage::tokens {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Parts = std::vector<std::string>;

Parts parts_of(Pattern const& pattern, std::string const& text, Behavior behavior,
               bool inverted = false) {
  Parts parts;
  Pattern::Search search{pattern, text};
  split(
      text, behavior, inverted, [&] { return search.next(); },
      [&](std::string_view part) { parts.emplace_back(part); });
  return parts;
}

// The examples of the `tokenizers` package's documentation.
TEST(Split, DoesWithMatchesWhatItIsTold) {
  auto const dash = Pattern::literal("-", "here");
  std::string const text = "the-final--countdown";
  EXPECT_THAT(parts_of(dash, text, Behavior::removed), ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(parts_of(dash, text, Behavior::isolated),
              ElementsAre("the", "-", "final", "-", "-", "countdown"));
  EXPECT_THAT(parts_of(dash, text, Behavior::merged_with_previous),
              ElementsAre("the-", "final-", "-", "countdown"));
  EXPECT_THAT(parts_of(dash, text, Behavior::merged_with_next),
              ElementsAre("the", "-final", "-", "-countdown"));
  EXPECT_THAT(parts_of(dash, text, Behavior::contiguous),
              ElementsAre("the", "-", "final", "--", "countdown"));
  EXPECT_THAT(parts_of(dash, text, Behavior::removed, true), ElementsAre("-", "-", "-"));
  EXPECT_THAT(parts_of(dash, "", Behavior::isolated), testing::IsEmpty());
}

Parts matches(std::string const& expression, std::string const& text) {
  return parts_of(Pattern::expression(expression, "here"), text, Behavior::removed, true);
}

TEST(Expression, MeansWhatItMeansInOniguruma) {
  // No space: U+180E. Spaces: U+0085, U+00A0, U+3000.
  EXPECT_THAT(matches("\\s", "a\u180E\u0085\u00A0\u3000"),
              ElementsAre("\u0085", "\u00A0", "\u3000"));
  EXPECT_THAT(matches("[^\\s]", "\u180E\u0085x"), ElementsAre("\u180E", "x"));
  EXPECT_THAT(matches("[\\S]+", "ab \u3000c"), ElementsAre("ab", "c"));
  EXPECT_THAT(matches("\\w+", "e\u0301_1 \u2460!\u0661"), ElementsAre("e\u0301_1", "\u0661"));
  // Outside brackets alone: superscripts and fractions of Latin-1.
  EXPECT_THAT(matches("\\w+", "1\u00B23 \u00BDa"), ElementsAre("1\u00B23", "\u00BDa"));
  EXPECT_THAT(matches("[\\w]+", "1\u00B23 \u00BDa"), ElementsAre("1", "3", "a"));
  EXPECT_THAT(matches("\\W", "\u00B9\u00BE\u00BF"), ElementsAre("\u00BF"));
  EXPECT_THAT(matches("\\u4E00+", "\u4E00\u4E00x"), ElementsAre("\u4E00\u4E00"));
  EXPECT_THAT(matches("\\p{Han}", "\u4E00\u3002"),
              ElementsAre("\u4E00"));  // the full stop is used by Han, too
  EXPECT_THAT(matches("(?i:'s|'t)", "'S't'\u017F"), ElementsAre("'S", "'t", "'\u017F"));
  // An option holds to the end of its group, alternatives included.
  EXPECT_THAT(matches("a(?i)b|c", "aBcaC"), ElementsAre("aB", "aC"));
  EXPECT_THAT(matches("x(a(?i)b|(?i)c)c|d", "xaBcxaCcxaCCdD"), ElementsAre("xaBc", "xaCc", "d"));
  EXPECT_THAT(matches("(?i)a|b", "AB"), ElementsAre("A", "B"));
  EXPECT_THAT(matches("a{,2}b", "aaab"), ElementsAre("aab"));
  EXPECT_THAT(matches("^x", "x\nx"), ElementsAre("x", "x"));
}

TEST(Expression, RefusesWhatItWouldReadOtherwise) {
  for (std::string const expression :
       {"\\bx", "\\hx", "x{1,2}+", "x{2}?", "x)", "(?m:x)", "(?<name>x)", "[a[b]]", "[a&&b]",
        "\\1x", "x\\K", "\\Gx", "\\Xx", "[a", "x\\"}) {
    try {
      (void)Pattern::expression(expression, "here");
      ADD_FAILURE() << expression;
    } catch (DataError const& error) {
      EXPECT_THAT(error.what(), testing::StartsWith("here: "));
    }
  }
}

TEST(Expression, DoesNotTryAllWaysThroughAText) {
  auto const pattern = Pattern::expression("(?:a|a)+b|c", "here");
  std::string const text = std::string(30, 'a') + "c";
  EXPECT_THROW(parts_of(pattern, text, Behavior::isolated), DataError);
}

TEST(Expression, SplitsMegabytesOfOneKindOfCharacter) {
  std::string const spaces(3'000'000, ' ');
  EXPECT_THAT(matches("\\s+(?!\\S)|\\s+", spaces + "x").front().size(), spaces.size() - 1);
  EXPECT_EQ(matches("(?:a|b)+", std::string(500'000, 'a') + "c").size(), 1U);
}

}  // namespace
}  // namespace offstage::tokens
