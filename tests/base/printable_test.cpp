#include "base/printable.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

namespace offstage {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;
using namespace std::string_literals;

TEST(Printable, LeavesWhatEveryTerminalShowsAsItIs) {
  for (std::string const& text :
       {""s, "plain text ~!@#$%^&*()"s, "back\\slash \\x1b"s, "Grüße, 東京, Привет, שלום, 😀"s}) {
    EXPECT_EQ(printable(text), text);
    EXPECT_EQ(printable_name(text), text);
  }
}

TEST(Printable, ShowsControlCharactersAndEscapeSequences) {
  EXPECT_EQ(printable("a\nb\r\tc"), "a\\x0ab\\x0d\\x09c");
  EXPECT_EQ(printable("\x1b[2J\x1b]0;title\a"), "\\x1b[2J\\x1b]0;title\\x07");
  EXPECT_EQ(printable("nul\0del\x7f"s), "nul\\x00del\\x7f");
  // The second byte of C1's CSI alone, and the whole character.
  EXPECT_EQ(printable("\x9b"
                      "31m"),
            "\\x9b31m");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "\\u009b31m");
}

TEST(Printable, ShowsBytesThatAreNoUtf8) {
  EXPECT_EQ(printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(printable("caf\xe9!"), "caf\\xe9!");
  EXPECT_EQ(printable("cut \xe6\x9d"), "cut \\xe6\\x9d");
  EXPECT_EQ(printable("\xc0\x8a"), "\\xc0\\x8a") << "a line break in two bytes";
  EXPECT_EQ(printable("\xe0\x80\x8a"), "\\xe0\\x80\\x8a") << "in three";
  EXPECT_EQ(printable("\xf0\x80\x80\x8a"), "\\xf0\\x80\\x80\\x8a") << "in four";
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "half of a surrogate pair";
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "beyond Unicode";
  EXPECT_EQ(printable("\xe6\n"), "\\xe6\\x0a") << "a lead byte takes no line break with it";
}

TEST(Printable, ShowsCharactersThatAreNotSeenOrMoveOthers) {
  EXPECT_EQ(printable("gpj.\u202etxt"), "gpj.\\u202etxt");
  EXPECT_EQ(printable("\u2066\u2069\u200f\u061c"), "\\u2066\\u2069\\u200f\\u061c");
  EXPECT_EQ(printable("a\u2028b\u2029c"), "a\\u2028b\\u2029c");
  EXPECT_EQ(printable("a\u200bb\ufeff"), "a\\u200bb\\ufeff");
  EXPECT_EQ(printable("\U000e0041"), "\\U000e0041");
}

TEST(Printable, ATextKeepsItsLinesAndAllThatCommandsNoTerminal) {
  EXPECT_EQ(printable_text("a\n\tb \u0645\u06cc\u200c\u0634 \u202e \ufeff"),
            "a\n\tb \u0645\u06cc\u200c\u0634 \u202e \ufeff");
  EXPECT_EQ(printable_text("\x1b]52;c;\x07\x7f"), "\\x1b]52;c;\\x07\\x7f");
  EXPECT_EQ(printable_text("a\r\nb\r"), "a\nb");
  EXPECT_EQ(printable_text("\u009b0m \x9b \xe6\n"), "\\u009b0m \\x9b \\xe6\n");
}

TEST(Printable, CutsALongTextInTheMiddle) {
  EXPECT_EQ(printable("0123456789", 10), "0123456789");
  EXPECT_EQ(printable("0123456789abcdef", 15), "0123456[...]def");
  std::string text(5'000'000, 'x');
  text += "end";
  std::string const name = printable_name(text);
  EXPECT_EQ(name.size(), longest_name);
  EXPECT_THAT(name, StartsWith("xxxx"));
  EXPECT_THAT(name, EndsWith("end"));
}

TEST(Printable, CutsBetweenCharacters) {
  for (std::string const& text : {"\u6771"s, "\x1b"s, "\U0001f600"s, "\u202e"s, "\xe6\x9d"s}) {
    std::string many;
    for (int i = 0; i < 1000; ++i) {
      many += text;
    }
    for (std::size_t longest = 0; longest < 40; ++longest) {
      std::string const cut = printable(many, longest);
      EXPECT_EQ(printable(cut), cut) << "half a character";
      EXPECT_EQ(printable(cut, longest), cut) << longest;
      std::string whole = printable(many);
      EXPECT_TRUE(whole.starts_with(cut.substr(0, cut.find("[..."))) || longest < 5) << cut;
    }
  }
}

TEST(Printable, GivesOneHarmlessLineOfWhateverBytes) {
  std::minstd_rand random{1};
  for (int round = 0; round < 2000; ++round) {
    std::string text(random() % 300, '\0');
    std::ranges::generate(text, [&] { return static_cast<char>(random()); });
    for (std::string const& shown : {printable(text), printable_name(text)}) {
      EXPECT_TRUE(std::ranges::all_of(shown, [](char c) {
        auto const byte = static_cast<unsigned char>(c);
        return byte >= 0x20 && byte != 0x7f;
      }));
      EXPECT_EQ(printable(shown), shown);
    }
    auto const characters = std::ranges::count_if(printable_name(text), [](char c) {
      return (static_cast<unsigned char>(c) & 0xC0U) != 0x80;
    });
    EXPECT_LE(static_cast<std::size_t>(characters), longest_name);
  }
}

TEST(Printable, LinesKeepTheirBreaksAlone) {
  EXPECT_EQ(printable_lines("a\nb\x1b[m\n\n"), "a\nb\\x1b[m\n\n");
  EXPECT_EQ(printable_lines(""), "");
}

}  // namespace
}  // namespace offstage
