// Updates that begin under backward while backward or a tier fails: an error, and nothing hangs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <tuple>

#include "base/error.hpp"
#include "early_update.hpp"
#include "stall_watch.hpp"

namespace offstage::update {
namespace {

TEST(OverlapFaults, EndsWithoutHangingWhenBackwardFailsHalfway) {
  StallWatch watch;
  for (Scene const& scene : scenes()) {
    SCOPED_TRACE(text(scene));
    for (std::int64_t const reached : {7, 4, 0}) {
      watch.say(fmt::format("{}, failing at {}", text(scene), reached));
      EarlyUpdate ahead{scene};
      Plain plain{ahead.shard()};
      Values const& gradient = gradient_at(1);
      ahead.begin_early(step_of(1));
      for (std::int64_t index = 6; index >= reached; --index) {
        ahead.bring(index, gradient);
      }
      ahead.update().abandon();
      ahead.drain();  // calls of complete that are late
      std::ignore = ahead.state().revert_trials();
      EXPECT_TRUE(plain.state() == state_of(ahead.shard(), ahead.state()));
    }
  }
}

TEST(OverlapFaults, EndsWithItsOwnerAtAnyMoment) {
  StallWatch const watch;
  for (int moment = 0; moment < 4; ++moment) {
    EarlyUpdate ahead{all_on_trial()};
    ahead.begin_early(step_of(1));
    if (moment > 0) {
      ahead.backward(gradient_at(1));
    }
    if (moment > 1) {
      ahead.update().confirm();
    }
    if (moment > 2) {
      ahead.wait_for(0);
    }
  }
}

enum class Failing { reads, writes };

void fail_from_now(EarlyUpdate& ahead, Failing what) {
  ahead.faults().on_complete = [what](aio::Transfer const& transfer, aio::Completion& completion) {
    bool const read = transfer.direction == aio::Direction::read;
    if (read == (what == Failing::reads)) {
      completion.result = -EIO;
    }
  };
}

TEST(OverlapFaults, AFaultUnderATrialIsAnErrorOfTheVerdictAndOfReaders) {
  StallWatch watch;
  for (Failing const what : {Failing::reads, Failing::writes}) {
    for (bool const keep : {true, false}) {
      for (int const workers : {1, 3}) {
        watch.say(
            fmt::format("fault {}, kept {}, {} workers", static_cast<int>(what), keep, workers));
        Scene scene = all_on_trial();
        scene.workers = workers;
        scene.buffers = 1;
        scene.gradients_cached = scene.subgroups;  // so that the state alone is on storage
        EarlyUpdate ahead{scene};
        ::testing::internal::CaptureStderr();
        fail_from_now(ahead, what);
        ahead.begin_early(step_of(1));
        ahead.backward(gradient_at(1));
        EXPECT_THROW(ahead.readiness().wait(0, ahead.shard().size), IoError);
        if (keep) {
          ahead.update().confirm();
          EXPECT_THROW(ahead.update().finish(), IoError);
        } else {
          EXPECT_THROW(std::ignore = ahead.update().revert(), IoError);
        }
        EXPECT_THROW(ahead.readiness().wait(0, 1), IoError);
        (void)::testing::internal::GetCapturedStderr();
      }
    }
  }
}

}  // namespace
}  // namespace offstage::update
