// Trials in the virtual tier on storage that fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "base/thread.hpp"
#include "tiers/virtual_trials.hpp"

namespace offstage::tiers {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

TEST_F(VirtualTrials, VerifyTheVersionBeforeThatARevertBringsBack) {
  fill(3, 0, 3, 0);
  EXPECT_TRUE(try_out(*tiers, 1, 10));
  tiers->revert_trials();
  kernel->on_complete = [](aio::Transfer const& transfer, aio::Completion&) {
    transfer.memory[77] ^= std::byte{1};
  };
  EXPECT_THAT(message_of([&] { (void)tiers->fetch(1); }), ::testing::HasSubstr("checksum"));
}

TEST_F(VirtualTrials, GoToAnotherPathIfAWriteFails) {
  add_paths(2);
  fill(6, 0, 6, 0);
  ::testing::internal::CaptureStderr();
  fail_writes(1);
  trial_pass(descending(6), 0);
  EXPECT_THAT(tiers->revert_trials(), SizeIs(6));
  EXPECT_TRUE(pass(*tiers, ascending(6), 0));
  trial_pass(descending(6), 1);
  tiers->accept_trials();
  EXPECT_TRUE(pass(*tiers, ascending(6), 2));
  EXPECT_EQ(count(::testing::internal::GetCapturedStderr(), "is left out"), 1U);
}

TEST_F(VirtualTrials, CanBeRevertedWhenNoPathIsLeft) {
  for (std::int64_t const cached : {0, 1}) {
    kernel->on_complete = nullptr;
    fill(3, cached, 3, 3);
    auto lease = tiers->fetch_on_trial(2);
    ASSERT_TRUE(lease);
    set(*lease, 10);
    ::testing::internal::CaptureStderr();
    fail_writes();
    if (cached > 0) {
      lease->commit();  // stays in the cache
      lease = std::nullopt;
      lease.emplace(tiers->fetch(0));
    }
    EXPECT_THAT(message_of([&] { lease->commit(); }),
                ::testing::HasSubstr("no tiers.path is left"));
    EXPECT_EQ(count(::testing::internal::GetCapturedStderr(), "is left out"), 1U);
    EXPECT_TRUE(holds(*tiers, 2, 10));
    EXPECT_THAT(tiers->revert_trials(), ElementsAre(2));
    for (Key key = 0; key < 3; ++key) {
      EXPECT_TRUE(holds(*tiers, key, static_cast<int>(key)));
    }
  }
}

TEST_F(VirtualTrials, ThatCannotBeReadGiveTheirSpareBack) {
  fill(2, 0, 1, 0);
  kernel->on_complete = [](aio::Transfer const&, aio::Completion& completion) {
    completion.result = -EIO;
  };
  EXPECT_THROW((void)tiers->fetch_on_trial(0), IoError);
  kernel->on_complete = nullptr;
  EXPECT_TRUE(try_out(*tiers, 1, 10));
}

TEST_F(VirtualTrials, EndWhenEveryPathFails) {
  constexpr Key n = 12;
  settings.buffers = 2;
  fill(n, 2, 4, 2);
  EXPECT_TRUE(try_out(*tiers, 10, 10));  // as it is
  EXPECT_TRUE(try_out(*tiers, 11, 11));
  std::atomic<int> errors = 0;
  ::testing::internal::CaptureStderr();
  fail_writes();
  {
    std::vector<NamedThread> threads;
    for (Key t = 0; t < 6; ++t) {
      threads.emplace_back("worker", [&, t] {
        try {
          for (Key key = 0; key < n; ++key) {
            auto on_trial = tiers->fetch_on_trial((key + 2 * t) % n);
            Lease lease = on_trial ? Lease{*std::move(on_trial)} : tiers->fetch((key + 2 * t) % n);
            (void)lease.mutable_bytes();
            lease.commit();
          }
        } catch (IoError const&) {
          ++errors;
        }
      });
    }
  }
  (void)::testing::internal::GetCapturedStderr();
  EXPECT_EQ(errors, 6);
  EXPECT_THAT(tiers->revert_trials(), ::testing::IsSupersetOf<Key>({10, 11}));
  for (Key key = 0; key < n; ++key) {
    if (tiers->in_memory(key)) {
      EXPECT_TRUE(holds(*tiers, key, static_cast<int>(key)));
    }
  }
}

}  // namespace
}  // namespace offstage::tiers
