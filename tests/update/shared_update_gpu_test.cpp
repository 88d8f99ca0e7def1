// Updates that CPU and GPU share: the bits of the reference.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "platform/cuda/gpus.hpp"
#include "shared_update.hpp"

namespace offstage::update {
namespace {

template <class Types>
class SharedUpdateOnGpu : public ::testing::Test {};
TYPED_TEST_SUITE(SharedUpdateOnGpu, AllTypes);

TYPED_TEST(SharedUpdateOnGpu, GivesTheBitsOfTheReference) {
  if (cuda::find_gpus().count == 0) {
    GTEST_SKIP() << "no GPU: not run";
  }
  using G = typename TypeParam::Gradient;
  using W = typename TypeParam::Copy;
  constexpr int steps = 2;
  Shard const shard{7};
  Numbers<G> const numbers{shard, steps};
  auto const expected = train_by_reference<G, W>(shard, steps);
  auto const device = device::make_cuda_device(0, 256 * MiB);
  for (double const share : {0.0, 0.33, 0.5, 1.0}) {
    for (int const residents : {0, 2, 7}) {
      for (int const workers : {1, 4}) {
        Sharing sharing;
        sharing.share = share;
        sharing.residents = residents;
        sharing.workers = workers;
        sharing.lent_buffers = 1;
        sharing.chunk = 2 * chunk_elements;
        SharedUpdate<G, W> update{*device, shard, numbers, sharing};
        for (int t = 1; t <= steps; ++t) {
          update.start(t);
          update.readiness().wait(0, shard.size);
          auto const stats = update.finish();
          EXPECT_EQ(stats.cpu_elements + stats.device_elements, shard.size);
          EXPECT_EQ(stats.device.updated, stats.device_elements);
          EXPECT_LE(stats.device.kernel, stats.total);
          EXPECT_LE(stats.device.host_to_device, stats.total);
        }
        EXPECT_EQ(update.held(), 0);
        EXPECT_EQ(update.result(), expected) << sharing.text();
      }
    }
  }
}

}  // namespace
}  // namespace offstage::update
