#include "data/globs.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats.hpp"
#include "temporary_directory.hpp"

namespace offstage::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Patterns : public testing::Test {
 protected:
  std::string file(std::string const& name) const { return folder.write(name, "x"); }
  std::string name(std::string const& text) const { return (folder.path() / text).string(); }

  TemporaryDirectory folder;
};

TEST_F(Patterns, StandForTheirFilesInOrder) {
  auto const second = file("a_2.bin");
  auto const first = file("a_10.bin");
  file("b_1.bin");
  EXPECT_THAT(expand(name("a_*"), "k"), ElementsAre(first, second));
  EXPECT_THAT(expand(name("a_[0-9].bin"), "k"), ElementsAre(second));
  EXPECT_THAT(expand(name("c"), "k"), ElementsAre(name("c")));  // the file's own error comes later
  auto const odd = file("a_[0-9].bin");
  EXPECT_THAT(expand(odd, "k"), ElementsAre(odd));
}

TEST_F(Patterns, WithoutAMatchAreErrors) {
  EXPECT_THAT(data_error([&] { (void)expand(name("*.x"), "data.train"); }),
              HasSubstr("data.train=" + name("*.x") + ": no file matches"));
  EXPECT_EQ(data_error([&] { (void)expand(name("none*"), ""); }),
            name("none*") + ": no file matches");
}

TEST_F(Patterns, CountFilesBesideTokensAsTheTokensOwn) {
  auto const tokens = file("a.bin");
  file("a.idx");
  file("a.mask");
  file("a.tokenizer");
  auto const lonely = file("b.idx");
  EXPECT_THAT(expand_tokens(name("*"), "k"), ElementsAre(tokens, lonely));
  EXPECT_THAT(expand_tokens(name("a.i*"), "k"), ElementsAre(name("a.idx")));
  file("p[1].idx");
  EXPECT_THAT(expand_tokens(name("p[1]"), "k"), ElementsAre(name("p[1]")));
}

}  // namespace
}  // namespace offstage::data
