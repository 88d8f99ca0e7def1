#pragma once

#include <memory>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "tiers/tiers.hpp"

namespace offstage::tiers {

/// Tiers whose last extents live in device memory (update.device-resident), the others in `rest`. Leases
/// give host memory for all of them: checkpoints see one place. The update works on resident extents where
/// they are.
///
/// Memory:  device: the resident extents, allocated at construction. Host: one pinned buffer of the largest
///          resident extent, through which leases of them go, one at a time.
/// Threads: as Tiers; resident() memory and a lease of the same key exclude each other: the caller's care.
class DeviceTiers final : public Tiers {
 public:
  /// `resident_bytes`: of the extents with keys first_key, first_key + 1, ...; `rest` holds keys below.
  /// Errors: UsageError of the device that names update.device-resident.
  DeviceTiers(device::Device& device, Key first_key, std::vector<Bytes> const& resident_bytes,
              std::unique_ptr<Tiers> rest);
  ~DeviceTiers() override;

  [[nodiscard]] bool is_resident(Key key) const noexcept { return key >= first_key_; }
  /// The extent in device memory.
  [[nodiscard]] std::span<std::byte> resident(Key key) const;

  [[nodiscard]] Lease fetch(Key key) override;
  [[nodiscard]] Lease create(Key key) override;
  void begin_pass() override;
  [[nodiscard]] bool in_memory(Key key) const override;
  [[nodiscard]] std::optional<SharedExtent> share(Key key, std::string const& name) override;
  [[nodiscard]] Traffic traffic() const override;
  [[nodiscard]] Residence residence() const override;
  [[nodiscard]] std::vector<PathSpace> space() const override;
  [[nodiscard]] Bytes host_bytes() const override;

 protected:
  void commit(Key key, std::int64_t ticket) override;
  void discard(Key key, std::int64_t ticket, bool touched) noexcept override;

 private:
  Key first_key_;
};

}  // namespace offstage::tiers
