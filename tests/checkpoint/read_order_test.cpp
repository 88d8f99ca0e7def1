// What a restart waits for, and what it does not.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <utility>

#include "checkpoint/reader.hpp"
#include "checkpoint/store_fixture.hpp"
#include "platform/aio/kernel.hpp"

namespace offstage::checkpoint {
namespace {

/// The real one. Reads that `waits` is true of, and the end of a context, wait until it is open, or
/// half a minute.
class GatedKernel final : public aio::Kernel {
 public:
  explicit GatedKernel(std::function<bool(aio::Transfer const&)> waits)
      : waits_{std::move(waits)} {}
  void open() { open_ = true; }
  /// Nobody has waited for as long as that.
  [[nodiscard]] bool was_opened_in_time() const { return !late_; }

  int setup(int depth, Context& context) override { return real_->setup(depth, context); }
  int submit(Context context, aio::Transfer const& transfer) override {
    if (waits_(transfer)) {
      await();
    }
    return real_->submit(context, transfer);
  }
  int get_events(Context context, std::span<aio::Completion> completions) override {
    return real_->get_events(context, completions);
  }
  void destroy(Context context) noexcept override {
    await();
    real_->destroy(context);
  }

 private:
  void await() noexcept {
    for (int i = 0; i < 30'000 && !open_; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    late_ = late_ || !open_;
  }

  std::shared_ptr<aio::Kernel> real_ = aio::libaio_kernel();
  std::function<bool(aio::Transfer const&)> waits_;
  std::atomic<bool> open_{false};
  std::atomic<bool> late_{false};
};

class ReadOrder : public CheckpointStore {
 protected:
  /// Whether the first bytes of a subgroup's extent are those that were saved.
  [[nodiscard]] static bool holds(Shard const& shard, state::Subgroup const& subgroup,
                                  std::span<std::byte const> bytes) {
    auto const expected = shard.expected(subgroup, 1);
    return std::equal(bytes.begin(), bytes.end(), expected.begin());
  }
};

TEST_F(ReadOrder, ParametersAreThereBeforeWhatFollowsThemIsRead) {
  save(1, 1);
  Shard const shard = make_shard();
  for (state::Subgroup const& subgroup : shard.subgroups) {
    memory::HugeBuffer const buffer{shard.layout.bytes(subgroup.size)};
    auto const parameters =
        buffer.bytes().first(static_cast<std::size_t>(shard.layout.plane_offset(1, subgroup.size)));
    auto const kernel = std::make_shared<GatedKernel>([&](aio::Transfer const& transfer) {
      return transfer.memory >= parameters.data() + parameters.size();
    });
    Reader reader{path(1), read_master(path(1)), kernel};
    reader.begin(subgroup.pieces, buffer.bytes());
    reader.await_parameters();
    EXPECT_TRUE(holds(shard, subgroup, parameters));
    EXPECT_TRUE(kernel->was_opened_in_time());
    kernel->open();
    reader.finish();
    EXPECT_TRUE(holds(shard, subgroup, buffer.bytes()));
  }
}

TEST_F(ReadOrder, AsynchronousIoIsGivenBackBehindIt) {
  save(1, 1);
  Shard const shard = make_shard();
  if (shard.subgroups.empty()) {
    return;
  }
  state::Subgroup const& subgroup = shard.subgroups.front();
  memory::HugeBuffer const buffer{shard.layout.bytes(subgroup.size)};
  auto const kernel = std::make_shared<GatedKernel>([](aio::Transfer const&) { return false; });
  std::shared_ptr<ReadAhead> ending;
  {
    Reader reader{path(1), read_master(path(1)), kernel};
    reader.begin(subgroup.pieces, buffer.bytes());
    reader.begun_all();
    reader.finish();
    ending = reader.take_ending();
  }
  EXPECT_TRUE(holds(shard, subgroup, buffer.bytes()));
  EXPECT_TRUE(kernel->was_opened_in_time());
  kernel->open();
  ending.reset();
  EXPECT_TRUE(kernel->was_opened_in_time());
}

}  // namespace
}  // namespace offstage::checkpoint
