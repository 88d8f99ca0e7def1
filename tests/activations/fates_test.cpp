// A model whose activations stay, are computed again or leave, in every combination, has the bits
// of one that keeps all.

#include "model/fates.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "activations/host_activations.hpp"
#include "base/dtype.hpp"
#include "device/shuffled_device.hpp"
#include "model/model_fixture.hpp"

namespace offstage::model {
namespace {

constexpr std::array product_fates{Fate::keep, Fate::recompute, Fate::leave};

/// All that a block can have: 2 x 3^4 x 2.
std::vector<BlockFates> all_fates() {
  std::vector<BlockFates> all;
  for (Fate const input : {Fate::keep, Fate::leave}) {
    for (Fate const qkv : product_fates) {
      for (Fate const attention : product_fates) {
        for (Fate const mid : product_fates) {
          for (Fate const up : product_fates) {
            for (Fate const pointwise : {Fate::keep, Fate::recompute}) {
              BlockFates fates{input, qkv, pointwise};
              fates[Part::attention] = attention;
              fates[Part::mid] = mid;
              fates[Part::up] = up;
              all.push_back(fates);
            }
          }
        }
      }
    }
  }
  return all;
}

template <class T>
using Results = std::pair<std::vector<double>, std::map<int, std::vector<T>>>;

/// A model beside a store, on a device.
template <class T>
struct Beside {
  Beside(test::TestModel<T>& like, RunShape const& run, device::Device& device)
      : source{like},
        stream{device.make_calling_stream("model")},
        store{leaving_parts<T>(like.shape, run), device, nullptr},
        gradients{*stream},
        model{like.shape, run, device, *stream} {
    model.set_store(store);
  }

  /// Two steps, the first with an evaluation between its forward and a new one.
  Results<T> run(data::TokenBatch const& first, data::TokenBatch const& second) {
    std::vector<double> losses{model.forward(first, source.parameters),
                               model.evaluate(second, source.parameters)};
    for (auto const& batch : {first, second}) {
      losses.push_back(model.forward(batch, source.parameters));
      model.backward(source.parameters, gradients);
    }
    return {losses, gradients.values};
  }

  test::TestModel<T>& source;
  std::unique_ptr<device::Stream> stream;
  activations::HostActivations store;
  test::MemoryGradients<T> gradients;
  Transformer<T> model;
};

/// Six blocks, of which the last three may be those that stay in the slabs.
constexpr std::int64_t blocks = 6;
constexpr std::size_t tried = 3;

template <class T>
void expect_the_same_bits(state::ModelShape shape, std::size_t first_tried, std::size_t stride) {
  shape.layers = blocks;
  auto const all = all_fates();
  RunShape run{.batch = 2, .sequence = 5};
  test::TestModel<T> like{shape, run};
  auto const first = test::random_batch(2, 5, shape.vocab, 3);
  auto const second = test::random_batch(2, 5, shape.vocab, 4);
  auto const plain = device::make_host_device(0);
  auto const expected = Beside<T>{like, run, *plain}.run(first, second);
  device::ShuffledDevice late{1, 0, std::chrono::microseconds{20}, {.compute = 1e15}};
  for (std::size_t at = first_tried; at < all.size(); at += stride) {
    run.fates.assign(blocks, leaving_block);
    for (std::size_t i = 0; i < tried; ++i) {
      run.fates[i] = all[(at + i * stride / tried) % all.size()];
    }
    run.slabs = static_cast<int>(at / stride % 3) + 1;
    bool const shuffled = at / stride % 4 == 3;
    auto& device = shuffled ? static_cast<device::Device&>(late) : *plain;
    auto const got = Beside<T>{like, run, device}.run(first, second);
    ASSERT_EQ(got.first, expected.first) << "combination " << at;
    ASSERT_EQ(got.second, expected.second) << "combination " << at;
  }
}

class Fates : public ::testing::TestWithParam<test::NamedShape> {};
INSTANTIATE_TEST_SUITE_P(Of, Fates, ::testing::ValuesIn(test::all_tiny_shapes()), test::name_of);

TEST_P(Fates, ChangeNoBits) {
  // In one run after another these are tried: first_tried + stride n / 3. Together the shapes meet
  // all that a block can have.
  auto const shapes = test::all_tiny_shapes();
  auto const number = static_cast<std::size_t>(
      std::ranges::find(shapes, GetParam().name, &test::NamedShape::name) - shapes.begin());
  constexpr std::size_t stride = 18;
  static_assert(stride / tried == 6, "as many as there are shapes");
  expect_the_same_bits<float>(GetParam().shape, number, stride);
  expect_the_same_bits<bfloat16>(GetParam().shape, number, stride);
  expect_the_same_bits<float16>(GetParam().shape, number, 3 * stride);
}

TEST(FatesOfARun, NeedAStoreWhereSomethingLeaves) {
  auto const shape = test::tiny_shape(false);
  auto const forward = [&](BlockFates const& fates, int slabs) {
    RunShape const run{
        .batch = 2, .sequence = 5, .fates = test::all_blocks(shape, fates), .slabs = slabs};
    test::TestModel<float> alone{shape, run};
    (void)alone.model.forward(test::random_batch(2, 5, shape.vocab, 3), alone.parameters);
  };
  EXPECT_NO_THROW(forward(recomputed_block, 1));
  EXPECT_NO_THROW(forward(leaving_block, 2)) << "both stay in the slabs";
  EXPECT_THROW(forward(leaving_block, 1), PreconditionError);
  EXPECT_THROW(forward({Fate::recompute, Fate::keep, Fate::keep}, 2), PreconditionError);
  EXPECT_THROW(forward({Fate::leave, Fate::leave, Fate::leave}, 2), PreconditionError);
}

TEST(BlockRing, DealsSlabsInTurnToBlocksOfWhichAPartDoesNotStay) {
  BlockRing const ring{
      6,
      {leaving_block, kept_block, recomputed_block, leaving_block, kept_block, leaving_block},
      2};
  EXPECT_EQ(ring.slabs(), 2);
  std::vector<int> slabs, before;
  std::vector<bool> stays;
  for (int block = 0; block < ring.blocks(); ++block) {
    slabs.push_back(ring.slab(block));
    before.push_back(ring.before(block));
    BlockFates fates = ring.fates(block);
    fates[Part::pointwise] = Fate::keep;  // it never stays
    stays.push_back(fates == kept_block);
  }
  constexpr int none = BlockRing::none;
  EXPECT_EQ(slabs, (std::vector{0, none, 1, 0, none, 1}));
  EXPECT_EQ(before, (std::vector{none, none, none, 0, none, 2}));
  EXPECT_EQ(stays, (std::vector{false, true, false, true, true, true}));
  // Of what is pointwise there is one copy alone, which is computed again in any case.
  EXPECT_EQ(ring.copies(Part::qkv), 2);
  EXPECT_EQ(ring.copies(Part::pointwise), 1);
  BlockFates expected;
  expected[Part::pointwise] = Fate::recompute;
  EXPECT_EQ(ring.fates(3), expected);
  EXPECT_EQ(ring.fates(5), expected);
}

TEST(BlockRing, HasASlabWhereNothingLeavesAndNoneWhereAllStays) {
  EXPECT_EQ((BlockRing{5, std::vector(5, recomputed_block), 4}.slabs()), 1);
  EXPECT_EQ((BlockRing{5, {}, 4}.slabs()), 0);
  EXPECT_EQ((BlockRing{2, std::vector(2, leaving_block), 4}.slabs()), 2);
  EXPECT_THROW((BlockRing{2, std::vector(3, leaving_block), 4}), PreconditionError);
  EXPECT_THROW((BlockRing{2, {}, 0}), PreconditionError);
}

// Of one slab's parts no two blocks have any at the same time but the ring's.
TEST(Transformer, WhoseActivationsLeaveTakesSlabsAlone) {
  auto shape = test::tiny_shape(false);
  auto const bytes = [&](std::int64_t layers, int slabs) {
    shape.layers = layers;
    RunShape const run{
        .batch = 2, .sequence = 5, .fates = test::all_blocks(shape, leaving_block), .slabs = slabs};
    test::TestModel<float> like{shape};
    auto const device = device::make_host_device(0);
    Beside<float> const setup{like, run, *device};
    return device->used();
  };
  EXPECT_EQ(bytes(5, 2), bytes(9, 2));
  EXPECT_GT(bytes(5, 3), bytes(5, 2));
}

}  // namespace
}  // namespace offstage::model
