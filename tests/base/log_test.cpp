#include "base/log.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include "base/printable.hpp"

namespace offstage {
namespace {

TEST(Log, InformationGoesToStandardOutput) {
  testing::internal::CaptureStdout();
  log::info("step {} of {}", 3, 10);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "step 3 of 10\n");
}

TEST(Log, AFailedWriteToStandardOutputIsRemembered) {
  EXPECT_EQ(log::take_lost_output(), 0);
  int const kept = dup(STDOUT_FILENO);
  int const full = open("/dev/full", O_WRONLY);
  dup2(full, STDOUT_FILENO);
  log::info("lost");
  dup2(kept, STDOUT_FILENO);
  close(full);
  close(kept);
  EXPECT_EQ(log::take_lost_output(), ENOSPC);
  EXPECT_EQ(log::take_lost_output(), 0);
}

TEST(Log, WarningsAndErrorsGoToStandardErrorAndSayWhoSpeaks) {
  testing::internal::CaptureStderr();
  log::warning("no locks on {}", "/pfs");
  log::error("{} is full", "/nvme");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "offstage: warning: no locks on /pfs\noffstage: error: /nvme is full\n");
}

TEST(Log, AnAsideGoesToStandardErrorAsItIs) {
  testing::internal::CaptureStderr();
  log::write_aside("a  1\n");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "a  1\\x0a\n");
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

TEST(Log, DatedLinesBeginWithTheTime) {
  testing::internal::CaptureStdout();
  log::dated("step {}", 3);
  EXPECT_THAT(
      testing::internal::GetCapturedStdout(),
      testing::MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z step 3\n"));
}

TEST(Log, AStatusIsALineThatTheNextOneTakesThePlaceOf) {
  std::vector<log::Styled> const parts{{"  ", log::Style::bar}, {" 3 %\n"}};
  testing::internal::CaptureStdout();
  log::write_status(parts, false);
  log::write_status(parts, true);
  log::info("done");
  log::info("really");
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            "   3 %\\x0a\x1b[K\r"
            "\x1b[42m  \x1b[0m 3 %\\x0a\x1b[K\r"
            "\x1b[Kdone\nreally\n");
}

TEST(Log, AStatusIsNoWiderThanATerminal) {
  std::vector<log::Styled> const parts{{std::string(60, 'a')}, {std::string(60, 'b')}, {"c"}};
  testing::internal::CaptureStdout();
  log::write_status(parts, false);
  log::info("end");
  auto const text = testing::internal::GetCapturedStdout();
  EXPECT_EQ(std::ranges::count(text, 'a'), 60);
  EXPECT_EQ(std::ranges::count(text, 'b'), 0) << "half a part may be half a number";
  EXPECT_EQ(std::ranges::count(text, 'c'), 0);
}

}  // namespace
}  // namespace offstage
