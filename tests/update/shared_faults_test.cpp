// Updates that CPU and device share, while a tier or a stream fails: an error, and nothing hangs or
// is held.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "base/error.hpp"
#include "deadline.hpp"
#include "device/wrapped_device.hpp"
#include "shared_update.hpp"

namespace offstage::update {
namespace {

/// A device over a link, of which one piece of work fails: the n-th copy or kernel of any stream.
class FailingDevice final : public device::WrappedDevice {
 public:
  FailingDevice() : WrappedDevice{device::make_host_device(0)} {}
  /// From now on; below 0: never.
  void fail_after(std::int64_t pieces) { left_ = pieces < 0 ? never : pieces; }
  [[nodiscard]] std::int64_t done() const { return never - left_; }

 protected:
  [[nodiscard]] std::unique_ptr<device::Stream> wrap(
      std::unique_ptr<device::Stream> stream) override {
    return std::make_unique<FailingStream>(std::move(stream), left_);
  }

 private:
  static constexpr std::int64_t never = std::int64_t{1} << 40U;
  class FailingStream final : public device::WrappedStream {
   public:
    FailingStream(std::unique_ptr<Stream> inner, std::atomic<std::int64_t>& left)
        : WrappedStream{std::move(inner)}, left_{left} {}
    void copy(void* target, void const* source, Bytes size, device::Copy direction) override {
      may_fail();
      inner().copy(target, source, size, direction);
    }
    void enqueue(std::function<void()> kernel, device::Work work) override {
      may_fail();
      inner().enqueue(std::move(kernel), work);
    }

   private:
    void may_fail() {
      if (--left_ == -1) {
        inner().enqueue([] { throw IoError{"the link is gone"}; });
      }
    }
    std::atomic<std::int64_t>& left_;
  };

  std::atomic<std::int64_t> left_ = never;
};

Sharing sharing_of(plan::Transfers transfers, int workers) {
  Sharing sharing;
  sharing.residents = 1;
  sharing.workers = workers;
  sharing.lent_buffers = 1;
  sharing.buffers = 2;
  sharing.transfers = transfers;
  return sharing;
}

void expect_failed(SharedUpdate<bfloat16, bfloat16>& update, std::string const& where) {
  EXPECT_EQ(update.held(), 0) << where;
  EXPECT_THROW(update.readiness().wait(0, update.shard().size), IoError) << where;
}

TEST(SharedUpdateFaults, AFailingStreamEndsTheUpdateWithItsError) {
  Shard const shard{4};
  Numbers<bfloat16> const numbers{shard, 1};
  for (auto const transfers : {plan::Transfers::overlap, plan::Transfers::blocking}) {
    for (int const workers : {1, 3}) {
      std::int64_t pieces = 0;
      {
        FailingDevice device;
        SharedUpdate<bfloat16, bfloat16> update{device, shard, numbers,
                                                sharing_of(transfers, workers)};
        auto const before = device.done();
        update.run(1);
        pieces = device.done() - before;
      }
      ASSERT_GT(pieces, 20);
      for (std::int64_t n = 0; n < pieces; n += 1 + n / 8) {
        auto const where = fmt::format("piece {} of {}, {} workers", n, pieces, workers);
        Deadline const deadline{std::chrono::seconds{60}, where};
        FailingDevice device;
        SharedUpdate<bfloat16, bfloat16> update{device, shard, numbers,
                                                sharing_of(transfers, workers)};
        device.fail_after(n);
        bool const in_start = n % 2 == 0;
        if (in_start && transfers == plan::Transfers::overlap) {
          update.start(1);
          EXPECT_THROW(update.finish(), IoError) << where;
        } else {
          EXPECT_THROW(update.run(1), IoError) << where;
        }
        expect_failed(update, where);
        try {  // a stream that failed stays so; the update may do without it
          update.run(1);
        } catch (IoError const&) {
          expect_failed(update, where);
        }
      }
    }
  }
}

TEST(SharedUpdateFaults, AFailingTierEndsTheUpdateWithItsErrorAndTheNextOneRuns) {
  Shard const shard{6};
  Numbers<bfloat16> const numbers{shard, 1};
  for (auto const call : {MemoryTiers::Call::fetch, MemoryTiers::Call::commit}) {
    for (std::int64_t subgroup = 0; subgroup < 5; ++subgroup) {
      for (int const workers : {1, 4}) {
        auto const where = fmt::format("subgroup {}, {} workers", subgroup, workers);
        Deadline const deadline{std::chrono::seconds{60}, where};
        std::atomic<bool> armed = false;
        auto sharing = sharing_of(plan::Transfers::overlap, workers);
        sharing.state.hook = [&](MemoryTiers::Event event) {
          if (armed && event.call == call && event.key == subgroup) {
            throw IoError{"the disk is gone"};
          }
        };
        auto const device = device::make_host_device(0, {1e13, 1e13, 0.0, 0.0});
        SharedUpdate<bfloat16, bfloat16> update{*device, shard, numbers, sharing};
        armed = true;
        EXPECT_THROW(update.run(1), IoError) << where;
        expect_failed(update, where);
        armed = false;
        update.run(1);
        update.readiness().wait(0, shard.size);
      }
    }
  }
}

TEST(SharedUpdateFaults, AGradientThatCannotBeHadEndsTheUpdateWithItsError) {
  Shard const shard{6};
  Numbers<bfloat16> const numbers{shard, 1};
  for (std::int64_t subgroup = 0; subgroup < 6; ++subgroup) {  // the last one is resident
    auto const where = fmt::format("subgroup {}", subgroup);
    Deadline const deadline{std::chrono::seconds{60}, where};
    auto const device = device::make_host_device(0, {1e13, 1e13, 0.0, 0.0});
    SharedUpdate<bfloat16, bfloat16> update{*device, shard, numbers,
                                            sharing_of(plan::Transfers::overlap, 2)};
    update.run(1);
    update.before_gradient = [&](state::Subgroup const& of) {
      if (of.index == subgroup) {
        throw IoError{"the disk is gone"};
      }
    };
    EXPECT_THROW(make_update(update.update(), update.order(), first_step), IoError) << where;
    expect_failed(update, where);
    update.before_gradient = nullptr;
    update.run(1);
  }
}

TEST(SharedUpdateFaults, AnErrorOfTheKernelReachesTheCallerAndTheLaneGoesOn) {
  Shard const shard{4};
  Numbers<bfloat16> const numbers{shard, 1};
  auto const device = device::make_host_device(0, {1e13, 1e13, 0.0, 0.0});
  Sharing sharing;
  sharing.share = 1.0;
  SharedUpdate<bfloat16, bfloat16> update{*device, shard, numbers, sharing};
  update.run(1);
  kernels::OptimizerStep bad = first_step;
  bad.step = 0;
  EXPECT_THROW(make_update(update.update(), update.order(), bad), PreconditionError);
  EXPECT_EQ(update.held(), 0);
  update.run(1);
}

}  // namespace
}  // namespace offstage::update
