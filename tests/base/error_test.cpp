#include "base/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <string_view>

#include "base/printable.hpp"

namespace offstage {
namespace {

using testing::HasSubstr;

TEST(Errors, CarryTheExitCodeThatScriptsRelyOn) {
  EXPECT_EQ(static_cast<int>(UsageError{"x"}.code()), 64);
  EXPECT_EQ(static_cast<int>(DataError{"x"}.code()), 65);
  EXPECT_EQ(static_cast<int>(IoError{"x"}.code()), 74);
  EXPECT_EQ(static_cast<int>(LockedError{"x"}.code()), 1);
  EXPECT_EQ(static_cast<int>(PreconditionError{"x"}.code()), 70);
  EXPECT_EQ(static_cast<int>(ExitCode::more), 75);
}

TEST(Errors, AnIoErrorNamesThePathAndTheReason) {
  EXPECT_STREQ((IoError{"cannot open", "/data/a", ENOENT}.what()),
               "cannot open /data/a: No such file or directory");
  EXPECT_STREQ((IoError{"cannot open", "/data/a", EMFILE}.what()),
               "cannot open /data/a: Too many open files (raise ulimit -n)");
}

TEST(Errors, AreOnePrintableLineWhateverNamesAreInThem) {
  EXPECT_STREQ((IoError{"cannot open", "/tmp/a\n\x1b[2J", ENOENT}.what()),
               "cannot open /tmp/a\\x0a\\x1b[2J: No such file or directory");
  EXPECT_STREQ(DataError{"\xff"}.what(), "\\xff");
  EXPECT_EQ(std::string_view{DataError{std::string(10'000'000, 'x')}.what()}.size(),
            longest_message);
}

TEST(Errors, RequireNamesTheLineThatAsked) {
  EXPECT_NO_THROW(require(true, "fine"));
  int const line = __LINE__ + 2;
  try {
    require(false, "lengths differ");
    FAIL() << "require must throw";
  } catch (PreconditionError const& error) {
    EXPECT_THAT(error.what(), HasSubstr("lengths differ"));
    EXPECT_THAT(error.what(), HasSubstr("error_test.cpp:" + std::to_string(line)));
  }
}

}  // namespace
}  // namespace offstage
