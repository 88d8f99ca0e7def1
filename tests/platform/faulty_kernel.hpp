#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "platform/aio/kernel.hpp"

namespace offstage::aio {

/// Passes every call on to libaio and lets a test change it on the way. The hooks run under a lock.
class FaultyKernel final : public Kernel {
 public:
  explicit FaultyKernel(std::shared_ptr<Kernel> real = libaio_kernel()) : real_{std::move(real)} {}

  /// What it returns, if not 0, is returned in place of the call.
  std::function<int()> on_setup;
  /// May shorten the transfer; what it returns, if not 0, is returned in place of the call.
  std::function<int(Transfer&)> on_submit;
  /// May change the result, or the bytes that were read.
  std::function<void(Transfer const&, Completion&)> on_complete;
  /// What it returns, if not 0, is returned in place of the wait.
  std::function<int()> on_wait;
  /// Waits for everything in flight and reports it last first.
  bool reverse = false;
  /// Waits for everything in flight and then reports one completion at a time: of so many that have
  /// not been reported, the one that it names.
  std::function<std::size_t(std::size_t)> on_order;

  int setup(int depth, Context& context) override {
    {
      std::scoped_lock const lock{mutex_};
      if (int const status = on_setup ? on_setup() : 0; status != 0) {
        return status;
      }
    }
    return real_->setup(depth, context);
  }

  int submit(Context context, Transfer const& transfer) override {
    std::scoped_lock const lock{mutex_};
    Transfer changed = transfer;
    if (on_submit) {
      if (int const status = on_submit(changed); status != 0) {
        return status;
      }
    }
    int const status = real_->submit(context, changed);
    if (status == 0) {
      in_flight_[context][transfer.tag] = changed;
    }
    return status;
  }

  int get_events(Context context, std::span<Completion> completions) override {
    std::size_t waiting = 1;
    {
      std::scoped_lock const lock{mutex_};
      if (on_wait) {
        if (int const status = on_wait(); status != 0) {
          return status;
        }
      }
      if (reverse || on_order) {
        waiting = in_flight_[context].size();
      }
    }
    std::size_t done = 0;
    while (done < waiting) {
      int const count = real_->get_events(context, completions.subspan(done));
      if (count < 0) {
        return count;
      }
      done += static_cast<std::size_t>(count);
    }
    std::scoped_lock const lock{mutex_};
    auto& transfers = in_flight_[context];
    for (Completion& completion : completions.first(done)) {
      if (on_complete) {
        on_complete(transfers.at(completion.tag), completion);
      }
      transfers.erase(completion.tag);
    }
    if (reverse) {
      std::reverse(completions.begin(), completions.begin() + static_cast<long>(done));
    }
    if (on_order) {
      auto& held = held_[context];
      held.insert(held.end(), completions.begin(), completions.begin() + static_cast<long>(done));
      auto const next = held.begin() + static_cast<long>(on_order(held.size()));
      completions[0] = *next;
      held.erase(next);
      return 1;
    }
    return static_cast<int>(done);
  }

  void destroy(Context context) noexcept override {
    real_->destroy(context);
    std::scoped_lock const lock{mutex_};
    in_flight_.erase(context);
    held_.erase(context);
  }

  void pause(Seconds duration) override {
    std::scoped_lock const lock{mutex_};
    paused_ += duration;
  }

  /// The time that pauses would have taken.
  [[nodiscard]] Seconds paused() {
    std::scoped_lock const lock{mutex_};
    return paused_;
  }

  [[nodiscard]] std::size_t in_flight() {
    std::scoped_lock const lock{mutex_};
    std::size_t sum = 0;
    for (auto const& [context, transfers] : in_flight_) {
      sum += transfers.size();
    }
    return sum;
  }

 private:
  std::shared_ptr<Kernel> real_;
  std::mutex mutex_;
  Seconds paused_{};
  std::map<Context, std::map<int, Transfer>> in_flight_;
  std::map<Context, std::vector<Completion>> held_;  ///< done and not reported
};

}  // namespace offstage::aio
