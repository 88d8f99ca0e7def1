#include "tiers/device_tiers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/thread.hpp"
#include "device/wrapped_device.hpp"
#include "host_tiers.hpp"
#include "tiers/virtual_support.hpp"

namespace offstage::tiers {
namespace {

using ::testing::HasSubstr;

/// Keys 0 and 1 in host memory, 2 to 4 on a device behind a link.
class DeviceTiersTest : public ::testing::Test {
 protected:
  static constexpr Bytes small = 12 * KiB;
  static constexpr Bytes large = 100 * KiB + 12;

  /// What the update does to a resident extent.
  void update(Key key, int value) {
    std::vector<std::byte> const bytes(tiers.resident(key).size(), static_cast<std::byte>(value));
    auto const stream = device->make_stream("update");
    stream->copy(tiers.resident(key).data(), bytes.data(), std::ssize(bytes),
                 device::Copy::host_to_device);
    stream->synchronize();
  }

  std::unique_ptr<device::Device> device =
      device::make_host_device(0, {.host_to_device = 1e9, .device_to_host = 1e9});
  DeviceTiers tiers{*device, 2, {small, large, small}, make_host_tiers({small, small})};
};

TEST_F(DeviceTiersTest, KnowsWhatIsResidentAndWhereEverythingIs) {
  EXPECT_FALSE(tiers.is_resident(1));
  EXPECT_TRUE(tiers.is_resident(2));
  EXPECT_EQ(std::ssize(tiers.resident(3)), large);
  EXPECT_THROW((void)tiers.resident(1), PreconditionError);
  EXPECT_THROW((void)tiers.resident(5), PreconditionError);
  EXPECT_THROW((void)tiers.fetch(5), PreconditionError);
  put(tiers, 0, 1);
  put(tiers, 3, 1);
  EXPECT_EQ(tiers.residence().host, small);
  EXPECT_EQ(tiers.residence().device, large);
  put(tiers, 2, 1);
  EXPECT_EQ(tiers.residence().device, large + small);
  EXPECT_TRUE(tiers.in_memory(3));
  EXPECT_TRUE(tiers.in_memory(0));
}

TEST_F(DeviceTiersTest, AThreadMayHoldTheLeaseOfOneResidentExtent) {
  EXPECT_TRUE(tiers.fits_beside(0, 1));
  EXPECT_TRUE(tiers.fits_beside(1, 2));
  EXPECT_TRUE(tiers.fits_beside(2, 1));
  EXPECT_FALSE(tiers.fits_beside(2, 3));
  Lease const host = tiers.create(1);
  EXPECT_TRUE(tiers.create(2).is_held());
}

TEST_F(DeviceTiersTest, CountsItsMemoryAndItsRests) {
  EXPECT_EQ(DeviceTiers::lease_bytes({small, large, small}), large);
  EXPECT_EQ(DeviceTiers::lease_bytes({}), 0);
  EXPECT_EQ(tiers.host_bytes(), make_host_tiers({small, small})->host_bytes() + large);
  EXPECT_GE(device->used(), large + 2 * small);
  EXPECT_LT(device->used(), large + 2 * small + KiB);
  put(tiers, 3, 1);
  put(tiers, 0, 1);
  { Lease const both = tiers.fetch(3); }
  { Lease const both = tiers.fetch(0); }
  EXPECT_EQ(tiers.traffic().fetched_bytes, small);  // the rest's
  EXPECT_EQ(tiers.give(3, "/nowhere"), std::nullopt);
}

TEST_F(DeviceTiersTest, ExtentsDoNotOverlap) {
  for (Key const key : {2, 3, 4}) {
    put(tiers, key, static_cast<int>(key));
  }
  for (Key const key : {2, 3, 4}) {
    EXPECT_TRUE(all(tiers.fetch(key).bytes(), static_cast<int>(key)));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tiers.resident(key).data()) % 64, 0U);
  }
}

TEST_F(DeviceTiersTest, LeasesShowWhatTheUpdateLeftOnTheDevice) {
  put(tiers, 3, 1);
  update(3, 2);
  EXPECT_TRUE(all(tiers.fetch(3).bytes(), 2));
  Lease lease = tiers.fetch(3);
  set(lease, 5);
  EXPECT_TRUE(all(tiers.resident(3), 2));  // the emulated device's memory is the host's
  lease.commit();
  EXPECT_TRUE(all(tiers.resident(3), 5));
}

TEST_F(DeviceTiersTest, AChangeWithoutCommitKeepsTheVersionBefore) {
  put(tiers, 3, 1);
  {
    Lease lease = tiers.fetch(3);
    set(lease, 2);
  }
  EXPECT_TRUE(all(tiers.fetch(3).bytes(), 1));
  {
    Lease lease = tiers.create(3);
    set(lease, 3);
  }
  EXPECT_TRUE(all(tiers.fetch(3).bytes(), 1));
}

TEST_F(DeviceTiersTest, LeasesOfOtherKeysGoBesideThoseOfTheRest) {
  for (Key key = 0; key < 5; ++key) {
    put(tiers, key, 0);
  }
  std::vector<NamedThread> pool;
  for (int t = 0; t < 4; ++t) {
    pool.emplace_back("adder", [&, t] {
      for (int i = 0; i < 50; ++i) {
        Lease lease = tiers.fetch((i + t) % 5);
        int const value = std::to_integer<int>(lease.bytes().front());
        ASSERT_TRUE(all(lease.bytes(), value));
        set(lease, value + 1);
        lease.commit();
      }
    });
  }
  pool.clear();
  for (Key key = 0; key < 5; ++key) {
    EXPECT_TRUE(all(tiers.fetch(key).bytes(), 40));
  }
}

TEST_F(DeviceTiersTest, APassOfTheRestBeginsOnlyWithoutLeases) {
  {
    Lease const held = tiers.create(2);
    EXPECT_THROW(tiers.begin_pass(), PreconditionError);
  }
  {
    Lease const held = tiers.create(0);
    EXPECT_THROW(tiers.begin_pass(), PreconditionError);
  }
  tiers.begin_pass();
}

TEST_F(DeviceTiersTest, RefusesEmptyExtentsAndNoRest) {
  EXPECT_THROW((DeviceTiers{*device, 0, {small, 0}, make_host_tiers({})}), PreconditionError);
  EXPECT_THROW((DeviceTiers{*device, 0, {small}, nullptr}), PreconditionError);
}

TEST_F(DeviceTiersTest, SaysWhichKeyHelpsIfTheDeviceIsTooSmall) {
  auto const little = device::make_host_device(2 * small);
  EXPECT_THAT(message_of<UsageError>([&] {
                DeviceTiers{*little, 0, {small, small, small}, make_host_tiers({})};
              }),
              HasSubstr("update.device-resident"));
}

TEST(DeviceTiers, MayHoldEverythingOrNothing) {
  auto const device = device::make_host_device(0);
  DeviceTiers everything{*device, 0, {4096, 4096}, make_host_tiers({})};
  put(everything, 1, 7);
  EXPECT_TRUE(all(everything.fetch(1).bytes(), 7));
  EXPECT_EQ(everything.residence().host, 0);
  DeviceTiers nothing{*device, 2, {}, make_host_tiers({4096, 4096})};
  put(nothing, 1, 7);
  EXPECT_TRUE(all(nothing.fetch(1).bytes(), 7));
  EXPECT_EQ(nothing.residence().device, 0);
  EXPECT_THROW((void)nothing.fetch(2), PreconditionError);
}

/// A device whose streams fail from a given copy on.
class FailingDevice final : public device::WrappedDevice {
 public:
  explicit FailingDevice(int copies) : WrappedDevice{device::make_host_device(0)}, left_{copies} {}

 protected:
  [[nodiscard]] std::unique_ptr<device::Stream> wrap(
      std::unique_ptr<device::Stream> stream) override {
    return std::make_unique<FailingStream>(std::move(stream), left_);
  }

 private:
  class FailingStream final : public device::WrappedStream {
   public:
    FailingStream(std::unique_ptr<Stream> inner, int& left)
        : WrappedStream{std::move(inner)}, left_{left} {}
    void copy(void* target, void const* source, Bytes size, device::Copy direction) override {
      if (left_-- <= 0) {
        throw std::runtime_error{"the device is gone"};
      }
      inner().copy(target, source, size, direction);
    }

   private:
    int& left_;
  };

  int left_;
};

TEST(DeviceTiers, AFailedCopyEndsTheLeaseAndAFailedCommitLosesTheExtent) {
  FailingDevice device{2};
  DeviceTiers tiers{device, 0, {4096, 4096}, make_host_tiers({})};
  put(tiers, 0, 1);
  put(tiers, 1, 1);
  EXPECT_THROW((void)tiers.fetch(0), std::runtime_error);
  EXPECT_THROW((void)tiers.fetch(0), std::runtime_error);  // not taken, still there
  EXPECT_THROW(put(tiers, 0, 2), std::runtime_error);
  EXPECT_THROW((void)tiers.fetch(0), PreconditionError);
  EXPECT_EQ(tiers.residence().device, 4096);
}

}  // namespace
}  // namespace offstage::tiers
