#include "tiers/device_tiers.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/watch.hpp"

namespace offstage::tiers {
namespace {

/// Extents begin where vector loads and copy engines like it.
constexpr Bytes alignment = 256;

Bytes device_bytes(std::vector<Bytes> const& resident_bytes) {
  Bytes sum = 0;
  for (Bytes const size : resident_bytes) {
    sum += round_up(size, alignment);
  }
  return sum;
}

}  // namespace

Bytes DeviceTiers::lease_bytes(std::vector<Bytes> const& resident_bytes) {
  return resident_bytes.empty() ? 0 : std::ranges::max(resident_bytes);
}

DeviceTiers::DeviceTiers(device::Device& device, Key first_key,
                         std::vector<Bytes> const& resident_bytes, std::unique_ptr<Tiers> rest)
    : first_key_{first_key},
      rest_{std::move(rest)},
      memory_{device.allocate(device_bytes(resident_bytes),
                              "the optimizer state that stays on it (update.device-resident)")},
      lent_{lease_bytes(resident_bytes)} {
  require(first_key >= 0 && rest_ != nullptr, "DeviceTiers: what is not resident needs tiers");
  Bytes offset = 0;
  for (Bytes const size : resident_bytes) {
    require(size > 0, "DeviceTiers: an extent must have bytes");
    extents_.push_back({.offset = offset, .size = size});
    offset += round_up(size, alignment);
  }
  if (!extents_.empty()) {
    pinned_ = device.pin(lent_.bytes());
    stream_ = device.make_stream("resident state");
  }
}

DeviceTiers::~DeviceTiers() = default;

DeviceTiers::Extent const& DeviceTiers::at(Key key) const {
  require(is_resident(key) && key - first_key_ < std::ssize(extents_), "DeviceTiers: no such key");
  return extents_[static_cast<std::size_t>(key - first_key_)];
}

std::span<std::byte> DeviceTiers::resident(Key key) const {
  Extent const& extent = at(key);
  return memory_.as<std::byte>().subspan(static_cast<std::size_t>(extent.offset),
                                         static_cast<std::size_t>(extent.size));
}

Lease DeviceTiers::take(Key key, bool must_exist) {
  Extent const& extent = at(key);
  Waiting const waiting{"the lease of resident extent", key};
  {
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [&] { return !leased_; });
    require(extent.created || !must_exist,
            "DeviceTiers: fetch of an extent that was never created, or was lost");
    leased_ = true;
  }
  return {*this, key, lent_.bytes().first(static_cast<std::size_t>(extent.size))};
}

void DeviceTiers::copy(void* target, void const* source, Bytes size, device::Copy direction) {
  stream_->copy(target, source, size, direction);
  stream_->synchronize();
}

Lease DeviceTiers::fetch(Key key) {
  if (!is_resident(key)) {
    return rest_->fetch(key);
  }
  Lease lease = take(key, true);  // ends if the copy throws
  copy(lent_.bytes().data(), resident(key).data(), at(key).size, device::Copy::device_to_host);
  return lease;
}

std::optional<Lease> DeviceTiers::fetch_on_trial(Key key) {
  return is_resident(key) ? std::nullopt : rest_->fetch_on_trial(key);
}

Lease DeviceTiers::create(Key key) {
  return is_resident(key) ? take(key, false) : rest_->create(key);
}

bool DeviceTiers::fits_beside(Key held, Key wanted) const {
  if (is_resident(held) != is_resident(wanted)) {
    return true;
  }
  return !is_resident(held) && rest_->fits_beside(held, wanted);
}

void DeviceTiers::commit(Key key) {
  Waiting const waiting{"the commit of resident extent", key};
  bool there = false;
  auto const end = [&] {
    {
      std::scoped_lock const lock{mutex_};
      extents_[static_cast<std::size_t>(key - first_key_)].created = there;
      leased_ = false;
    }
    changed_.notify_all();
  };
  try {
    copy(resident(key).data(), lent_.bytes().data(), at(key).size, device::Copy::host_to_device);
    there = true;
  } catch (...) {
    end();
    throw;
  }
  end();
}

void DeviceTiers::discard(Key /*key*/, bool /*touched*/) noexcept {
  {
    std::scoped_lock const lock{mutex_};
    leased_ = false;
  }
  changed_.notify_all();
}

void DeviceTiers::begin_pass() {
  {
    std::scoped_lock const lock{mutex_};
    require(!leased_, "DeviceTiers: a pass begins while a resident extent is leased");
  }
  rest_->begin_pass();
}

bool DeviceTiers::in_memory(Key key) const {
  return is_resident(key) || rest_->in_memory(key);
}

std::optional<GivenExtent> DeviceTiers::give(Key key, std::string const& name) {
  return is_resident(key) ? std::nullopt : rest_->give(key, name);
}

void DeviceTiers::read_held(Key key, std::span<std::byte> memory, TakePiece const& take,
                            LetsPass const& lets_pass) {
  require(!is_resident(key), "DeviceTiers: a resident extent is not held");
  rest_->read_held(key, memory, take, lets_pass);
}

void DeviceTiers::release(Key key) noexcept {
  if (!is_resident(key)) {
    rest_->release(key);
  }
}

Residence DeviceTiers::residence() const {
  Residence residence = rest_->residence();
  std::scoped_lock const lock{mutex_};
  for (Extent const& extent : extents_) {
    residence.device += extent.created ? extent.size : 0;
  }
  return residence;
}

}  // namespace offstage::tiers
