// Random schedules of several threads over the smallest pools: leases, on trial and not, committed
// and discarded, trials accepted and reverted. A model says what every fetch must show.
//   OFFSTAGE_FAULT_SECONDS=600 tiers_test --gtest_filter='*AtRandom*'    so long, in place of a few
//   OFFSTAGE_FAULT_SEED=N                                                the first one's seed (1)
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/stopwatch.hpp"
#include "base/thread.hpp"
#include "platform/kept_contexts.hpp"
#include "tiers/versioned_bytes.hpp"
#include "tiers/virtual_support.hpp"
#include "update/deadline.hpp"

namespace offstage::tiers {
namespace {

/// Of all schedules.
std::shared_ptr<aio::Kernel> contexts() {
  static auto const contexts = std::make_shared<aio::KeptContexts>();
  return contexts;
}

/// A configuration from a seed, and what threads do with it.
class Schedule : private VirtualFixture {
 public:
  explicit Schedule(unsigned seed) : random_{seed} {
    kernel = std::make_shared<aio::FaultyKernel>(contexts());
    keys_ = draw(2, 7);
    tried_keys_ = keys_ - draw(0, static_cast<int>(keys_ / 2));
    add_paths(draw(0, 2));
    settings.buffers = draw(1, 3);
    settings.cached = paths.empty() || draw(0, 7) == 0 ? keys_ : draw(0, static_cast<int>(keys_));
    settings.spare_slots = draw(0, 1) == 0 ? draw(0, 2) : keys_;
    settings.spare_buffers = draw(0, 1) == 0 ? draw(0, 2) : keys_;
    static constexpr std::array evictions{Evict::farthest, Evict::oldest, Evict::highest};
    settings.evict = evictions.at(static_cast<std::size_t>(draw(0, 2)));
    settings.verify = draw(0, 1) == 0 ? Verify::always : Verify::sample;
    workers_ = draw(1, 4);
    bool const faults = draw(0, 2) == 0;
    what_ = fmt::format(
        "seed {}: {} paths, {} keys, {} tried, {} buffers, {} cached, {} spare slots, {} spare "
        "buffers, {} workers, faults {}",
        seed, paths.size(), keys_, tried_keys_, settings.buffers, settings.cached,
        settings.spare_slots, settings.spare_buffers, workers_, faults);
    if (faults) {
      add_faults(seed);
    }
  }

  void run() {
    update::Deadline const deadline{std::chrono::seconds{60}, what_};
    ::testing::internal::CaptureStderr();
    make_first_versions();
    auto const slots = all_slots();
    for (int round = 0; round < 5; ++round) {
      tiers_->begin_pass();
      std::vector<NamedThread> threads;
      for (int t = 0; t < workers_; ++t) {
        threads.emplace_back("worker", [this, seed = draw_seed()] { work(seed, 12); });
      }
      threads.clear();
      judge();
      expect_versions();
    }
    accept();
    expect_spares();
    if (paths.size() == 1) {
      expect(all_slots() == slots, "more slots than were asked for");
    }
    (void)::testing::internal::GetCapturedStderr();
  }

  [[nodiscard]] std::string const& what() const { return what_; }
  /// The first thing that was wrong.
  [[nodiscard]] std::string const& failure() const { return failure_; }
  [[nodiscard]] int reverted() const { return reverted_; }

 private:
  /// What is known of a key; whoever has its lease writes it. When its last trial was accepted, if
  /// it was, is known by how many accepts had ended before it was asked for, and had begun when the
  /// lease was there.
  struct Line {
    int version = 0;
    int latest = 0;
    bool tried = false;  ///< since the last verdict
    int before = 0;
    int accepted = 0;
    int accepting = 0;
  };

  int draw(int from, int to) {
    return from + static_cast<int>(random_() % static_cast<unsigned>(to - from + 1));
  }
  unsigned draw_seed() { return static_cast<unsigned>(random_()); }
  void expect(bool good, std::string const& what) {
    std::scoped_lock const lock{mutex_};
    if (!good && failure_.empty()) {
      failure_ = what_ + ": " + what;
    }
  }

  /// Short transfers and EINTR; the last of two paths takes nothing more after a while.
  void add_faults(unsigned seed) {
    auto const random = std::make_shared<std::mt19937>(seed);
    auto const writes = std::make_shared<int>(0);
    kernel->on_submit = [random](aio::Transfer& transfer) {
      unsigned const choice = (*random)() % 16;
      if (choice < 3) {
        transfer.length = std::min<Bytes>(transfer.length, 4 * KiB);
      }
      return choice == 3 ? -EINTR : choice == 4 ? -EAGAIN : 0;
    };
    kernel->on_complete = [this, writes](aio::Transfer const& transfer,
                                         aio::Completion& completion) {
      if (transfer.direction == aio::Direction::write && ++*writes > 40 && paths.size() == 2 &&
          path_of(transfer) == 1) {
        completion.result = -EIO;
      }
    };
  }

  static Bytes size_of(Key key) { return key % 3 == 0 ? 8 * KiB : 3000 * (key % 3) + 8; }
  void make_first_versions() {
    std::vector<Bytes> sizes;
    for (Key key = 0; key < keys_; ++key) {
      sizes.push_back(size_of(key));
    }
    tiers_ = make(sizes);
    lines_.resize(sizes.size());
    for (Key key = 0; key < keys_; ++key) {
      Lease lease = tiers_->create(key);
      write(lease, 0);
      lease.commit();
    }
  }
  [[nodiscard]] std::int64_t all_slots() const {
    std::int64_t sum = 0;
    for (PathSpace const& path : tiers_->space()) {
      sum += path.slots;
    }
    return sum;
  }
  Line& line(Key key) { return lines_[static_cast<std::size_t>(key)]; }

  void work(unsigned seed, int steps) {
    std::mt19937 random{seed};
    for (int i = 0; i < steps; ++i) {
      auto const key = static_cast<Key>(random() % static_cast<unsigned>(keys_));
      unsigned const choice = random() % 16;
      if (choice == 0) {
        accept();
      } else if (choice < 9 && key < tried_keys_) {
        try_out(key, random);
      } else {
        replace(key, random);
      }
    }
  }
  void try_out(Key key, std::mt19937& random) {
    int const accepted = accepted_;
    auto lease = tiers_->fetch_on_trial(key);
    if (!lease) {
      return replace(key, random);
    }
    int const accepting = accepting_;
    Line& known = line(key);
    expect(holds(*lease, known.version), "a fetch on trial shows other bytes");
    expect(!known.tried || known.accepted < accepting, "a key is on trial twice");
    linger(random);
    if (random() % 8 == 0) {
      accept();
    }
    if (random() % 4 == 0) {
      if (accepted == accepting) {  // else it may be an ordinary lease
        write(*lease, 1 << 20);
      }
      return;
    }
    known = {.version = known.latest + 1,
             .latest = known.latest + 1,
             .tried = true,
             .before = known.version,
             .accepted = accepted,
             .accepting = accepting};
    write(*lease, known.version);
    lease->commit();
  }
  void replace(Key key, std::mt19937& random) {
    bool const create = random() % 8 == 0;
    Lease lease = create ? tiers_->create(key) : tiers_->fetch(key);
    Line& known = line(key);
    if (!create) {
      expect(holds(lease, known.version), "a fetch shows other bytes");
    }
    linger(random);
    if (random() % 4 != 0) {
      known.version = ++known.latest;
      write(lease, known.version);
      lease.commit();
    }
  }
  /// So that others wait for what this one holds.
  static void linger(std::mt19937& random) {
    if (random() % 4 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds{random() % 300});
    }
  }
  void accept() {
    std::scoped_lock const lock{accepts_};
    ++accepting_;
    tiers_->accept_trials();
    ++accepted_;
  }

  /// Between rounds: nobody holds a lease on trial.
  void judge() {
    int const verdict = draw(0, 3);
    if (verdict < 2) {
      revert();
    } else if (verdict == 2) {
      accept();
      for (Line& each : lines_) {
        each.tried = false;
      }
    }
  }
  void revert() {
    std::vector<Key> const reverted = revert_beside_others();
    for (Key key = 0; key < keys_; ++key) {
      Line& known = line(key);
      bool const is = std::ranges::count(reverted, key) > 0;
      bool const must = known.tried && known.accepted == accepting_;
      bool const may = known.tried && known.accepting == accepting_;
      expect(is || !must, "a version on trial is not reverted");
      expect(!is || may, "a version is reverted that is not on trial");
      known.version = is ? known.before : known.version;
      known.tried = false;
      reverted_ += is ? 1 : 0;
    }
  }

  /// While another thread goes on with keys that are not tried, if there are any, which drives out
  /// others.
  std::vector<Key> revert_beside_others() {
    std::atomic<int> steps = 0;
    std::atomic<bool> done = tried_keys_ == keys_;
    NamedThread const other{"other", [&, seed = draw_seed()] {
                              std::mt19937 random{seed};
                              while (!done) {
                                auto const beyond = static_cast<unsigned>(keys_ - tried_keys_);
                                replace(tried_keys_ + static_cast<Key>(random() % beyond), random);
                                ++steps;
                              }
                            }};
    for (int const wanted = draw(0, 3); !done && steps < wanted;) {
      std::this_thread::yield();
    }
    auto reverted = tiers_->revert_trials();
    done = true;
    return reverted;
  }

  void expect_versions() {
    Bytes sum = 0;
    Bytes there = tiers_->residence().host;
    for (Bytes const bytes : tiers_->residence().paths) {
      there += bytes;
    }
    for (Key key = 0; key < keys_; ++key) {
      expect(holds(tiers_->fetch(key), line(key).version), "a key has other bytes");
      sum += size_of(key);
    }
    expect(sum == there, "an extent is nowhere, or twice");
  }
  /// None was lost, and none is found that was not asked for. Nothing is on trial, nobody else is
  /// there.
  void expect_spares() {
    std::int64_t slots = settings.spare_slots;
    std::int64_t buffers = settings.spare_buffers;
    for (Key key = 0; key < keys_; ++key) {
      std::int64_t& spares = tiers_->in_memory(key) ? buffers : slots;
      auto lease = tiers_->fetch_on_trial(key);
      expect(lease.has_value() == (spares > 0), "a spare was lost or found");
      if (lease) {
        --spares;
        write(*lease, 1 << 20);
        lease->commit();
      }
    }
    tiers_->revert_trials();
    expect_versions();
  }

  std::mt19937 random_;
  std::string what_;
  Key keys_{};
  Key tried_keys_{};  ///< those below are put on trial
  int workers_{};
  std::unique_ptr<Tiers> tiers_;
  std::vector<Line> lines_;
  std::mutex accepts_;  ///< one at a time
  std::atomic<int> accepting_ = 0;
  std::atomic<int> accepted_ = 0;
  int reverted_ = 0;
  std::mutex mutex_;  ///< guards what follows
  std::string failure_;
};

unsigned number(char const* name, unsigned otherwise) {
  char const* const text = std::getenv(name);
  return text == nullptr ? otherwise : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}

TEST(TrialSchedules, AtRandomShowWhatWasCommittedAndNotReverted) {
  unsigned const seconds = number("OFFSTAGE_FAULT_SECONDS", 0);
  unsigned const first = number("OFFSTAGE_FAULT_SEED", 1);
  constexpr unsigned schedules = 60;
  int reverted = 0;
  unsigned done = 0;
  Stopwatch const watch;
  for (; seconds == 0 ? done < schedules : watch.elapsed() < Seconds{seconds}; ++done) {
    Schedule schedule{first + done};
    schedule.run();
    reverted += schedule.reverted();
    ASSERT_EQ(schedule.failure(), "") << schedule.what();
  }
  std::printf("%u schedules, %d versions reverted\n", done, reverted);
  EXPECT_GT(reverted, 0);
}

}  // namespace
}  // namespace offstage::tiers
