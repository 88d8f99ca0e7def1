#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <random>

#include "platform/faulty_kernel.hpp"
#include "platform/memory/huge_buffer.hpp"

namespace offstage::aio {

/// A call that can fail.
enum class Site { setup, submit_read, submit_write, wait, complete_read, complete_write, grow };
inline constexpr std::array all_sites{Site::setup, Site::submit_read,   Site::submit_write,
                                      Site::wait,  Site::complete_read, Site::complete_write,
                                      Site::grow};
inline constexpr std::array site_names{"setup", "submit of a read",     "submit of a write",
                                       "wait",  "completion of a read", "completion of a write",
                                       "growth"};

/// What one call meets: nothing, or an error, or fewer bytes; of a completed read a bit in memory,
/// of a completed write a bit in the file.
struct Mishap {
  int error = 0;
  bool shorten = false;
  bool flip = false;
  [[nodiscard]] bool any() const { return error != 0 || shorten || flip; }
};

/// Decides what each call on a FaultyKernel meets, counts the calls of each site and what they met.
/// Reported in random order, from a seed. `grow` is asked by the test's fallocate.
/// Threads: any.
class FaultPlan {
 public:
  /// Of a site, and how many calls it had before.
  using Decide = std::function<Mishap(Site, std::int64_t)>;

  FaultPlan(FaultyKernel& kernel, unsigned seed, Decide decide)
      : decide_{std::move(decide)}, random_{seed} {
    kernel.on_setup = [this] { return -meet(Site::setup).error; };
    kernel.on_submit = [this](Transfer& transfer) { return submit(transfer); };
    kernel.on_wait = [this] { return -meet(Site::wait).error; };
    kernel.on_complete = [this](Transfer const& t, Completion& c) { complete(t, c); };
    kernel.on_order = [this](std::size_t waiting) {
      std::scoped_lock const lock{mutex_};
      return random_() % waiting;
    };
  }

  /// Faults, and counts of calls, from now on: what is made before is whole.
  void begin() { healed_ = false; }
  /// No faults from now on.
  void heal() { healed_ = true; }
  /// An errno, or 0.
  int grow() { return meet(Site::grow).error; }

  [[nodiscard]] std::int64_t calls(Site site) const {
    std::scoped_lock const lock{mutex_};
    return calls_.at(static_cast<std::size_t>(site));
  }
  /// Errors but EINTR and EAGAIN, flipped bits included.
  [[nodiscard]] std::int64_t errors(Site site) const {
    std::scoped_lock const lock{mutex_};
    return errors_.at(static_cast<std::size_t>(site));
  }
  [[nodiscard]] std::int64_t mishaps() const {
    std::scoped_lock const lock{mutex_};
    return mishaps_;
  }

 private:
  Mishap meet(Site site) {
    std::scoped_lock const lock{mutex_};
    Mishap mishap;
    auto const i = static_cast<std::size_t>(site);
    if (!healed_) {
      mishap = decide_(site, calls_.at(i)++);
    }
    mishaps_ += mishap.any() ? 1 : 0;
    bool const passing = mishap.error == EINTR || mishap.error == EAGAIN;
    bool const harms = mishap.flip || (mishap.error != 0 && (!passing || site == Site::setup));
    errors_.at(i) += harms ? 1 : 0;
    return mishap;
  }
  [[nodiscard]] Bytes below(Bytes limit) {
    std::scoped_lock const lock{mutex_};
    return static_cast<Bytes>(random_() % static_cast<std::uint64_t>(limit));
  }

  int submit(Transfer& transfer) {
    Mishap const mishap =
        meet(transfer.direction == Direction::read ? Site::submit_read : Site::submit_write);
    // The rest of a short transfer without O_DIRECT may be less than a block.
    if (mishap.shorten && transfer.length >= direct_alignment) {
      transfer.length = direct_alignment * (1 + below(transfer.length / direct_alignment));
    }
    return -mishap.error;
  }
  void complete(Transfer const& transfer, Completion& completion) {
    bool const reads = transfer.direction == Direction::read;
    Mishap const mishap = meet(reads ? Site::complete_read : Site::complete_write);
    if (completion.result <= 0) {
      return;
    }
    if (mishap.flip) {
      Bytes const where = below(completion.result);
      if (reads) {
        transfer.memory[where] ^= std::byte{16};
      } else {
        flip_in_file(transfer.descriptor, transfer.offset + where);
      }
    }
    if (mishap.error != 0) {
      completion.result = -mishap.error;
    } else if (mishap.shorten) {
      completion.result = 1 + below(completion.result);  // also less than the alignment
    }
  }
  static void flip_in_file(int descriptor, Bytes offset) {
    memory::HugeBuffer const block{direct_alignment};
    Bytes const within = offset % direct_alignment;
    auto const size = static_cast<std::size_t>(direct_alignment);
    if (pread(descriptor, block.bytes().data(), size, offset - within) == direct_alignment) {
      block.bytes()[static_cast<std::size_t>(within)] ^= std::byte{16};
      (void)!pwrite(descriptor, block.bytes().data(), size, offset - within);
    }
  }

  Decide decide_;
  std::atomic<bool> healed_ = true;
  mutable std::mutex mutex_;  ///< guards all below
  std::mt19937 random_;
  std::array<std::int64_t, all_sites.size()> calls_{};
  std::array<std::int64_t, all_sites.size()> errors_{};
  std::int64_t mishaps_ = 0;
};

/// The fault at a site's n-th call and, if it is to last, at `times` calls from there on.
inline FaultPlan::Decide at_call(Site site, std::int64_t n, Mishap mishap, std::int64_t times = 1) {
  return [=](Site asked, std::int64_t call) {
    return asked == site && call >= n && call < n + times ? mishap : Mishap{};
  };
}

/// What a random plan may do.
struct Hazards {
  unsigned one_in = 64;       ///< calls
  bool write_errors = false;  ///< EIO, ENOSPC, EDQUOT; no room to grow; no new context
  bool read_errors = false;   ///< EIO, flipped bits on the way
  bool lost_completions = false;
  bool rot = false;  ///< flipped bits in files
};

/// Short transfers, EINTR and EAGAIN always, the rest as told.
inline FaultPlan::Decide at_random(Hazards const& hazards, unsigned seed) {
  auto const random = std::make_shared<std::mt19937>(seed);
  return [=](Site site, std::int64_t) -> Mishap {
    auto& draw = *random;
    if (draw() % hazards.one_in != 0) {
      return {};
    }
    static constexpr std::array write_errors{EIO, ENOSPC, EDQUOT};
    int const write_error = write_errors.at(draw() % write_errors.size());
    bool const reads = site == Site::submit_read || site == Site::complete_read;
    bool const harms = draw() % 4 == 0;
    switch (site) {
      case Site::setup:
        return {.error = hazards.write_errors && harms ? ENOMEM : 0};
      case Site::grow:
        return {.error = hazards.write_errors && harms ? write_error : EINTR};
      case Site::wait:
        return {.error = hazards.lost_completions && harms ? EINVAL : EINTR};
      case Site::submit_read:
      case Site::submit_write:
      case Site::complete_read:
      case Site::complete_write:
        break;
    }
    if (harms && reads && hazards.read_errors) {
      bool const flip = site == Site::complete_read && draw() % 2 == 0;
      return {.error = flip ? 0 : EIO, .flip = flip};
    }
    if (harms && site == Site::complete_write && hazards.rot && draw() % 2 == 0) {
      return {.flip = true};
    }
    if (harms && !reads && hazards.write_errors) {
      return {.error = write_error};
    }
    switch (draw() % 3) {
      case 0:
        return {.error = EINTR};
      case 1:
        return {.error = EAGAIN};
      default:
        return {.shorten = true};
    }
  };
}

}  // namespace offstage::aio
