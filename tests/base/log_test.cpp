#include "base/log.hpp"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace offstage
