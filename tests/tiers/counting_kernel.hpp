#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "platform/aio/kernel.hpp"

namespace offstage::aio {

/// How many transfers are under way at a time.
struct TransferCount {
  std::atomic<int> reads;
  std::atomic<int> writes;
  std::atomic<int> most_reads;
  std::atomic<int> most_writes;
  std::atomic<int> most;  ///< of both together

  [[nodiscard]] std::atomic<int>& of(Direction direction) {
    return direction == Direction::read ? reads : writes;
  }
  void begin(Direction direction) {
    raise(direction == Direction::read ? most_reads : most_writes, ++of(direction));
    raise(most, reads + writes);
  }
  void end(Direction direction) { --of(direction); }

 private:
  static void raise(std::atomic<int>& most, int value) {
    int known = most;
    while (known < value && !most.compare_exchange_weak(known, value)) {
    }
  }
};

/// Moves no bytes; counts the transfers, which take a moment each. For engines of queue depth 1.
class CountingKernel final : public Kernel {
 public:
  explicit CountingKernel(TransferCount& count) : count_{count} {}

  /// If not 0, returned in place of the next setup or submit.
  std::atomic<int> setup_error = 0;
  std::atomic<int> submit_error = 0;
  std::chrono::microseconds duration{50};
  /// Called while a transfer is under way.
  std::function<void(Transfer const&)> meanwhile;

  [[nodiscard]] std::vector<Transfer> transfers() {
    std::scoped_lock const lock{mutex_};
    return transfers_;
  }
  [[nodiscard]] int contexts() const { return contexts_; }

  int setup(int /*depth*/, Context& context) override {
    if (int const error = setup_error.exchange(0); error != 0) {
      return error;
    }
    ++contexts_;
    context = new Transfer{};
    return 0;
  }
  int submit(Context context, Transfer const& transfer) override {
    if (int const error = submit_error.exchange(0); error != 0) {
      return error;
    }
    count_.begin(transfer.direction);
    *static_cast<Transfer*>(context) = transfer;
    std::scoped_lock const lock{mutex_};
    transfers_.push_back(transfer);
    return 0;
  }
  int get_events(Context context, std::span<Completion> completions) override {
    Transfer const& transfer = *static_cast<Transfer*>(context);
    std::this_thread::sleep_for(duration);
    if (meanwhile) {
      meanwhile(transfer);
    }
    count_.end(transfer.direction);
    completions[0] = {transfer.tag, transfer.length};
    return 1;
  }
  void destroy(Context context) noexcept override { delete static_cast<Transfer*>(context); }

 private:
  TransferCount& count_;
  std::atomic<int> contexts_ = 0;
  std::mutex mutex_;
  std::vector<Transfer> transfers_;
};

}  // namespace offstage::aio
