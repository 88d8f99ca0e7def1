#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "deadline.hpp"
#include "fault_traffic.hpp"
#include "platform/fault_plan.hpp"
#include "platform/kept_contexts.hpp"
#include "platform/scratch_directory.hpp"

namespace offstage::update {

constexpr int subgroups = 5;

/// Asked by the program's fallocate while there is one.
inline std::atomic<aio::FaultPlan*> growing = nullptr;

inline Lesson const& lesson() {
  static Lesson const lesson{subgroups};
  return lesson;
}
inline Answer const& answer() {
  static Answer const answer{lesson()};
  return answer;
}

/// Of all trials.
inline std::shared_ptr<aio::Kernel> contexts() {
  static auto const contexts = std::make_shared<aio::KeptContexts>();
  return contexts;
}

struct Place {
  int paths = 2;
  int buffers = 1;
  std::int64_t cached = 0;
  int gradient_buffers = 1;
  std::int64_t gradients_cached = 0;
  bool flush_fp32 = false;
  int workers = 1;
  tiers::Evict evict = tiers::Evict::farthest;
  tiers::Duplex duplex = tiers::Duplex::half;
  int processes = 1;
  aio::EngineSettings engine{48 * KiB, 2};
  bool uneven = false;  ///< the first path has most of the split
  bool ahead = false;   ///< updates begin under backward
  std::int64_t spare_slots = 0;
  std::int64_t spare_buffers = 0;
};

/// A run under a plan, and what became of it.
class Trial {
 public:
  Trial(Place const& place, aio::FaultPlan::Decide decide, std::string what, unsigned seed = 1)
      : place_{place}, plan_{*kernel_, seed, std::move(decide)}, what_{std::move(what)} {
    traffic_.emplace(lesson(), settings());
    growing = &plan_;
    plan_.begin();
  }
  ~Trial() { growing = nullptr; }
  Trial(Trial const&) = delete;
  Trial& operator=(Trial const&) = delete;

  /// All steps, or up to an error.
  void run() {
    run([this] {
      traffic_->begin();
      began_ = true;
      for (int step = 0; step < traffic_steps; ++step) {
        traffic_->step();
      }
    });
  }
  template <class Work>
  void run(Work const& work) {
    Deadline const deadline{std::chrono::seconds{60}, what_};
    ::testing::internal::CaptureStderr();
    try {
      work();
      done_ = true;
    } catch (IoError const& error) {
      error_ = error.what();
    } catch (std::exception const& error) {
      error_ = error.what();
      ADD_FAILURE() << what_ << ": not an IoError";
    }
    traffic_->stop();
    plan_.heal();
    warnings_ += ::testing::internal::GetCapturedStderr();
  }

  /// The same bits, or an error that a fault explains; whatever is not lost is there, in one piece.
  void check() {
    Deadline const deadline{std::chrono::seconds{60}, what_ + ", afterwards"};
    SCOPED_TRACE(what_ + (done_ ? ": done" : ": " + error_));
    check_warnings();
    if (done_) {
      EXPECT_EQ(std::memcmp(traffic_->copy().data(), answer().copy.data(),
                            answer().copy.size() * sizeof(bfloat16)),
                0);
    } else {
      check_error();
    }
    ::testing::internal::CaptureStderr();
    check_state();
    check_buffers();
    (void)::testing::internal::GetCapturedStderr();
  }

  [[nodiscard]] bool done() const { return done_; }
  [[nodiscard]] std::string const& error() const { return error_; }
  [[nodiscard]] aio::FaultPlan& plan() { return plan_; }
  [[nodiscard]] Traffic& traffic() { return *traffic_; }
  [[nodiscard]] std::size_t left_out() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(*paths_, [](auto const& path) { return !path->writable(); }));
  }
  [[nodiscard]] std::string directory(std::size_t path) const {
    return (*paths_)[path]->settings().directory;
  }

 private:
  TrafficSettings settings() {
    std::vector<tiers::PathSettings> paths;
    for (int i = 0; i < place_.paths; ++i) {
      auto& path = paths.emplace_back();
      path.directory = scratch_ / std::to_string(i);
      std::filesystem::create_directory(path.directory);
      path.read_rate = path.write_rate = place_.uneven && i == 0 ? 5e9 : 1e9;
      path.duplex = place_.duplex;
      path.processes = place_.processes;
      path.engine = place_.engine;
    }
    paths_ = tiers::make_paths({.paths = paths, .kernel = kernel_});
    TrafficSettings settings;
    settings.state.paths = settings.gradients.paths = paths_;
    settings.state.spill = settings.gradients.spill = "offstage-test";
    settings.state.evict = settings.gradients.evict = place_.evict;
    settings.state.buffers = place_.buffers;
    settings.state.cached = place_.cached;
    settings.gradients.buffers = place_.gradient_buffers;
    settings.gradients.cached = place_.gradients_cached;
    settings.flush_fp32 = place_.flush_fp32;
    settings.workers = place_.workers;
    settings.ahead = place_.ahead;
    settings.state.spare_slots = place_.spare_slots;
    settings.state.spare_buffers = place_.spare_buffers;
    return settings;
  }

  [[nodiscard]] std::size_t said(std::string const& text) const {
    std::size_t found = 0;
    for (auto at = warnings_.find(text); at != std::string::npos;
         at = warnings_.find(text, at + 1)) {
      ++found;
    }
    return found;
  }
  /// Each path that is left out is said to be so once.
  void check_warnings() const {
    for (auto const& path : *paths_) {
      EXPECT_EQ(said(path->settings().directory + " is left out"), path->writable() ? 0U : 1U)
          << warnings_;
    }
  }

  void check_error() const {
    std::int64_t const both = plan_.errors(aio::Site::setup) + plan_.errors(aio::Site::wait);
    std::int64_t const writes = both + plan_.errors(aio::Site::submit_write) +
                                plan_.errors(aio::Site::complete_write) +
                                plan_.errors(aio::Site::grow);
    std::int64_t const reads =
        both + plan_.errors(aio::Site::submit_read) + plan_.errors(aio::Site::complete_read);
    EXPECT_THAT(error_, ::testing::AnyOf(::testing::HasSubstr("state extent "),
                                         ::testing::HasSubstr("gradient extent ")));
    if (error_.find("is lost") != std::string::npos) {
      EXPECT_TRUE(reads > 0 || plan_.errors(aio::Site::complete_write) > 0);
      EXPECT_THAT(error_, ::testing::HasSubstr(" at offset "));
      EXPECT_THAT(error_, ::testing::HasSubstr(scratch_.path()));
      EXPECT_THAT(error_, ::testing::HasSubstr("resume the run from its last checkpoint"));
      return;
    }
    EXPECT_GT(writes, 0);
    EXPECT_THAT(error_, ::testing::HasSubstr("was not written, no tiers.path is left"));
    for (auto const& path : *paths_) {
      EXPECT_TRUE(!path->writable() || plan_.errors(aio::Site::grow) > 0);
      EXPECT_THAT(error_, ::testing::HasSubstr(path->settings().directory));
    }
  }

  /// Every subgroup is as a step left it, unless it is lost or memory is full of what cannot be
  /// written.
  void check_state() {
    if (!began_) {
      return;
    }
    int const last = traffic_->steps();
    for (auto const& subgroup : lesson().shard.subgroups) {
      try {
        tiers::Lease const lease = traffic_->state().fetch(subgroup.index);
        EXPECT_TRUE(answer().holds(subgroup, last, lease.bytes()) ||
                    (!done_ && answer().holds(subgroup, last - 1, lease.bytes())))
            << "subgroup " << subgroup.index << " is of no step";
      } catch (IoError const& error) {
        bool const rotten = plan_.errors(aio::Site::complete_write) > 0 &&
                            std::string{error.what()}.find("its checksum") != std::string::npos;
        EXPECT_TRUE(rotten || (!done_ && left_out() > 0) || plan_.errors(aio::Site::grow) > 0)
            << error.what();
      } catch (Error const& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }

  /// Where writing works, every buffer can be had again.
  void check_buffers() {
    if (!began_ || left_out() > 0 || plan_.errors(aio::Site::grow) > 0 ||
        plan_.errors(aio::Site::complete_write) > 0) {
      return;
    }
    auto& state = traffic_->state();
    std::vector<tiers::Lease> leases;
    std::int64_t const buffers = std::min<std::int64_t>(subgroups, place_.buffers + place_.cached);
    for (bool const in_memory : {true, false}) {
      for (tiers::Key key = 0; key < subgroups && std::ssize(leases) < buffers; ++key) {
        bool const held = std::ranges::any_of(
            leases, [&](tiers::Lease const& lease) { return lease.key() == key; });
        if (!held && state.in_memory(key) == in_memory) {
          leases.push_back(state.fetch(key));
        }
      }
    }
    EXPECT_EQ(std::ssize(leases), buffers);
  }

  Place place_;
  ScratchDirectory scratch_;
  std::shared_ptr<aio::FaultyKernel> kernel_ = std::make_shared<aio::FaultyKernel>(contexts());
  aio::FaultPlan plan_;
  std::string what_;
  std::shared_ptr<tiers::PathSet> paths_;
  std::optional<Traffic> traffic_;
  bool began_ = false;
  bool done_ = false;
  std::string error_ = "no error";
  std::string warnings_;
};

}  // namespace offstage::update
