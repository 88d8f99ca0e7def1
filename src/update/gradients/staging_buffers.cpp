#include "update/gradients/staging_buffers.hpp"

#include "base/error.hpp"
#include "base/watch.hpp"

namespace offstage::update {

StagingBuffers::StagingBuffers(int count, Bytes bytes, device::Device* device)
    : bytes_{bytes}, memory_{count * bytes}, taken_(static_cast<std::size_t>(count)) {
  require(count > 0 && bytes >= 0, "StagingBuffers: at least one part");
  if (device != nullptr) {
    pinned_ = device->pin(memory_.bytes());
  }
}

StagingBuffers::Part::~Part() {
  if (owner_ != nullptr) {
    owner_->give_back(index_);
  }
}

std::span<std::byte> StagingBuffers::Part::memory() const noexcept {
  auto const size = static_cast<std::size_t>(owner_->bytes_);
  return owner_->memory_.bytes().subspan(index_ * size, size);
}

StagingBuffers::Part StagingBuffers::take() {
  std::unique_lock lock{mutex_};
  if (taken_[next_]) {
    Waiting const waiting{"a staging buffer"};
    freed_.wait(lock, [this] { return !taken_[next_]; });
  }
  taken_[next_] = true;
  Part part{*this, next_};
  next_ = (next_ + 1) % taken_.size();
  return part;
}

void StagingBuffers::give_back(std::size_t index) noexcept {
  {
    std::scoped_lock const lock{mutex_};
    taken_[index] = false;
  }
  freed_.notify_one();
}

}  // namespace offstage::update
