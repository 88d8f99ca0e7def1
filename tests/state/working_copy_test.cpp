#include "state/working_copy.hpp"

#include <gtest/gtest.h>

#include "base/dtype.hpp"
#include "base/error.hpp"

namespace offstage::state {
namespace {

std::vector<LayerLayout> layers_with(std::vector<std::int64_t> sizes) {
  std::vector<LayerLayout> layers;
  for (std::int64_t elements : sizes) {
    layers.emplace_back().elements = elements;
  }
  return layers;
}

/// What element i of a layer holds in these tests: unlike all of its neighbours.
template <class T>
T value_of(int layer, std::int64_t i) {
  return store<T>(static_cast<float>(layer * 100 + i % 97));
}

template <class T>
class GatherTest : public testing::Test {
 protected:
  GatherTest() {
    for (int layer = 0; layer < 3; ++layer) {
      ChunkRange const mine = map.chunks(layer, comm.rank());
      auto const offset = static_cast<std::size_t>(map.shard_offset(layer, comm.rank()));
      for (std::int64_t i = 0; i < mine.count * chunk_elements; ++i) {
        copy.shard()[offset + static_cast<std::size_t>(i)] =
            value_of<T>(layer, mine.first * chunk_elements + i);
      }
    }
  }

  mpi::Communicator comm = mpi::Communicator::world();
  ShardMap map{layers_with({5 * 4096, 10, 7 * 4096 - 3}), comm.size()};
  std::unique_ptr<device::Device> device = device::make_host_device(0);
  std::unique_ptr<device::Stream> stream = device->make_calling_stream("compute");
  WorkingCopy<T> copy{map, comm, *device, *stream};
};
using AllElements = testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(GatherTest, AllElements);

TYPED_TEST(GatherTest, EveryRankSeesTheWholeLayer) {
  for (int layer : {0, 1, 2, 1, 0}) {
    auto const whole = this->copy.acquire(layer);
    ASSERT_EQ(static_cast<std::int64_t>(whole.size()),
              this->map.layers()[static_cast<std::size_t>(layer)].padded_elements());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      ASSERT_EQ(whole[i], value_of<TypeParam>(layer, static_cast<std::int64_t>(i)));
    }
    this->copy.release(layer);
  }
}

TYPED_TEST(GatherTest, TwoLayersCanBeHeldAThirdCannot) {
  auto const a = this->copy.acquire(0);
  auto const b = this->copy.acquire(2);
  EXPECT_EQ(a[1], value_of<TypeParam>(0, 1));
  EXPECT_EQ(b[1], value_of<TypeParam>(2, 1));
  EXPECT_THROW((void)this->copy.acquire(1), PreconditionError);
  this->copy.release(0);
  this->copy.release(2);
  EXPECT_THROW(this->copy.release(2), PreconditionError);
}

TEST(WorkingCopy, RefusesWhatTheDeviceCannotHold) {
  mpi::Communicator const comm = mpi::Communicator::world();
  ShardMap const map{layers_with({1 << 20}), comm.size()};
  auto const device = device::make_host_device(MiB);
  auto const stream = device->make_calling_stream("compute");

  EXPECT_THROW((WorkingCopy<float>{map, comm, *device, *stream}), UsageError);
}

}  // namespace
}  // namespace offstage::state
