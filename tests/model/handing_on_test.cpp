#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "device/shuffled_device.hpp"
#include "model/model_fixture.hpp"

namespace offstage::model::test {
namespace {

/// Brings layers by a stream of its own, and poisons them as soon as they are done with.
class PoisonedParameters final : public state::ParameterSource<double> {
 public:
  PoisonedParameters(TestModel<double> const& model, device::Device& device, device::Stream& stream)
      : model_{model}, stream_{stream}, own_{device.make_stream("parameters")} {
    std::int64_t largest = 0;
    for (auto const& layer : model.layers) {
      largest = std::max(largest, layer.padded_elements());
    }
    for (Slot& slot : slots_) {
      slot.memory.resize(static_cast<std::size_t>(largest));
    }
  }
  ~PoisonedParameters() override { own_->synchronize(); }
  PoisonedParameters(PoisonedParameters const&) = delete;
  PoisonedParameters& operator=(PoisonedParameters const&) = delete;

  [[nodiscard]] std::span<double const> acquire(int layer) override {
    auto const slot = std::ranges::find_if(slots_, [](Slot const& each) { return each.layer < 0; });
    require(slot != slots_.end(), "more layers are held than a source has to give");
    slot->layer = layer;
    auto const& values = model_.parameters.values[static_cast<std::size_t>(layer)];
    own_->copy(slot->memory.data(), values.data(),
               static_cast<Bytes>(values.size() * sizeof(double)), device::Copy::host_to_device);
    stream_.wait(*own_->record());
    ++acquired;
    return std::span{slot->memory}.first(
        static_cast<std::size_t>(model_.layers[static_cast<std::size_t>(layer)].padded_elements()));
  }
  void release(int layer, std::shared_ptr<device::Event> done) override {
    auto const slot =
        std::ranges::find_if(slots_, [&](Slot const& each) { return each.layer == layer; });
    slot->layer = -1;
    if (done) {
      own_->wait(*done);
    }
    own_->enqueue([memory = std::span{slot->memory}] {
      std::ranges::fill(memory, std::numeric_limits<double>::quiet_NaN());
    });
  }

  std::atomic<int> acquired = 0;

 private:
  struct Slot {
    int layer = -1;
    std::vector<double> memory;
  };
  TestModel<double> const& model_;
  device::Stream& stream_;
  std::array<Slot, 2> slots_;
  std::unique_ptr<device::Stream> own_;
};

/// Takes gradients as the model's stream leaves them, by a stream of its own, as late as it may.
class QueuedGradients final : public state::GradientSink<double> {
 public:
  QueuedGradients(device::Device& device, device::Stream& stream)
      : stream_{stream}, own_{device.make_stream("gradients")} {}
  ~QueuedGradients() override { own_->synchronize(); }
  QueuedGradients(QueuedGradients const&) = delete;
  QueuedGradients& operator=(QueuedGradients const&) = delete;

  std::shared_ptr<device::Event> add(int layer, std::span<double const> gradient) override {
    auto& to = values[layer];
    to.resize(gradient.size());
    own_->wait(*stream_.record());
    own_->copy(to.data(), gradient.data(), static_cast<Bytes>(gradient.size_bytes()),
               device::Copy::device_to_host);
    auto before = std::exchange(last_, own_->record());
    ++added;
    if (layer > 0) {
      return before;
    }
    own_->synchronize();
    last_ = nullptr;
    return nullptr;
  }

  std::map<int, std::vector<double>> values;
  std::atomic<int> added = 0;

 private:
  device::Stream& stream_;
  std::unique_ptr<device::Stream> own_;
  std::shared_ptr<device::Event> last_;  ///< the point when the layer before had been copied
};

/// A model whose stream has a thread, as a GPU's goes on by itself, and is late at random.
struct SlowModel {
  SlowModel(TestModel<double> const& like, RunShape const& run, std::uint64_t seed)
      : device{seed},
        stream{device.make_stream("model")},
        parameters{like, device, *stream},
        gradients{device, *stream},
        model{like.shape, run, device, *stream} {}

  device::ShuffledDevice device;
  std::unique_ptr<device::Stream> stream;
  PoisonedParameters parameters;
  QueuedGradients gradients;
  Transformer<double> model;
};

class HandsOn : public testing::TestWithParam<NamedShape> {};
INSTANTIATE_TEST_SUITE_P(AllShapes, HandsOn, testing::ValuesIn(all_tiny_shapes()), name_of);

TEST_P(HandsOn, LayersThatMayGoWhenTheirWorkIsDoneThoughItIsStillToCome) {
  for (auto const& fates : {kept_block, recomputed_block}) {
    RunShape const run{.batch = 2,
                       .sequence = 5,
                       .fates = all_blocks(GetParam().shape, fates),
                       .attention_buffer = fates == recomputed_block};
    TestModel<double> expected{GetParam().shape, run};
    auto const batch = random_batch(2, 5, expected.shape.vocab, 3);
    double const loss = expected.step(batch);
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      SlowModel slow{expected, run, seed};
      EXPECT_EQ(slow.model.evaluate(batch, slow.parameters), loss);
      EXPECT_EQ(slow.model.forward(batch, slow.parameters), loss);
      slow.model.backward(slow.parameters, slow.gradients);
      EXPECT_EQ(slow.gradients.values, expected.gradients.values) << "seed " << seed;
    }
  }
}

/// Runs `call` while the stream is held up, until `count` is `wanted`.
template <class Call>
void expect_to_get_ahead(device::Stream& stream, std::atomic<int> const& count, int wanted,
                         Call const& call) {
  using namespace std::chrono_literals;
  std::promise<void> sign;
  stream.enqueue([go_on = sign.get_future().share()] { go_on.wait(); });
  auto called = std::async(std::launch::async, call);
  for (int i = 0; i < 6000 && count < wanted; ++i) {
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(count, wanted);
  EXPECT_EQ(called.wait_for(20ms), std::future_status::timeout) << "what it needs is not there";
  sign.set_value();
  called.get();
}

TEST_P(HandsOn, AllLayersAndGradientsBeforeAnyWorkIsDone) {
  RunShape const run{.batch = 2, .sequence = 5};
  TestModel<double> const like{GetParam().shape, run};
  auto const batch = random_batch(2, 5, like.shape.vocab, 3);
  SlowModel slow{like, run, 1};
  auto const layers = static_cast<int>(like.layers.size());
  expect_to_get_ahead(*slow.stream, slow.parameters.acquired,
                      layers + (like.shape.tied_head ? 1 : 0),
                      [&] { (void)slow.model.forward(batch, slow.parameters); });
  expect_to_get_ahead(*slow.stream, slow.gradients.added, layers,
                      [&] { slow.model.backward(slow.parameters, slow.gradients); });
}

/// On a device that queues the model's work.
constexpr device::Emulation queued{.compute = 1e15};

template <class T>
void expect_the_same_bits_of_queued_work(state::ModelShape const& shape) {
  for (auto const& fates : {kept_block, recomputed_block}) {
    RunShape const run{.batch = 2, .sequence = 9, .fates = all_blocks(shape, fates)};
    TestModel<T> at_once{shape, run};
    TestModel<T> later{shape, run, 0.3, 1, queued};
    auto const batch = random_batch(2, 9, shape.vocab, 3);
    for (int step = 0; step < 2; ++step) {
      EXPECT_EQ(later.model.evaluate(batch, later.parameters),
                at_once.model.evaluate(batch, at_once.parameters));
      EXPECT_EQ(later.step(batch), at_once.step(batch));
      EXPECT_EQ(later.gradients.values, at_once.gradients.values);
    }
    std::vector<Real<T>> one(static_cast<std::size_t>(shape.vocab));
    std::vector<Real<T>> other(one.size());
    at_once.model.logits(batch, at_once.parameters, 7, one);
    later.model.logits(batch, later.parameters, 7, other);
    EXPECT_EQ(one, other);
  }
}

TEST_P(HandsOn, WorkThatIsQueuedWithTheSameBits) {
  expect_the_same_bits_of_queued_work<float>(GetParam().shape);
  expect_the_same_bits_of_queued_work<bfloat16>(GetParam().shape);
  expect_the_same_bits_of_queued_work<float16>(GetParam().shape);
}

/// Has no layer from the n-th on.
class FailingParameters final : public state::ParameterSource<float> {
 public:
  FailingParameters(state::ParameterSource<float>& rest, int left) : rest_{rest}, left_{left} {}
  [[nodiscard]] std::span<float const> acquire(int layer) override {
    if (left_-- == 0) {
      throw IoError{"the layer is lost"};
    }
    return rest_.acquire(layer);
  }
  // The source waits for the point, and the stream is held up.
  void release(int /*layer*/, std::shared_ptr<device::Event> /*done*/) override {}

 private:
  state::ParameterSource<float>& rest_;
  int left_;
};

TEST(Transformer, EndsWhenWhatAFailedCallHasQueuedIsOver) {
  auto const shape = tiny_shape(false);
  TestModel<float> source{shape};
  auto const device = device::make_host_device(0, queued);
  auto const stream = device->make_calling_stream("model");
  std::optional<Transformer<float>> model;
  model.emplace(shape, RunShape{.batch = 2, .sequence = 5}, *device, *stream);
  std::promise<void> sign;
  stream->enqueue([go_on = sign.get_future().share()] { go_on.wait(); });
  FailingParameters parameters{source.parameters, 2};
  {
    auto const batch = random_batch(2, 5, shape.vocab, 3);  // gone before it is copied
    EXPECT_THROW((void)model->forward(batch, parameters), IoError);
  }
  std::atomic<bool> over = false;
  stream->enqueue([&] { over = true; });
  auto const end = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    sign.set_value();
  });
  model.reset();
  EXPECT_TRUE(over);
}

TEST(MicroBatch, WithIdsOutsideTheVocabularyIsRefused) {
  TestModel<float> setup{tiny_shape(false)};
  auto const good = random_batch(2, 5, setup.shape.vocab, 3);
  auto const vocab = static_cast<std::int32_t>(setup.shape.vocab);
  for (std::int32_t const id : {vocab, -1, -2}) {
    auto tokens = good;
    tokens.tokens[7] = id;
    EXPECT_THROW((void)setup.model.forward(tokens, setup.parameters), PreconditionError) << id;
    auto targets = good;
    targets.targets[7] = id;
    if (id == data::ignored_target) {
      EXPECT_NO_THROW((void)setup.model.forward(targets, setup.parameters));
    } else {
      EXPECT_THROW((void)setup.model.forward(targets, setup.parameters), PreconditionError) << id;
    }
  }
}

}  // namespace
}  // namespace offstage::model::test
