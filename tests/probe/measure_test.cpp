#include "probe/measure.hpp"

#include <gmock/gmock.h>

#include <cstring>
#include <map>

#include "base/error.hpp"

namespace offstage::probe {
namespace {

using ::testing::AllOf;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Lt;

constexpr Effort quick{.bytes = 4 * MiB, .rounds = 2, .least = Seconds{0.01}};

/// Sleeps may end late, and what follows then makes up for it.
auto about(double rate) {
  return AllOf(Gt(0.5 * rate), Lt(2.0 * rate));
}

TEST(MeasureLink, FindsTheEmulatedRates) {
  // Far below what memory does, so that the emulation is the bound.
  auto const device =
      device::make_host_device(0, {.host_to_device = 100e6, .device_to_host = 400e6});
  auto const rates = measure_link(*device, quick);
  for (double const rate : {rates.to_device, rates.to_device_both, rates.to_device_pageable}) {
    EXPECT_THAT(rate, about(100e6));
  }
  for (double const rate : {rates.to_host, rates.to_host_both, rates.to_host_pageable}) {
    EXPECT_THAT(rate, about(400e6));
  }
  EXPECT_EQ(device->used(), 0) << "everything is given back";
}

TEST(MeasureLink, MakesDoWithLittleDeviceMemory) {
  auto const device = device::make_host_device(1 * MiB);
  EXPECT_GT(measure_link(*device, quick).to_device, 0.0);
  EXPECT_LE(device->peak(), 1 * MiB);
}

/// A device whose copies to the host spoil one byte from the `good` + 1st on.
class SpoilingDevice final : public device::Device {
 public:
  explicit SpoilingDevice(int good) : good_{good} {}
  [[nodiscard]] device::Kind kind() const noexcept override { return device::Kind::host; }
  [[nodiscard]] std::string name() const override { return "spoiler"; }
  [[nodiscard]] device::Buffer allocate(Bytes size, std::string const& /*purpose*/) override {
    auto memory = std::make_unique<std::byte[]>(static_cast<std::size_t>(size));
    auto* const data = memory.get();
    blocks_.emplace(data, std::move(memory));
    return {*this, data, size};
  }
  [[nodiscard]] std::unique_ptr<device::Stream> make_stream(std::string const& name) override {
    return std::make_unique<Spoiling>(inner_->make_calling_stream(name), good_);
  }
  [[nodiscard]] std::unique_ptr<device::Stream> make_calling_stream(
      std::string const& name) override {
    return make_stream(name);
  }
  [[nodiscard]] std::unique_ptr<device::Pinned> pin(std::span<std::byte> memory) override {
    return inner_->pin(memory);
  }
  [[nodiscard]] bool host_visible() const noexcept override { return false; }
  [[nodiscard]] Bytes capacity() const noexcept override { return GiB; }
  [[nodiscard]] Bytes used() const noexcept override { return 0; }
  [[nodiscard]] Bytes peak() const noexcept override { return 0; }

 protected:
  void free(std::byte* data, Bytes /*size*/) noexcept override { blocks_.erase(data); }

 private:
  class Spoiling final : public device::Stream {
   public:
    Spoiling(std::unique_ptr<device::Stream> inner, int& good)
        : inner_{std::move(inner)}, good_{good} {}
    [[nodiscard]] device::Kind kind() const noexcept override { return inner_->kind(); }
    void copy(void* target, void const* source, Bytes size, device::Copy direction) override {
      inner_->copy(target, source, size, direction);
      if (direction == device::Copy::device_to_host && good_-- <= 0) {
        static_cast<unsigned char*>(target)[size / 2] ^= 1U;
      }
    }
    void enqueue(std::function<void()> kernel, std::int64_t updates) override {
      inner_->enqueue(std::move(kernel), updates);
    }
    [[nodiscard]] void* native() const noexcept override { return nullptr; }
    [[nodiscard]] std::shared_ptr<device::Event> record() override { return inner_->record(); }
    void wait(device::Event const& event) override { inner_->wait(event); }
    void synchronize() override { inner_->synchronize(); }

   private:
    std::unique_ptr<device::Stream> inner_;
    int& good_;
  };

  std::unique_ptr<device::Device> inner_ = device::make_host_device(0);
  std::map<std::byte*, std::unique_ptr<std::byte[]>> blocks_;
  int good_;
};

TEST(MeasureLink, NamesTheFirstByteThatCameBackWrong) {
  // Pageable, pinned and both ways at once: each is looked at.
  for (auto const& [good, how] :
       {std::pair{0, "pageable"}, std::pair{6, "pinned"}, std::pair{12, "both ways"}}) {
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
    double const on_device =
        measure_device_update(*device, dtype, {.bytes = MiB, .rounds = 1, .least = Seconds{}});
    EXPECT_THAT(on_device, about(2e6));
  }
  double const on_cpu = measure_cpu_update(DType::bf16, {.host_update = 1e6},
                                           {.bytes = MiB, .rounds = 2, .least = Seconds{}});
  EXPECT_THAT(on_cpu, about(1e6));
}

TEST(MeasureUpdate, KeepsToTheDevicesMemory) {
  auto const device = device::make_host_device(1 * MiB);
  EXPECT_GT(measure_device_update(*device, DType::bf16, quick), 0.0);
  EXPECT_LE(device->peak(), 1 * MiB);
}

TEST(Measure, GivesARateOfEverything) {
  for (DType const dtype : {DType::bf16, DType::fp16, DType::fp32}) {
    EXPECT_GT(measure_cpu_update(dtype, {}, quick), 1e6);
    EXPECT_GT(measure_product(dtype, quick), 1e6);
  }
  EXPECT_GT(measure_conversion(DType::bf16, quick), 1e6);
  EXPECT_GT(measure_conversion(DType::fp16, quick), 1e6);
  EXPECT_GT(measure_host_memory(quick), 1e6);
  EXPECT_THROW((void)measure_conversion(DType::fp32, quick), PreconditionError);
}

}  // namespace
}  // namespace offstage::probe
