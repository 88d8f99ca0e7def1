#include "base/log.hpp"

#include <gtest/gtest.h>

#include <string>

#include "base/printable.hpp"

namespace offstage {
namespace {

TEST(Log, InformationGoesToStandardOutput) {
  testing::internal::CaptureStdout();
  log::info("step {} of {}", 3, 10);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "step 3 of 10\n");
}

TEST(Log, WarningsAndErrorsGoToStandardErrorAndSayWhoSpeaks) {
  testing::internal::CaptureStderr();
  log::warning("no locks on {}", "/pfs");
  log::error("{} is full", "/nvme");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "offstage: warning: no locks on /pfs\noffstage: error: /nvme is full\n");
}

TEST(Log, EveryLineStaysOneThatATerminalShowsAsItIs) {
  std::string const nasty = "a\noffstage: error: forged\r\x1b[2J\xff";
  std::string const shown = "a\\x0aoffstage: error: forged\\x0d\\x1b[2J\\xff\n";
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  log::info("{}", nasty);
  log::warning("{}", nasty);
  log::error("{}", nasty);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), shown);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "offstage: warning: " + shown + "offstage: error: " + shown);
}

TEST(Log, LinesOfATableStayLinesWithoutEscapeSequences) {
  testing::internal::CaptureStdout();
  log::write_lines("a  b\n1  \x1b[m");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "a  b\n1  \\x1b[m\n");
}

TEST(Log, AnEndlessWarningIsCut) {
  testing::internal::CaptureStderr();
  log::warning("{}", std::string(10'000'000, '\n'));
  EXPECT_LT(testing::internal::GetCapturedStderr().size(), longest_message + 100);
}

}  // namespace
}  // namespace offstage
