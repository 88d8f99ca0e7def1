#include "base/quoted.hpp"

#include <gtest/gtest.h>

namespace offstage {
namespace {

TEST(Quoted, AValueHasQuotesOnlyWhereItWouldBeReadAsSomethingElse) {
  for (char const* const plain : {"", "/a,read=1GB/s", "a;b", "a b", "a'b\"c"}) {
    EXPECT_EQ(quoted(plain), plain);
  }
  EXPECT_EQ(quoted(" a"), "\" a\"");
  EXPECT_EQ(quoted("a\t"), "\"a\t\"");
  EXPECT_EQ(quoted("a ;b"), "\"a ;b\"");
  EXPECT_EQ(quoted("a\t;b"), "\"a\t;b\"");
  EXPECT_EQ(quoted("a;b ;c"), "\"a;b ;c\"");
  EXPECT_EQ(quoted(";a"), "\";a\"");
  EXPECT_EQ(quoted("\"a\""), "'\"a\"'");
}

TEST(Quoted, ALineHoldsNoControlCharacterButTabs) {
  EXPECT_TRUE(fits_a_line("a\tb \u00e9"));
  for (char const* const bad : {"a\nb", "\r", "\x1b", "\x7f"}) {
    EXPECT_FALSE(fits_a_line(bad));
  }
}

}  // namespace
}  // namespace offstage
