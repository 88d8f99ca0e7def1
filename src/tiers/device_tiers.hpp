#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/device.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "tiers/tiers.hpp"

namespace offstage::tiers {

/// Tiers whose last extents live in device memory (update.device-resident), the others in `rest`.
/// Leases give host memory for all of them: checkpoints see one place. The update works on resident
/// extents where they are.
///
/// Lease:   a resident extent's is a copy: it alone changes until commit takes it to the device.
/// Memory:  device: the resident extents, allocated at construction. Host: one pinned buffer of the
///          largest resident extent, through which leases of them go, one at a time.
/// Threads: as Tiers, but a thread that holds the lease of a resident extent must not ask for
///          another such: it would wait for itself. resident() memory and a lease of the same key
///          exclude each other: the caller's care.
/// Errors:  construction: UsageError of the device that names update.device-resident. Leases: also
///          what the device's streams throw; a commit that does has lost the extent.
class DeviceTiers final : public Tiers {
 public:
  /// `resident_bytes`: of the extents with keys first_key, first_key + 1, ...; `rest` holds the
  /// keys below. The device must outlive this.
  DeviceTiers(device::Device& device, Key first_key, std::vector<Bytes> const& resident_bytes,
              std::unique_ptr<Tiers> rest);
  ~DeviceTiers() override;
  DeviceTiers(DeviceTiers const&) = delete;
  DeviceTiers& operator=(DeviceTiers const&) = delete;

  [[nodiscard]] bool is_resident(Key key) const noexcept { return key >= first_key_; }
  /// The extent in device memory.
  [[nodiscard]] std::span<std::byte> resident(Key key) const;

  [[nodiscard]] Lease fetch(Key key) override;
  [[nodiscard]] Lease fetch_aside(Key key) override {
    return is_resident(key) ? fetch(key) : rest_->fetch_aside(key);
  }
  [[nodiscard]] Lease create(Key key) override;
  [[nodiscard]] bool fits_beside(Key held, Key wanted) const override;
  /// None of a resident extent: it has no spare.
  [[nodiscard]] std::optional<Lease> fetch_on_trial(Key key) override;
  [[nodiscard]] bool has_spare(Key key) const override {
    return !is_resident(key) && rest_->has_spare(key);
  }
  void accept_trials() override { rest_->accept_trials(); }
  std::vector<Key> revert_trials() override { return rest_->revert_trials(); }
  void begin_pass() override;
  /// True of a resident extent: its fetch reads no storage.
  [[nodiscard]] bool in_memory(Key key) const override;
  [[nodiscard]] std::optional<GivenExtent> give(Key key, std::string const& name) override;
  /// A resident extent is in no storage.
  void hold() override { rest_->hold(); }
  [[nodiscard]] bool is_held(Key key) const override {
    return !is_resident(key) && rest_->is_held(key);
  }
  void read_held(Key key, std::span<std::byte> memory, TakePiece const& take,
                 LetsPass const& lets_pass) override;
  [[nodiscard]] StoragePath const* path_of_held(Key key) const override {
    return rest_->path_of_held(key);
  }
  void release(Key key) noexcept override;
  /// Traffic of `rest`: leases of resident extents are no traffic of the tiers.
  [[nodiscard]] Traffic traffic() const override { return rest_->traffic(); }
  [[nodiscard]] Residence residence() const override;
  [[nodiscard]] std::vector<PathSpace> space() const override { return rest_->space(); }
  [[nodiscard]] Bytes host_bytes() const override { return rest_->host_bytes() + lent_.size(); }
  /// Host memory beside that of `rest`, so that it can be planned.
  [[nodiscard]] static Bytes lease_bytes(std::vector<Bytes> const& resident_bytes);

 protected:
  void commit(Key key) override;
  void discard(Key key, bool touched) noexcept override;

 private:
  struct Extent {
    Bytes offset{};
    Bytes size{};
    bool created = false;  ///< it has a version
  };
  [[nodiscard]] Extent const& at(Key key) const;
  /// Waits until no resident extent is leased, and takes the buffer.
  [[nodiscard]] Lease take(Key key, bool must_exist);
  void copy(void* target, void const* source, Bytes size, device::Copy direction);

  Key first_key_;
  std::unique_ptr<Tiers> rest_;
  device::Buffer memory_;
  memory::HugeBuffer lent_;  ///< the lease's bytes
  std::unique_ptr<device::Pinned> pinned_;
  std::unique_ptr<device::Stream> stream_;  ///< the lease's holder's

  mutable std::mutex mutex_;  ///< guards all below
  std::condition_variable changed_;
  std::vector<Extent> extents_;  ///< extents of resident keys; offset and size never change
  bool leased_ = false;
};

}  // namespace offstage::tiers
