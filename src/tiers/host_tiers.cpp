#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "base/error.hpp"
#include "base/watch.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "tiers/tiers.hpp"

namespace offstage::tiers {
namespace {

class HostTiers final : public Tiers {
 public:
  explicit HostTiers(std::vector<Bytes> const& extent_bytes) {
    extents_.reserve(extent_bytes.size());
    for (Bytes const size : extent_bytes) {
      require(size > 0, "HostTiers: an extent must have bytes");
      extents_.push_back({memory::HugeBuffer{size}});
    }
  }

  Lease fetch(Key key) override {
    Extent& extent = take(key);
    Content const content = extent.content;
    if (content != Content::valid) {
      end(extent, content);
    }
    require(content != Content::none, "HostTiers: fetch of an extent that was never created");
    require(content != Content::torn, "HostTiers: the extent was changed without commit");
    return {*this, key, extent.memory.bytes(), 0};
  }

  Lease create(Key key) override {
    Extent& extent = take(key);
    if (extent.content != Content::none) {
      extent.content = Content::torn;
    }
    std::ranges::fill(extent.memory.bytes(), std::byte{0});
    return {*this, key, extent.memory.bytes(), 0};
  }

  [[nodiscard]] Traffic traffic() const override { return {}; }

  [[nodiscard]] Bytes host_bytes() const override {
    Bytes sum = 0;
    for (Extent const& extent : extents_) {
      sum += extent.memory.size();
    }
    return sum;
  }

 protected:
  void commit(Key key, std::int64_t /*ticket*/) override {
    end(extents_[static_cast<std::size_t>(key)], Content::valid);
  }

  void discard(Key key, std::int64_t /*ticket*/, bool touched) noexcept override {
    Extent& extent = extents_[static_cast<std::size_t>(key)];
    bool const tears = touched && extent.content == Content::valid;
    end(extent, tears ? Content::torn : extent.content);
  }

 private:
  enum class Content { none, valid, torn };
  struct Extent {
    memory::HugeBuffer memory;
    Content content = Content::none;  ///< changed by the holder of the lease alone
    bool leased = false;
  };

  Extent& take(Key key) {
    require(key >= 0 && key < std::ssize(extents_), "HostTiers: no such key");
    Extent& extent = extents_[static_cast<std::size_t>(key)];
    Waiting const waiting{"a lease of extent", key};
    std::unique_lock lock{mutex_};
    ended_.wait(lock, [&] { return !extent.leased; });
    extent.leased = true;
    return extent;
  }

  void end(Extent& extent, Content content) noexcept {
    {
      std::scoped_lock const lock{mutex_};
      extent.content = content;
      extent.leased = false;
    }
    ended_.notify_all();
  }

  std::vector<Extent> extents_;
  std::mutex mutex_;  ///< guards `leased`
  std::condition_variable ended_;
};

}  // namespace

std::unique_ptr<Tiers> make_host_tiers(std::vector<Bytes> const& extent_bytes) {
  return std::make_unique<HostTiers>(extent_bytes);
}

}  // namespace offstage::tiers
