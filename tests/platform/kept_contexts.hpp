#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "platform/aio/kernel.hpp"

namespace offstage::aio {

/// libaio, but contexts that end are kept for the next: io_destroy takes 30 ms, and a test that
/// makes hundreds of engines would do little else.
class KeptContexts final : public Kernel {
 public:
  ~KeptContexts() override {
    for (auto const& [context, depth] : free_) {
      real_->destroy(context);
    }
  }

  int setup(int depth, Context& context) override {
    {
      std::scoped_lock const lock{mutex_};
      for (auto kept = free_.begin(); kept != free_.end(); ++kept) {
        if (kept->second == depth) {
          context = kept->first;
          used_[context] = {depth, 0};
          free_.erase(kept);
          return 0;
        }
      }
    }
    int const status = real_->setup(depth, context);
    std::scoped_lock const lock{mutex_};
    if (status == 0) {
      used_[context] = {depth, 0};
    }
    return status;
  }
  int submit(Context context, Transfer const& transfer) override {
    int const status = real_->submit(context, transfer);
    count(context, status == 0 ? 1 : 0);
    return status;
  }
  int get_events(Context context, std::span<Completion> completions) override {
    int const status = real_->get_events(context, completions);
    count(context, status > 0 ? -status : 0);
    return status;
  }
  void destroy(Context context) noexcept override {
    std::vector<Completion> ignored(1);
    while (count(context, 0) > 0) {
      get_events(context, ignored);
    }
    std::scoped_lock const lock{mutex_};
    free_.emplace_back(context, used_.at(context).first);
    used_.erase(context);
  }

 private:
  /// In flight, with the change.
  int count(Context context, int change) {
    std::scoped_lock const lock{mutex_};
    return used_.at(context).second += change;
  }

  std::shared_ptr<Kernel> real_ = libaio_kernel();
  std::mutex mutex_;
  std::map<Context, std::pair<int, int>> used_;  ///< depth, and requests in flight
  std::vector<std::pair<Context, int>> free_;
};

}  // namespace offstage::aio
