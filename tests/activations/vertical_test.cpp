// Micro-batches that pass the layers together have the bits of those that pass them one after the
// other, wherever what waits between layers is.

#include "model/vertical_pass.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "activations/host_activations.hpp"
#include "base/dtype.hpp"
#include "device/shuffled_device.hpp"
#include "effort.hpp"
#include "model/model_fixture.hpp"

namespace offstage::model {
namespace {

/// A layer's gradients in the order in which they came; empty: of a rank that is idle.
template <class T>
using Gradients = std::map<int, std::vector<std::vector<T>>>;

/// Reads a gradient as late as it may, on a stream of its own.
template <class T>
class LateGradients final : public state::GradientSink<T> {
 public:
  LateGradients(device::Device& device, device::Stream& model)
      : model_{model}, own_{device.make_stream("gradients")} {}
  ~LateGradients() override { own_->synchronize(); }
  LateGradients(LateGradients const&) = delete;
  LateGradients& operator=(LateGradients const&) = delete;

  std::shared_ptr<device::Event> add(int layer, std::span<T const> gradient) override {
    order.push_back(layer);
    auto before = std::exchange(last_, nullptr);
    auto const to = std::make_shared<std::vector<T>>(gradient.size());
    copies_.emplace_back(layer, to);
    if (!gradient.empty()) {
      own_->wait(*model_.record());
      own_->copy(to->data(), gradient.data(), static_cast<Bytes>(gradient.size_bytes()),
                 device::Copy::device_to_host);
      last_ = own_->record();
    }
    return before;
  }
  /// All since the last time.
  [[nodiscard]] Gradients<T> collect() {
    own_->synchronize();
    Gradients<T> all;
    for (auto const& [layer, gradient] : std::exchange(copies_, {})) {
      all[layer].push_back(*gradient);
    }
    return all;
  }

  std::vector<int> order;

 private:
  device::Stream& model_;
  std::vector<std::pair<int, std::shared_ptr<std::vector<T>>>> copies_;
  std::unique_ptr<device::Stream> own_;
  std::shared_ptr<device::Event> last_;
};

template <class T>
struct Step {
  std::vector<double> losses;
  Gradients<T> gradients;
};

/// `documents_apart`: the documents of each lie at other places.
std::vector<data::TokenBatch> some_batches(state::ModelShape const& shape, int count,
                                           std::uint64_t seed, bool documents_apart = false) {
  std::vector<data::TokenBatch> batches;
  for (int g = 0; g < count; ++g) {
    batches.push_back(test::random_batch(2, 5, shape.vocab, seed + static_cast<std::uint64_t>(g)));
    if (documents_apart) {
      batches.back() = test::with_documents(batches.back(), g);
    }
  }
  return batches;
}

template <class T>
Step<T> one_by_one(test::TestModel<T>& model, std::vector<data::TokenBatch> const& batches,
                   int rounds) {
  Step<T> step;
  for (auto const& batch : batches) {
    step.losses.push_back(model.step(batch));
    for (auto const& [layer, gradient] : model.gradients.values) {
      step.gradients[layer].push_back(gradient);
    }
  }
  for (int layer = 0; layer < static_cast<int>(model.layers.size()); ++layer) {
    step.gradients[layer].resize(static_cast<std::size_t>(rounds));
  }
  return step;
}

/// A model for a vertical schedule, with the parameters of another.
template <class T>
struct Together {
  Together(test::TestModel<T>& like, RunShape const& run, device::Device& device)
      : source{like},
        stream{device.make_calling_stream("model")},
        model{like.shape, run, device, *stream},
        gradients{device, *stream},
        store{leaving_parts<T>(like.shape, run), device, nullptr} {
    model.set_store(store);
  }

  Step<T> step(std::vector<data::TokenBatch> const& batches, int rounds) {
    Step<T> step;
    model.forward(batches, rounds, source.parameters);
    step.losses = model.head(source.parameters, gradients);
    model.backward_all(source.parameters, gradients);
    step.gradients = gradients.collect();
    return step;
  }

  test::TestModel<T>& source;
  std::unique_ptr<device::Stream> stream;
  Transformer<T> model;
  // Copies of the model's memory may go on; they end before it does.
  LateGradients<T> gradients;
  activations::HostActivations store;
};

constexpr std::int64_t block_count = 3;

/// One of five combinations, others for each shape, unless all are tried.
template <class T>
void expect_the_same_bits(state::ModelShape shape, bool documents_apart) {
  static int turn = 0;
  shape.layers = block_count;
  test::TestModel<T> like{shape, {.batch = 2, .sequence = 5, .documents_apart = documents_apart}};
  auto const plain = device::make_host_device(0);
  std::uint64_t seed = 0;
  for (int const count : {1, 2, 5}) {
    for (bool const leaves : {false, true}) {
      for (int const slabs : {1, 2}) {
        for (bool const is_idle : {false, true}) {
          if (turn++ % 5 != 0 && !tries_all()) {
            continue;
          }
          device::ShuffledDevice late{++seed, 0, std::chrono::microseconds{20}, {.compute = 1e15}};
          RunShape const run{
              .batch = 2,
              .sequence = 5,
              .documents_apart = documents_apart,
              .fates = test::all_blocks(shape, leaves ? leaving_block : recomputed_block),
              .slabs = slabs,
              .micro_batches = is_idle ? count + 1 : count,
              // None, some or all of the gradients, and some inputs.
              .staying = {.tensors = turn % 4 * 3, .tables = turn % 3 == 0},
              .attention_buffer = seed % 2 == 0};
          bool const shuffled = (seed + static_cast<std::uint64_t>(slabs)) % 2 == 0;
          auto& device = shuffled ? static_cast<device::Device&>(late) : *plain;
          Together<T> together{like, run, device};
          int const rounds = run.micro_batches;
          for (std::uint64_t step = 0; step < 2; ++step) {
            SCOPED_TRACE(testing::Message() << count << " micro-batches, leave " << leaves
                                            << ", slabs " << slabs << ", idle " << is_idle);
            auto const batches = some_batches(shape, count, 3 + 10 * step, documents_apart);
            auto const expected = one_by_one(like, batches, rounds);
            auto const got = together.step(batches, rounds);
            ASSERT_EQ(got.losses, expected.losses);
            ASSERT_EQ(got.gradients, expected.gradients);
            ASSERT_EQ(together.model.evaluate(batches[0], like.parameters), got.losses[0]);
          }
          EXPECT_EQ(together.store.traffic().out > 0,
                    leaves && !leaving_parts<T>(shape, run).empty());
        }
      }
    }
  }
}

class TogetherOf : public ::testing::TestWithParam<test::NamedShape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, TogetherOf, ::testing::ValuesIn(test::all_tiny_shapes()),
                         test::name_of);

TEST_P(TogetherOf, ChangesNoBits) {
  expect_the_same_bits<float>(GetParam().shape, false);
  expect_the_same_bits<bfloat16>(GetParam().shape, false);
}

TEST_P(TogetherOf, ChangesNoBitsOfDocumentsThatAreApart) {
  expect_the_same_bits<float>(GetParam().shape, true);
  expect_the_same_bits<bfloat16>(GetParam().shape, true);
}

TEST_P(TogetherOf, AcquiresALayerTwiceAStepAndGivesAllGradientsOfABlockBeforeTheNextOne) {
  test::TestModel<float> like{GetParam().shape};
  RunShape const run{.batch = 2, .sequence = 5, .micro_batches = 4};
  auto const device = device::make_host_device(0);
  Together<float> together{like, run, *device};
  (void)together.step(some_batches(like.shape, 4, 3), 4);
  auto const order = layer_order(like.shape);
  auto expected = order.forward;
  expected.insert(expected.end(), order.backward.begin(), order.backward.end());
  EXPECT_EQ(like.parameters.acquired, expected);
  EXPECT_EQ(like.parameters.held(), 0U);
  EXPECT_EQ(like.parameters.most_held, 2U);
  std::vector<int> given(4, 5);  // the head's
  for (int const mlp : {4, 2}) {
    for (int g = 0; g < 4; ++g) {
      given.insert(given.end(), {mlp, mlp - 1});
    }
  }
  given.insert(given.end(), 4, 0);
  EXPECT_EQ(together.gradients.order, given);
}

// A gradient is complete with its last part: by then its layer is released, and nothing is complete
// before all losses are known.
TEST_P(TogetherOf, GivesALayersLastGradientWhenItIsReleasedAndTheHeadsInBackward) {
  class Sink final : public state::GradientSink<float> {
   public:
    explicit Sink(test::MemoryParameters<float>& source) : source_{source} {}
    std::shared_ptr<device::Event> add(int layer, std::span<float const>) override {
      ++count[layer];
      if (count[layer] == 3) {
        bool const of_mlp = layer % 2 == 0 && layer > 0;  // attention has to be done
        EXPECT_EQ(source_.held(), of_mlp ? 1U : 0U) << "layer " << layer;
        EXPECT_FALSE(source_.holds(layer));
      }
      return nullptr;
    }
    std::map<int, int> count;

   private:
    test::MemoryParameters<float>& source_;
  };
  RunShape const run{.batch = 2, .sequence = 5, .micro_batches = 3};
  test::TestModel<float> setup{GetParam().shape, run};
  Sink sink{setup.parameters};
  auto const batches = some_batches(setup.shape, 3, 3);
  setup.model.forward(batches, 3, setup.parameters);
  EXPECT_TRUE(sink.count.empty());
  (void)setup.model.head(setup.parameters, sink);
  EXPECT_EQ(sink.count, (std::map<int, int>{{static_cast<int>(setup.layers.size()) - 1, 2}}));
  setup.model.backward_all(setup.parameters, sink);
  EXPECT_EQ(sink.count.size(), setup.layers.size());
}

TEST(Together, OfARankThatIsIdleTakesPartInAll) {
  test::TestModel<float> like{test::tiny_shape(true)};
  RunShape const run{.batch = 2, .sequence = 5, .micro_batches = 1};
  auto const device = device::make_host_device(0);
  Together<float> together{like, run, *device};
  auto const step = together.step({}, 1);
  EXPECT_TRUE(step.losses.empty());
  for (int layer = 0; layer < static_cast<int>(like.layers.size()); ++layer) {
    EXPECT_EQ(step.gradients.at(layer), (std::vector<std::vector<float>>(1))) << layer;
  }
}

TEST(Together, RefusesWhatItWasNotMadeFor) {
  RunShape const run{.batch = 2, .sequence = 5, .micro_batches = 2};
  test::TestModel<float> setup{test::tiny_shape(false), run};
  auto const batches = some_batches(setup.shape, 3, 3);
  EXPECT_THROW(setup.model.forward(batches, 3, setup.parameters), PreconditionError);
  EXPECT_THROW((void)setup.model.forward(batches[0], setup.parameters), PreconditionError);
  test::TestModel<float> other{test::tiny_shape(false)};
  EXPECT_THROW(other.model.forward(batches, 3, other.parameters), PreconditionError);
}

// Between layers a few slabs serve any number of micro-batches that leave.
TEST(Together, TakesDeviceMemoryForAFewTensorsWhereTheyLeave) {
  auto const shape = test::tiny_shape(false);
  test::TestModel<float> like{shape};
  auto const bytes = [&](int count, BlockFates const& fates) {
    RunShape const run{
        .batch = 2, .sequence = 5, .fates = test::all_blocks(shape, fates), .micro_batches = count};
    auto const device = device::make_host_device(0);
    Together<float> const setup{like, run, *device};
    return device->used();
  };
  Bytes const ids = 2 * 5 * (2 * sizeof(std::int32_t) + sizeof(double));
  EXPECT_LE(bytes(90, leaving_block) - bytes(10, leaving_block), 80 * ids + 4 * KiB);
  Bytes const tensors = 4 * 2 * 5 * shape.hidden * static_cast<Bytes>(sizeof(float));
  EXPECT_GE(bytes(90, recomputed_block) - bytes(10, recomputed_block), 80 * tensors);
}

TEST(Together, TakesDeviceMemoryForTensorsThatStayAndLetsTheOthersLeave) {
  auto const shape = test::tiny_shape(true);
  test::TestModel<float> like{shape};
  RunShape run{.batch = 2,
               .sequence = 8,
               .fates = test::all_blocks(shape, leaving_block),
               .micro_batches = 6};
  int const tensors = 6 * static_cast<int>(shape.layers + 2);
  Bytes const tensor = 2 * 8 * shape.hidden * static_cast<Bytes>(sizeof(float));
  Bytes const table = shape.vocab * shape.hidden * static_cast<Bytes>(sizeof(float));
  auto const used = [&] {
    auto const device = device::make_host_device(0);
    Together<float> const setup{like, run, *device};
    return device->used();
  };
  auto const leaving = [&] {
    Bytes bytes = 0;
    for (state::LeavingPart const& part : leaving_parts<float>(shape, run)) {
      bytes += part.bytes;
    }
    return bytes;
  };
  Bytes const before = used();
  EXPECT_EQ(leaving(), tensors * tensor + 6 * table);
  run.staying.tensors = 7;
  EXPECT_EQ(used() - before, 7 * tensor);
  EXPECT_EQ(leaving(), (tensors - 7) * tensor + 6 * table);
  run.staying.tables = true;
  EXPECT_GE(used() - before, 7 * tensor + 4 * table) << "two are there in any case";
  EXPECT_EQ(leaving(), (tensors - 7) * tensor);
  run.staying.tensors = tensors - 6;
  EXPECT_EQ(leaving(), 0) << "the others have as many slabs as they are";
}

// Extents of activations have the room of the largest one each.
TEST(Together, LetsATableLeaveInPiecesNoLargerThanATensor) {
  auto const shape = test::tiny_shape(true);
  RunShape const run{.batch = 2,
                     .sequence = 5,
                     .fates = test::all_blocks(shape, leaving_block),
                     .micro_batches = 4};
  Bytes const tensor = 2 * 5 * shape.hidden * static_cast<Bytes>(sizeof(float));
  Bytes const table = shape.vocab * shape.hidden * static_cast<Bytes>(sizeof(float));
  ASSERT_GT(table, tensor);
  Bytes all = 0;
  int blocks = 0;
  for (state::LeavingPart const& part : leaving_parts<float>(shape, run)) {
    EXPECT_EQ(part.block, blocks++);
    EXPECT_LE(part.bytes, tensor);
    all += part.bytes;
  }
  EXPECT_EQ(all, 4 * ((shape.layers + 2) * tensor + table));
}

// Each micro-batch has a gradient of its own among the tensors that wait.
TEST(Together, HasNoGradientOfTheResidualStreamBesideThoseThatWait) {
  auto const shape = test::tiny_shape(false);
  for (int const count : {0, 1, 3}) {
    RunShape const run{.batch = 2,
                       .sequence = 5,
                       .fates = test::all_blocks(shape, recomputed_block),
                       .micro_batches = count};
    auto const device = device::make_host_device(0);
    Workspace<float> const memory{
        dims_of(shape, run, device->kind()),
        workspace_demand(state::layers_of(shape), shape.tied_head, true, ring_of(shape, run),
                         vertical_plan(shape, run).demand()),
        *device};
    EXPECT_EQ(std::ssize(memory.dx), count > 0 ? 0 : 2 * 5 * shape.hidden);
  }
}

}  // namespace
}  // namespace offstage::model
