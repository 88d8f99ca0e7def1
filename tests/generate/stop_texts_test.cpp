#include "generate/stop_texts.hpp"

#include <gmock/gmock.h>

namespace offstage::generate {
namespace {

struct Shown {
  std::string text;
  bool stopped;
};

Shown shown(std::vector<std::string> const& stops, std::string const& text, std::size_t piece) {
  StopTexts filter{stops};
  std::string all;
  for (std::size_t at = 0; at < text.size() && !filter.stopped(); at += piece) {
    all += filter.add(text.substr(at, piece));
  }
  all += filter.finish();
  return {all, filter.stopped()};
}

TEST(StopTexts, ShowsWhatComesBeforeTheFirstOfThemHoweverItIsCut) {
  for (std::size_t piece = 1; piece < 12; ++piece) {
    EXPECT_EQ(shown({"User:", "\n\n"}, "one\nUse\nUser: two\n\n", piece).text, "one\nUse\n");
    EXPECT_EQ(shown({"aab"}, "aaaab!", piece).text, "aa");
    EXPECT_TRUE(shown({"aab"}, "aaaab!", piece).stopped);
    EXPECT_EQ(shown({"abc", "bcd"}, "xabcd", piece).stopped, true);
    EXPECT_EQ(shown({"zebra"}, "a zeb", piece).text, "a zeb");
    EXPECT_FALSE(shown({"zebra"}, "a zeb", piece).stopped);
    EXPECT_EQ(shown({}, "all of it", piece).text, "all of it");
  }
}

TEST(StopTexts, ShowsAtOnceWhatCannotBecomeOne) {
  StopTexts filter{{"stop"}};
  EXPECT_EQ(filter.add("go st"), "go ");
  EXPECT_EQ(filter.add("ill"), "still");
  EXPECT_EQ(filter.add(" stop now"), " ");
  EXPECT_EQ(filter.add("more"), "");
}

}  // namespace
}  // namespace offstage::generate
