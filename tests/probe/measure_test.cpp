#include "probe/measure.hpp"

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "device/wrapped_device.hpp"
#include "tries.hpp"

namespace offstage::probe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Effort quick{.bytes = 4 * MiB, .rounds = 2, .least = Seconds{0.01}};

TEST(MeasureLink, FindsTheEmulatedRates) {
  // Far below what memory does, so that the emulation is the bound.
  auto const device =
      device::make_host_device(0, {.host_to_device = 100e6, .device_to_host = 400e6});
  struct Emulated {
    double LinkRates::*rate;
    double is;
  };
  for (Emulated const& emulated : {Emulated{&LinkRates::to_device, 100e6},
                                   {&LinkRates::to_device_both, 100e6},
                                   {&LinkRates::to_device_pageable, 100e6},
                                   {&LinkRates::to_host, 400e6},
                                   {&LinkRates::to_host_both, 400e6},
                                   {&LinkRates::to_host_pageable, 400e6}}) {
    EXPECT_TRUE(holds_in_some_try(
        [&] { return is_about(measure_link(*device, quick).*emulated.rate, emulated.is); }));
  }
  EXPECT_EQ(device->used(), 0) << "everything is given back";
}

TEST(MeasureLink, TakesHalfOfTheHostMemoryAtMost) {
  auto const device = device::make_host_device(0);  // its memory is the host's
  for (Bytes const host_memory : {GiB, 96 * MiB}) {
    auto const effort = within({.bytes = 256 * MiB, .rounds = 1, .least = Seconds{}}, host_memory);
    EXPECT_LE(4 * effort.bytes, host_memory / 2);
  }
  static_cast<void>(measure_link(*device, within(quick, 16 * MiB)));
  EXPECT_EQ(device->peak(), 2 * 2 * MiB);
  EXPECT_EQ(within({}, 64 * GiB).bytes, Effort{}.bytes);
}

TEST(MeasureLink, MakesDoWithLittleDeviceMemory) {
  auto const device = device::make_host_device(1 * MiB);
  EXPECT_GT(measure_link(*device, quick).to_device, 0.0);
  EXPECT_LE(device->peak(), 1 * MiB);
}

TEST(MeasureLink, MovesAllOfWhatIsMoreThanAPiece) {
  auto const device = device::make_host_device(0);
  Effort const effort{.bytes = 17 * MiB, .rounds = 1, .least = Seconds{}};
  EXPECT_GT(measure_link(*device, effort).to_host, 0.0);
  EXPECT_EQ(device->peak(), 2 * 17 * MiB);
}

/// A device whose copies to the host spoil one byte from the `good` + 1st on.
class SpoilingDevice final : public device::WrappedDevice {
 public:
  explicit SpoilingDevice(int good) : WrappedDevice{device::make_host_device(0)}, good_{good} {}
  [[nodiscard]] std::string name() const override { return "spoiler"; }

 protected:
  [[nodiscard]] std::unique_ptr<device::Stream> wrap(
      std::unique_ptr<device::Stream> stream) override {
    return std::make_unique<SpoilingStream>(std::move(stream), good_);
  }

 private:
  class SpoilingStream final : public device::WrappedStream {
   public:
    SpoilingStream(std::unique_ptr<Stream> inner, int& good)
        : WrappedStream{std::move(inner)}, good_{good} {}
    void copy(void* target, void const* source, Bytes size, device::Copy direction) override {
      inner().copy(target, source, size, direction);
      if (direction == device::Copy::device_to_host && good_-- <= 0) {
        auto* const byte = static_cast<unsigned char*>(target) + size / 2;
        inner().enqueue([byte] { *byte ^= 1U; });
      }
    }

   private:
    int& good_;
  };

  int good_;
};

TEST(MeasureLink, NamesTheFirstByteThatCameBackWrong) {
  // Pageable, pinned and both ways at once: each is looked at.
  for (auto const& [good, how] :
       {std::pair{0, "pageable"}, std::pair{8, "pinned"}, std::pair{16, "both ways"}}) {
    SpoilingDevice device{good};
    try {
      (void)measure_link(device, {.bytes = 4 * MiB, .rounds = 2, .least = Seconds{}});
      FAIL() << how;
    } catch (IoError const& error) {
      EXPECT_EQ(error.code(), ExitCode::io);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("device spoiler"), HasSubstr(how),
                                      HasSubstr("byte 2097152 of 4194304")));
    }
  }
}

TEST(MeasureUpdate, FindsTheEmulatedRatesOfCpuAndDevice) {
  auto const device = device::make_host_device(0, {.device_update = 2e6});
  for (DType const dtype : {DType::bf16, DType::fp16, DType::fp32}) {
    EXPECT_TRUE(holds_in_some_try([&] {
      Effort const effort{.bytes = MiB, .rounds = 1, .least = Seconds{}};
      return is_about(measure_device_update(*device, dtype, effort), 2e6);
    }));
  }
  EXPECT_TRUE(holds_in_some_try([&] {
    Effort const effort{.bytes = MiB, .rounds = 2, .least = Seconds{}};
    return is_about(measure_cpu_update(DType::bf16, {.host_update = 1e6}, effort), 1e6);
  }));
}

TEST(MeasureUpdate, KeepsToTheDevicesMemory) {
  auto const device = device::make_host_device(1 * MiB);
  EXPECT_GT(measure_device_update(*device, DType::bf16, quick), 0.0);
  EXPECT_LE(device->peak(), 1 * MiB);
}

TEST(MeasureProduct, FindsTheRateOfTheDeviceInItsMemory) {
  auto const device = device::make_host_device(1 * MiB, {.compute = 1e9});
  for (DType const dtype : {DType::bf16, DType::fp16, DType::fp32}) {
    EXPECT_TRUE(holds_in_some_try([&] {
      double const rate =
          measure_product(*device, dtype, {.rows = 1024, .in = 256, .out = 256}, quick);
      return 0.3e9 < rate && rate < 1.1e9;
    }));
  }
  EXPECT_LE(device->peak(), 512 * KiB) << "half of it";
  EXPECT_EQ(device->used(), 0);
  auto const unlimited = device::make_host_device(0);
  EXPECT_GT(measure_product(*unlimited, DType::bf16, {.rows = 64, .in = 64, .out = 64}, quick),
            1e6);
}

TEST(MeasureLink, FindsBothDirectionsAtOnce) {
  auto const device =
      device::make_host_device(0, {.host_to_device = 800e6, .device_to_host = 400e6});
  EXPECT_TRUE(holds_in_some_try(
      [&] { return is_about(measure_link_both(*device, quick).to_device_both, 800e6); }));
  EXPECT_TRUE(holds_in_some_try(
      [&] { return is_about(measure_link_both(*device, quick).to_host_both, 400e6); }));
}

TEST(Measure, GivesARateOfEverything) {
  for (DType const dtype : {DType::bf16, DType::fp16, DType::fp32}) {
    EXPECT_GT(measure_cpu_update(dtype, {}, quick), 1e6);
  }
  EXPECT_GT(measure_host_memory(quick), 1e6);
}

TEST(MeasureBlock, HasRatesOfBothPassesAndGivesItsMemoryBack) {
  auto const device = device::make_host_device(0);
  for (DType const dtype : {DType::fp32, DType::bf16}) {
    auto const rates = measure_block(*device, dtype, {.rounds = 1, .least = Seconds{0.0}});
    EXPECT_GT(rates.forward, 0.0);
    EXPECT_GT(rates.backward, 0.0);
  }
  EXPECT_EQ(device->used(), 0);
}

TEST(MeasureBlock, MakesDoWithLittleDeviceMemory) {
  auto const device = device::make_host_device(8 * MiB);
  EXPECT_GT(measure_block(*device, DType::bf16, {.rounds = 1, .least = Seconds{0.0}}).forward, 0.0);
  EXPECT_LE(device->peak(), 8 * MiB);
}

/// Far below what the cores do, so that the emulation is the bound.
TEST(MeasureBlock, FindsTheEmulatedRate) {
  auto const device = device::make_host_device(0, {.compute = 2e9});
  auto const rates = measure_block(*device, DType::fp32, {.rounds = 1, .least = Seconds{0.0}});
  EXPECT_LT(rates.forward, 1.5 * 2e9);
  EXPECT_LT(rates.backward, 1.5 * 2e9);
}

TEST(MeasureAccumulation, FindsTheEmulatedRate) {
  EXPECT_LT(measure_accumulation(DType::bf16, {.host_sum = 100e6}, quick), 2.0 * 100e6);
  EXPECT_GT(measure_accumulation(DType::fp32, {}, quick), 0.0);
}

}  // namespace
}  // namespace offstage::probe
