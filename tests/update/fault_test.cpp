// Whole updates over the virtual tier while storage fails: at every kind of call, the first, a
// middle and the last one, and at random. A run ends with the bits of a run in host memory, or with
// an error that says what was lost; nothing hangs, and nothing that is not lost is gone.
//   OFFSTAGE_FAULT_SECONDS=600 fault_test --gtest_filter='*Random*'    so long, not a few rounds
//   OFFSTAGE_FAULT_SEED=N                                              the first round's seed (1)
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <random>
#include <set>

#include "base/stopwatch.hpp"
#include "fault_trial.hpp"

/// Takes the place of the C library's in this program.
extern "C" int fallocate(int descriptor, int mode, off_t offset, off_t length) {
  if (auto* const plan = offstage::update::growing.load(); plan != nullptr) {
    if (int const error = plan->grow(); error != 0) {
      errno = error;
      return -1;
    }
  }
  return static_cast<int>(syscall(SYS_fallocate, descriptor, mode, offset, length));
}

namespace offstage::update {
namespace {

using aio::Mishap;
using aio::Site;
using ::testing::HasSubstr;

/// How often a run without faults comes to each site.
class Calls {
 public:
  explicit Calls(Place const& place)
      : trial_{place, [](Site, std::int64_t) { return Mishap{}; }, "no faults"} {
    trial_.run();
    EXPECT_TRUE(trial_.done()) << trial_.error();
    trial_.check();
  }
  /// The first, the middle and the last call.
  [[nodiscard]] std::set<std::int64_t> of(Site site) {
    std::int64_t const calls = trial_.plan().calls(site);
    EXPECT_GT(calls, 0);
    return {0, calls / 2, calls - 1};
  }

 private:
  Trial trial_;
};

std::string describe(Site site, std::int64_t n, Mishap const& mishap) {
  return fmt::format("{} number {}: {}", aio::site_names.at(static_cast<std::size_t>(site)), n,
                     mishap.shorten      ? "fewer bytes"
                     : mishap.flip       ? "a flipped bit"
                     : mishap.error == 0 ? "nothing"
                                         : std::generic_category().message(mishap.error));
}

TEST(Faults, ThatPassChangeNothing) {
  Place const place{.cached = 2, .gradients_cached = 1};
  Calls calls{place};
  for (Site const site : {Site::submit_read, Site::submit_write, Site::wait, Site::complete_read,
                          Site::complete_write}) {
    for (std::int64_t const n : calls.of(site)) {
      for (Mishap const mishap :
           {Mishap{.error = EINTR}, Mishap{.error = EAGAIN}, Mishap{.shorten = true}}) {
        if (site == Site::wait && mishap.error != EINTR) {
          continue;  // io_getevents says nothing else that passes
        }
        Trial trial{place, aio::at_call(site, n, mishap, 3), describe(site, n, mishap)};
        trial.run();
        EXPECT_TRUE(trial.done()) << trial.error();
        EXPECT_GT(trial.plan().mishaps(), 0);
        EXPECT_EQ(trial.left_out(), 0U);
        trial.check();
      }
    }
  }
}

struct Failure {
  Site site;
  Mishap mishap;
};
std::vector<Failure> write_failures() {
  return {{Site::submit_write, {.error = ENODATA}},
          {Site::submit_write, {.error = ENOSPC}},
          {Site::complete_write, {.error = ENODATA}},
          {Site::complete_write, {.error = ENOSPC}},
          {Site::complete_write, {.error = EDQUOT}}};
}

TEST(Faults, OfAWriteAreTakenOverByAnotherPath) {
  for (bool const flush_fp32 : {false, true}) {
    Place const place{.cached = 1, .flush_fp32 = flush_fp32};
    Calls calls{place};
    for (auto const& [site, mishap] : write_failures()) {
      for (std::int64_t const n : calls.of(site)) {
        Trial trial{place, aio::at_call(site, n, mishap), describe(site, n, mishap)};
        trial.run();
        EXPECT_TRUE(trial.done()) << trial.error();
        EXPECT_EQ(trial.plan().errors(site), 1);
        EXPECT_EQ(trial.left_out(), 1U);
        trial.check();
      }
    }
  }
}

TEST(Faults, OfAWriteThatPassLeaveNoPathOut) {
  Place const place{.cached = 1};
  Calls calls{place};
  Mishap const mishap{.error = EIO};
  for (Site const site : {Site::submit_write, Site::complete_write}) {
    for (std::int64_t const n : calls.of(site)) {
      Trial trial{place, aio::at_call(site, n, mishap), describe(site, n, mishap)};
      trial.run();
      EXPECT_TRUE(trial.done()) << trial.error();
      EXPECT_EQ(trial.plan().errors(site), 1);
      EXPECT_EQ(trial.left_out(), 0U);
      trial.check();
    }
  }
}

TEST(Faults, OfAWriteUnderATrialAreTakenOverByAnotherPathToo) {
  for (std::int64_t const cached : {0, 2}) {
    Place const place{
        .cached = cached, .workers = 3, .ahead = true, .spare_slots = 5, .spare_buffers = 1};
    Calls calls{place};
    for (auto const& [site, mishap] : write_failures()) {
      std::int64_t const n = *std::next(calls.of(site).begin());  // there may be fewer in all
      Trial trial{place, aio::at_call(site, n, mishap), describe(site, n, mishap)};
      trial.run();
      EXPECT_TRUE(trial.done()) << trial.error();
      EXPECT_EQ(trial.left_out(), 1U);
      trial.check();
    }
  }
}

TEST(Faults, OfAWriteToTheOnlyPathEndTheRunAndSayWhere) {
  Place const place{.paths = 1};
  Calls calls{place};
  for (auto const& [site, mishap] : write_failures()) {
    for (std::int64_t const n : calls.of(site)) {
      Trial trial{place, aio::at_call(site, n, mishap), describe(site, n, mishap)};
      trial.run();
      trial.check();
      EXPECT_FALSE(trial.done());
      EXPECT_THAT(trial.error(), HasSubstr(trial.directory(0)));
      EXPECT_THAT(trial.error(), HasSubstr(std::generic_category().message(mishap.error)));
    }
  }
}

TEST(Faults, OfAReadPassIfTheyComeOnceAndEndTheRunIfTheyStay) {
  Place const place{.cached = 1};
  Calls calls{place};
  for (Failure const& failure :
       {Failure{Site::submit_read, {.error = EIO}}, Failure{Site::complete_read, {.error = EIO}},
        Failure{Site::complete_read, {.flip = true}}}) {
    auto const& [site, mishap] = failure;
    for (std::int64_t const n : calls.of(site)) {
      for (std::int64_t const times : {1, 1000}) {
        Trial trial{place, aio::at_call(site, n, mishap, times), describe(site, n, mishap)};
        trial.run();
        EXPECT_EQ(trial.done(), times == 1 || trial.plan().errors(site) < 3) << trial.error();
        if (!trial.done()) {
          EXPECT_THAT(trial.error(), HasSubstr(" is lost: "));
          EXPECT_THAT(trial.error(), HasSubstr(mishap.flip ? "its checksum is" : "cannot read"));
        }
        trial.check();
      }
    }
  }
}

TEST(Faults, OfTheWaitForCompletionsAreAnErrorOfThatTransferAlone) {
  Place const place{.cached = 1};
  Calls calls{place};
  for (std::int64_t const n : calls.of(Site::wait)) {
    Mishap const mishap{.error = EINVAL};
    Trial trial{place, aio::at_call(Site::wait, n, mishap), describe(Site::wait, n, mishap)};
    trial.run();
    EXPECT_TRUE(trial.done()) << trial.error();
    EXPECT_EQ(trial.plan().errors(Site::wait), 1);
    trial.check();
  }
}

TEST(Faults, OfGrowthSendTheRestToOtherPaths) {
  // The second path fails at once: the first has to grow.
  for (int const error : {ENOSPC, EDQUOT, EIO, EINTR}) {
    bool failed = false;
    std::int64_t refused = 0;
    auto const decide = [&](Site site, std::int64_t call) -> Mishap {
      if (site == Site::complete_write && !failed) {
        failed = true;
        return {.error = ENODATA};
      }
      bool const refuse = site == Site::grow && (error != EINTR || call < 2);
      refused += refuse ? 1 : 0;
      return {.error = refuse ? error : 0};
    };
    Trial trial{{.paths = 2}, decide, fmt::format("growth: {}", error)};
    trial.run();
    EXPECT_GT(refused, 0);
    EXPECT_EQ(trial.done(), error == EINTR) << trial.error();
    if (!trial.done()) {
      EXPECT_THAT(trial.error(), HasSubstr("cannot make more slots"));
    }
    trial.check();
  }
}

/// The n-th write that a phase makes leaves a wrong bit; the next phase reads it.
TEST(Faults, AFlippedBitInAnyExtentIsFound) {
  for (bool const of_state : {true, false}) {
    for (int subgroup = 0; subgroup < subgroups; ++subgroup) {
      std::atomic<std::int64_t> from = -1;
      std::int64_t flips = 0;
      auto const decide = [&](Site site, std::int64_t) -> Mishap {
        bool const now = site == Site::complete_write && from >= 0 && from-- == 0;
        flips += now ? 1 : 0;
        return {.flip = now};
      };
      Place const place{.paths = 3, .engine = {512 * KiB, 1}};  // a write is an extent
      Trial trial{place, decide, fmt::format("bit of write {}", subgroup)};
      trial.run([&] {
        trial.traffic().begin();
        if (of_state) {
          trial.traffic().step();
          from = 2 * subgroups + subgroup;  // after the gradients of both rounds
        } else {
          from = subgroup;
        }
        trial.traffic().step();
        trial.traffic().step();
      });
      EXPECT_EQ(flips, 1);
      EXPECT_FALSE(trial.done()) << subgroup;
      EXPECT_THAT(trial.error(), HasSubstr(of_state ? "state extent" : "gradient extent"));
      EXPECT_THAT(trial.error(), HasSubstr("its checksum is"));
    }
  }
}

/// A configuration and hazards from a seed.
struct RandomTrial {
  explicit RandomTrial(unsigned seed) {
    std::mt19937 random{seed};
    auto const draw = [&](unsigned from, unsigned to) {
      return static_cast<int>(from + random() % (to - from + 1));
    };
    place.paths = draw(1, 3);
    place.buffers = draw(1, 3);
    place.cached = draw(0, 1) == 0 ? 0 : draw(1, subgroups - 1);
    place.gradient_buffers = draw(1, 3);
    place.gradients_cached = draw(0, 1) == 0 ? 0 : draw(1, subgroups - 1);
    place.flush_fp32 = draw(0, 2) == 0;
    place.workers = draw(1, 4);
    place.evict = draw(0, 1) == 0 ? tiers::Evict::farthest : tiers::Evict::oldest;
    place.duplex = draw(0, 1) == 0 ? tiers::Duplex::half : tiers::Duplex::full;
    place.processes = draw(1, 2);
    place.engine = {8 * KiB << draw(0, 4), draw(1, 6)};
    place.uneven = draw(0, 1) == 0;
    place.ahead = draw(0, 1) == 0;
    place.spare_slots = draw(0, 1) == 0 ? subgroups : draw(0, 2);
    place.spare_buffers = draw(0, 1) == 0 ? subgroups : draw(0, 2);
    static constexpr std::array rates{8U, 32U, 128U, 1000U};
    hazards.one_in = rates.at(random() % rates.size());
    hazards.write_errors = draw(0, 2) == 0;
    hazards.read_errors = draw(0, 2) == 0;
    hazards.lost_completions = draw(0, 5) == 0;
    hazards.rot = draw(0, 9) == 0;
    what = fmt::format(
        "seed {}: {} paths, {} buffers, {} cached, gradients {} and {}, flush {}, {} workers, "
        "ahead {} with {} and {} spares, requests of {}, 1 in {}, writes {}, reads {}, completions "
        "{}, rot {}",
        seed, place.paths, place.buffers, place.cached, place.gradient_buffers,
        place.gradients_cached, place.flush_fp32, place.workers, place.ahead, place.spare_slots,
        place.spare_buffers, place.engine.request_bytes, hazards.one_in, hazards.write_errors,
        hazards.read_errors, hazards.lost_completions, hazards.rot);
  }
  [[nodiscard]] bool harmless() const {
    return !hazards.write_errors && !hazards.read_errors && !hazards.lost_completions &&
           !hazards.rot;
  }

  Place place;
  aio::Hazards hazards;
  std::string what;
};

TEST(Faults, AtRandomLeaveTheSameBitsOrAnErrorThatTheyExplain) {
  auto const number = [](char const* name, unsigned otherwise) {
    char const* const text = std::getenv(name);
    return text == nullptr ? otherwise : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
  };
  unsigned const seconds = number("OFFSTAGE_FAULT_SECONDS", 0);
  unsigned const first = number("OFFSTAGE_FAULT_SEED", 1);
  constexpr unsigned rounds = 60;
  int done = 0;
  int ended = 0;
  std::int64_t mishaps = 0;
  Stopwatch const watch;
  for (unsigned i = 0; seconds == 0 ? i < rounds : watch.elapsed() < Seconds{seconds}; ++i) {
    RandomTrial const random{first + i};
    Trial trial{random.place, aio::at_random(random.hazards, first + i), random.what, first + i};
    trial.run();
    EXPECT_TRUE(trial.done() || !random.harmless()) << trial.error();
    trial.check();
    (trial.done() ? done : ended) += 1;
    mishaps += trial.plan().mishaps();
    if (HasFailure()) {
      FAIL() << random.what;
    }
  }
  std::printf("%d runs with the same bits, %d ended with an error, %lld faults\n", done, ended,
              static_cast<long long>(mishaps));
  EXPECT_GT(done, 0);
  EXPECT_GT(mishaps, 0);
}

}  // namespace
}  // namespace offstage::update
