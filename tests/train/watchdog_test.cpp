#include "train/run/watchdog.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include "base/failing_allocations.hpp"
#include "base/stopwatch.hpp"
#include "base/watch.hpp"
#include "platform/aio/kernel.hpp"
#include "temporary_directory.hpp"
#include "tiers/tiers.hpp"
#include "tiers/virtual_tiers.hpp"

namespace offstage::train {
namespace {

using ::testing::ContainsRegex;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

void sleep_for(Seconds time) {
  std::this_thread::sleep_for(time);
}

/// Lets the storage answer nothing until release().
class StuckKernel final : public aio::Kernel {
 public:
  int setup(int depth, Context& context) override { return real_->setup(depth, context); }
  int submit(Context context, aio::Transfer const& transfer) override {
    return real_->submit(context, transfer);
  }
  int get_events(Context context, std::span<aio::Completion> completions) override {
    if (stuck_.exchange(false)) {
      released_.get_future().wait();
    }
    return real_->get_events(context, completions);
  }
  void destroy(Context context) noexcept override { real_->destroy(context); }

  void stick() { stuck_ = true; }
  void release() { released_.set_value(); }

 private:
  std::shared_ptr<aio::Kernel> real_ = aio::libaio_kernel();
  std::atomic<bool> stuck_ = false;
  std::promise<void> released_;
};

/// What a watchdog of 0.2 s says while this thread hangs in `work`, which gets what ends with the
/// call of abort.
template <class Work>
std::string barking(Work const& work) {
  std::promise<void> aborted;
  CaptureStderr();
  {
    Watchdog const watchdog{Seconds{0.2}, 3, [&] { aborted.set_value(); }};
    work(aborted.get_future());
  }
  return GetCapturedStderr();
}

TEST(Watchdog, EndsTheJobWithoutMemoryAsWell) {
  std::string const text = barking([](std::future<void> const& aborted) {
    Waiting const waiting{"all_gather"};
    FailingAllocations const failing{1, 1'000'000'000};
    aborted.wait();
  });
  EXPECT_THAT(text,
              ContainsRegex("^offstage: error: no progress \\(run\\.watchdog\\), and no memory"));
}

TEST(Watchdog, SaysWhoHangsAndWhatEveryThreadWaitsFor) {
  Stopwatch const watch;
  std::string const text = barking([](std::future<void> const& aborted) {
    Waiting const layer{"layer", 2};
    Waiting const waiting{"all_gather"};
    aborted.wait();
  });
  EXPECT_GE(watch.elapsed().count(), 0.2);
  EXPECT_THAT(text, ContainsRegex("^offstage: error: rank 3 on [^:]+: no progress for 0\\.[0-9]+ s "
                                  "\\(run\\.watchdog\\); the job is ended"));
  EXPECT_THAT(text, ContainsRegex("\noffstage: error: rank 3: thread main has been [0-9.]+ s in "
                                  "all_gather for layer 2\n"));
}

TEST(Watchdog, StaysQuietWhileAnyThreadMakesProgress) {
  std::atomic<bool> aborted = false;
  CaptureStderr();
  {
    Watchdog const watchdog{Seconds{2.0}, 0, [&] { aborted = true; }};
    Waiting const waiting{"the compute lane"};
    NamedThread worker{"update-0", [] {
                         for (int i = 0; i < 125; ++i) {
                           sleep_for(Seconds{0.02});
                           made_progress();
                         }
                       }};
    worker.join();
  }
  EXPECT_FALSE(aborted);
  EXPECT_EQ(GetCapturedStderr(), "");
}

TEST(Watchdog, OfZeroNeverBarks) {
  std::atomic<bool> aborted = false;
  {
    Watchdog const watchdog{Seconds{0.0}, 0, [&] { aborted = true; }};
    sleep_for(Seconds{0.05});
  }
  EXPECT_FALSE(aborted);
}

TEST(Watchdog, EndsAtOnceWithTheRun) {
  Stopwatch const watch;
  {
    Watchdog const watchdog{Seconds{3600.0}, 0, [] {}};
  }
  EXPECT_LT(watch.elapsed().count(), 600.0);
}

TEST(Watchdog, DoesNotCountWhatWasBeforeIt) {
  made_progress();
  sleep_for(Seconds{0.3});
  CaptureStderr();
  {
    Watchdog const watchdog{Seconds{0.25}, 0, [] {}};
  }
  EXPECT_EQ(GetCapturedStderr(), "");
}

TEST(Watchdog, NamesTheReadThatStorageDoesNotAnswer) {
  TemporaryDirectory const directory;
  auto const kernel = std::make_shared<StuckKernel>();
  tiers::PathSettings path;
  path.directory = directory.path();
  path.read_rate = path.write_rate = 1e9;
  tiers::VirtualSettings settings;
  settings.paths = tiers::make_paths({.paths = {path}, .kernel = kernel});
  settings.spill = "offstage-watch";
  settings.buffers = 1;
  auto const tiers = tiers::make_virtual_tiers({8192, 8192}, settings);
  tiers->create(1).commit();
  std::string const text = barking([&](std::future<void> const& aborted) {
    kernel->stick();
    NamedThread fetches{"update-0", [&] { tiers::Lease const lease = tiers->fetch(1); }};
    auto const until = [](std::string const& thread, std::string const& waits_for) {
      while (std::ranges::none_of(thread_states(), [&](ThreadState const& state) {
        return state.thread == thread && state.what.starts_with(waits_for);
      })) {
        made_progress();
        sleep_for(Seconds{0.001});
      }
    };
    until("update-0", "a read from storage");
    NamedThread waits{"update-1", [&] { tiers->create(0).commit(); }};
    until("update-1", "a buffer");
    aborted.wait();
    kernel->release();
  });
  EXPECT_THAT(text, ContainsRegex("thread update-0 has been [0-9.]+ s in a read from storage, "
                                  "offset [0-9]+ for the fetch of extent 1\n"));
  EXPECT_THAT(text, ContainsRegex("thread update-1 has been [0-9.]+ s in a buffer and the lease "
                                  "of extent 0\n"));
}

}  // namespace
}  // namespace offstage::train
