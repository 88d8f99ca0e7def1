#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "platform/aio/kernel.hpp"

namespace offstage::aio {

/// Passes every call on to libaio and lets a test change it on the way. The hooks run under a lock.
class FaultyKernel final : public Kernel {
 public:
  /// May shorten the transfer; what it returns, if not 0, is returned in place of the call.
  std::function<int(Transfer&)> on_submit;
  /// May change the result, or the bytes that were read.
  std::function<void(Transfer const&, Completion&)> on_complete;
  /// What it returns, if not 0, is returned in place of the wait.
  std::function<int()> on_wait;
  /// Waits for everything in flight and reports it last first.
  bool reverse = false;

  int setup(int depth, Context& context) override { return real_->setup(depth, context); }

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
      if (reverse) {
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
    return static_cast<int>(done);
  }

  void destroy(Context context) noexcept override {
    real_->destroy(context);
    std::scoped_lock const lock{mutex_};
    in_flight_.erase(context);
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
  std::shared_ptr<Kernel> real_ = libaio_kernel();
  std::mutex mutex_;
  std::map<Context, std::map<int, Transfer>> in_flight_;
};

}  // namespace offstage::aio
