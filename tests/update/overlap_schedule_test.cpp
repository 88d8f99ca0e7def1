// Random schedules of updates that begin under backward, over the smallest pools: kept, done again,
// skipped, left to the next forward, or abandoned halfway. A plain update says what must come out.
//   OFFSTAGE_FAULT_SECONDS=600 overlap_test --gtest_filter='*AtRandom*'    so long
//   OFFSTAGE_FAULT_SEED=N                                                  the first one's seed (1)
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/stopwatch.hpp"
#include "early_update.hpp"
#include "stall_watch.hpp"

namespace offstage::update {
namespace {

/// Of so many subgroups; a few, for they take longer than what is done with them.
Values const& gradient_of(int subgroups, int which) {
  static std::map<std::pair<int, int>, Values> made;
  auto const [at, is_new] = made.try_emplace({subgroups, which});
  if (is_new) {
    at->second = random_values<bfloat16>(Shard{subgroups}.size, static_cast<std::uint64_t>(which));
  }
  return at->second;
}

/// What a step turns out to be.
enum class Verdict { plain, kept, again, skipped, abandoned };

class Schedule {
 public:
  explicit Schedule(unsigned seed) : random_{seed} {
    draw_scene(seed);
    what_ = fmt::format(
        "seed {}: {} subgroups ({} resident), {} paths, {} workers, {} buffers, {} cached, {} "
        "spare "
        "slots, {} spare buffers, gradients {} and {}, {} rounds, flush {}, device {} with {} "
        "buffers, "
        "share {}, {} bytes of gradients, transfers {}",
        seed, scene_.subgroups, scene_.residents, scene_.paths, scene_.workers, scene_.buffers,
        scene_.cached, scene_.spare_slots, scene_.spare_buffers, scene_.gradient_buffers,
        scene_.gradients_cached, scene_.rounds, scene_.flush, scene_.on_device,
        scene_.chunk_buffers, scene_.share, scene_.held_room, static_cast<int>(scene_.transfers));
  }

  void run(StallWatch& watch) {
    ahead_.emplace(scene_);
    plain_.emplace(ahead_->shard());
    add_mishaps();
    for (int step = 0; step < 5 && failure_.empty(); ++step) {
      watch.say(fmt::format("{}, step {}", what_, step));
      if (!take_step()) {
        return;
      }
    }
    ahead_->update().finish();
    expect_state("the end");
  }

  [[nodiscard]] std::string const& what() const { return what_; }
  /// The first thing that was wrong.
  [[nodiscard]] std::string const& failure() const { return failure_; }
  [[nodiscard]] std::int64_t reverted() const { return reverted_; }

 private:
  int draw(int from, int to) {
    return from + static_cast<int>(random_() % static_cast<unsigned>(to - from + 1));
  }
  std::int64_t few_or_all(int all) { return draw(0, 1) == 0 ? draw(0, 2) : all; }
  void draw_scene(unsigned seed) {
    scene_.subgroups = draw(1, 8);
    scene_.paths = draw(0, 2);
    scene_.workers = draw(1, 4);
    scene_.on_device = draw(0, 2) == 0;
    scene_.residents = scene_.on_device ? draw(0, std::min(2, scene_.subgroups - 1)) : 0;
    int const rest = scene_.subgroups;
    scene_.buffers = draw(1, 3);
    scene_.cached = scene_.paths == 0 || draw(0, 7) == 0 ? rest : draw(0, rest);
    scene_.spare_slots = few_or_all(rest);
    scene_.spare_buffers = few_or_all(rest);
    scene_.gradient_buffers = draw(1, 2);
    scene_.gradients_cached = scene_.paths == 0 ? rest : draw(0, 1) == 0 ? 0 : draw(0, rest);
    scene_.flush = draw(0, 4) == 0;
    scene_.rounds = draw(1, 2);
    scene_.evict = draw(0, 1) == 0 ? tiers::Evict::farthest : tiers::Evict::oldest;
    scene_.seed = seed;
    scene_.share = 0.25 * draw(0, 4);
    scene_.chunk_buffers = draw(1, 2);
    scene_.parameter_buffers = draw(1, 2);
    scene_.held_room = draw(0, 1) == 0 || scene_.flush ? 0 : draw(1, 12) * 2 * chunk_elements;
    scene_.transfers = draw(0, 3) == 0 ? plan::Transfers::blocking : plan::Transfers::overlap;
  }
  void expect(bool good, std::string const& what) {
    if (!good && failure_.empty()) {
      failure_ = what;
    }
  }
  /// Requests that are late, short or refused at first.
  void add_mishaps() {
    if (draw(0, 2) > 0) {
      return;
    }
    auto const random = std::make_shared<std::mt19937>(random_());
    ahead_->faults().on_submit = [random](aio::Transfer& transfer) {
      unsigned const choice = (*random)() % 16;
      if (choice < 3) {
        transfer.length = std::min<Bytes>(transfer.length, 4 * KiB);
      }
      return choice == 3 ? -EINTR : choice == 4 ? -EAGAIN : 0;
    };
  }

  /// False: the run has ended.
  bool take_step() {
    Values gradient = gradient_of(scene_.subgroups, draw(1, 3));
    auto const verdict =
        static_cast<Verdict>(std::discrete_distribution<int>{{2.0, 5.0, 5.0, 3.0, 0.5}}(random_));
    if (verdict == Verdict::skipped && draw(0, 1) == 0) {
      static constexpr float bad = std::numeric_limits<float>::quiet_NaN();
      gradient[random_() % gradient.size()] = store<bfloat16>(bad);
    }
    ahead_->update().finish();
    if (verdict == Verdict::plain) {
      ahead_->first_rounds();
      expect(bring(gradient, 0), "a reader sees other parameters");
      ahead_->drain();
      ahead_->run(step_of(t_));
      plain_->step(step_of(t_), gradient);
      ++t_;
      read();
      return true;
    }
    double const most = verdict == Verdict::kept || draw(0, 1) == 0
                            ? no_clipping
                            : squares_of(gradient) * 0.01 * draw(0, 99);
    ahead_->begin_early(step_of(t_), most);
    if (verdict == Verdict::abandoned) {
      abandon(gradient);
      return false;
    }
    expect(bring(gradient, 0), "a reader sees other parameters");
    ahead_->drain();
    linger();
    judge(verdict, gradient);
    return true;
  }
  /// As far down as that. Backward reads what it will not need again, as it was before this step.
  bool bring(Values const& gradient, std::int64_t down_to) {
    bool good = true;
    for (std::int64_t index = scene_.subgroups - 1; index >= down_to; --index) {
      ahead_->wait_for(index);
      good = good && (draw(0, 3) > 0 || ahead_->shows(index, plain_->copy()));
      linger();
      ahead_->bring(index, gradient);
    }
    return good;
  }
  void judge(Verdict verdict, Values const& gradient) {
    auto& update = ahead_->update();
    if (verdict == Verdict::kept) {
      update.confirm();
      plain_->step(step_of(t_), gradient);
      ++t_;
      read();
      return;
    }
    auto const taken = update.revert();
    reverted_ += std::ssize(taken.subgroups);
    expect(taken.stats.tried == std::ssize(taken.subgroups), "tried is not what was reverted");
    if (draw(0, 1) == 0) {
      expect_state("what was taken back");
    }
    for (std::int64_t index = 0; index < scene_.subgroups; ++index) {
      bool const changed = std::ranges::count(taken.subgroups, index) > 0;
      expect(changed != ahead_->shows(index, plain_->copy()),
             fmt::format("reverted is not what was changed: {}", index));
    }
    if (verdict == Verdict::skipped) {
      ahead_->rebuild(taken.subgroups);
      ahead_->readiness().finish();
    } else {
      static_cast<void>(draw(0, 1));
      ahead_->run(step_of(t_, 0.1));
      plain_->step(step_of(t_, 0.1), gradient);
      ++t_;
    }
    read();
  }
  /// The next forward, under what goes on.
  void read() {
    for (std::int64_t index = 0; index < scene_.subgroups; ++index) {
      ahead_->wait_for(index);
      expect(ahead_->shows(index, plain_->copy()),
             fmt::format("the next forward sees other parameters: {}", index));
    }
    if (draw(0, 2) == 0) {
      ahead_->update().finish();
      expect_state("a step");
    }
  }
  void abandon(Values const& gradient) {
    expect(bring(gradient, draw(0, scene_.subgroups)), "a reader sees other parameters");
    linger();
    ahead_->update().abandon();
    ahead_->drain();
    std::ignore = ahead_->state().revert_trials();
    expect_state("what was abandoned");
  }
  void expect_state(std::string const& of) {
    expect(plain_->state() == state_of(ahead_->shard(), ahead_->state()),
           "other state after " + of);
  }
  /// So that trips come at any moment.
  void linger() {
    if (draw(0, 2) == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds{draw(0, 600)});
    }
  }

  std::mt19937 random_;
  Scene scene_;
  std::string what_;
  std::optional<EarlyUpdate> ahead_;
  std::optional<Plain> plain_;
  int t_ = 1;  ///< of the next step that is not skipped
  std::int64_t reverted_ = 0;
  std::string failure_;
};

unsigned number(char const* name, unsigned otherwise) {
  char const* const text = std::getenv(name);
  return text == nullptr ? otherwise : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}

TEST(OverlapSchedules, AtRandomHaveTheBitsOfPlainUpdatesAndEnd) {
  unsigned const seconds = number("OFFSTAGE_FAULT_SECONDS", 0);
  unsigned const first = number("OFFSTAGE_FAULT_SEED", 1);
  constexpr unsigned schedules = 40;
  std::int64_t reverted = 0;
  unsigned done = 0;
  StallWatch stall;
  Stopwatch const watch;
  for (; seconds == 0 ? done < schedules : watch.elapsed() < Seconds{seconds}; ++done) {
    Schedule schedule{first + done};
    schedule.run(stall);
    reverted += schedule.reverted();
    ASSERT_EQ(schedule.failure(), "") << schedule.what();
  }
  std::printf("%u schedules, %lld updates on trial taken back\n", done,
              static_cast<long long>(reverted));
  EXPECT_GT(reverted, 0);
}

}  // namespace
}  // namespace offstage::update
