#pragma once

#include <condition_variable>
#include <mutex>

#include "tiers/tiers.hpp"

namespace offstage::checkpoint {

/// Those of another whose extents can be fetched once the gate is open.
class GatedTiers final : public tiers::Tiers {
 public:
  explicit GatedTiers(tiers::Tiers& behind) : behind_{behind} {}
  void open() {
    {
      std::scoped_lock const lock{mutex_};
      open_ = true;
    }
    changed_.notify_all();
  }
  tiers::Lease fetch(tiers::Key key) override {
    {
      std::unique_lock lock{mutex_};
      ++asked_;
      changed_.notify_all();
      changed_.wait(lock, [&] { return open_; });
    }
    return behind_.fetch(key);
  }
  void await_a_fetch() {
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [&] { return asked_ > 0; });
  }
  [[nodiscard]] int asked() const {
    std::scoped_lock const lock{mutex_};
    return asked_;
  }
  tiers::Lease create(tiers::Key key) override { return behind_.create(key); }
  [[nodiscard]] tiers::Traffic traffic() const override { return behind_.traffic(); }
  [[nodiscard]] Bytes host_bytes() const override { return behind_.host_bytes(); }

 protected:
  void commit(tiers::Key) override {}
  void discard(tiers::Key, bool) noexcept override {}

 private:
  tiers::Tiers& behind_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int asked_ = 0;
};

}  // namespace offstage::checkpoint
