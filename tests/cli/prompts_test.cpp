#include "cli/prompts.hpp"

#include <gmock/gmock.h>

#include <fstream>
#include <string>

#include "base/error.hpp"
#include "base/units.hpp"
#include "platform/scratch_directory.hpp"

namespace offstage::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

TEST(LinesOf, HaveNoEndsOfEitherKind) {
  EXPECT_THAT(lines_of("one\ntwo\n"), ElementsAre("one", "two"));
  EXPECT_THAT(lines_of("one\r\n\r\n\ntwo\r"), ElementsAre("one", "", "", "two"));
  EXPECT_THAT(lines_of("a\rb \n c"), ElementsAre("a\rb ", " c"));
  EXPECT_THAT(lines_of("\n"), ElementsAre(""));
  EXPECT_THAT(lines_of(""), IsEmpty());
}

TEST(ReadPrompt, TakesOneLineEndAwayAndNoMoreThanItsLimit) {
  ScratchDirectory const scratch;
  auto const read_back = [&](std::string const& text) {
    std::ofstream{scratch / "prompt", std::ios::binary} << text;
    return read_prompt(scratch / "prompt", "--prompt-file");
  };
  EXPECT_EQ(read_back("one\ntwo\n\n"), "one\ntwo\n");
  std::string const longest(64 * MiB, 'a');
  EXPECT_TRUE(read_back(longest) == longest);
  EXPECT_THAT([&] { (void)read_back(longest + "a"); },
              ThrowsMessage<DataError>(HasSubstr("--prompt-file=" + (scratch / "prompt"))));
}

}  // namespace
}  // namespace offstage::cli
