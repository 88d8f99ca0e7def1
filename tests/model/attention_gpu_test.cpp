#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/dtype.hpp"
#include "device/device.hpp"
#include "kernels/pretended_attention.hpp"
#include "model/model_fixture.hpp"
#include "model/transformer.hpp"
#include "platform/cuda/gpus.hpp"
#include "probe/resident_layers.hpp"
#include "state/exchange.hpp"
#include "state/model_shape.hpp"

namespace offstage::model::test {
namespace {

/// Keeps what the model sends, on the host.
class HostGradients final : public state::GradientSink<bfloat16> {
 public:
  explicit HostGradients(device::Stream& stream) : stream_{stream} {}
  std::shared_ptr<device::Event> add(int layer, std::span<bfloat16 const> gradient) override {
    auto& values = layers[layer];
    values.resize(gradient.size());
    stream_.copy(values.data(), gradient.data(), static_cast<Bytes>(gradient.size_bytes()),
                 device::Copy::device_to_host);
    stream_.synchronize();
    return nullptr;
  }
  std::map<int, std::vector<bfloat16>> layers;

 private:
  device::Stream& stream_;
};

struct Step {
  double loss{};
  std::map<int, std::vector<bfloat16>> gradients;
  Bytes used{};
};

Step step(RunShape const& run) {
  auto shape = tiny_shape(false);
  shape.hidden = 32;  // heads of 8
  shape.ffn_hidden = 48;
  shape.vocab = 64;
  auto const device = device::make_cuda_device(0, 0);
  auto const stream = device->make_calling_stream("model");
  probe::ResidentLayers<bfloat16> parameters{shape, *device, *stream};
  HostGradients gradients{*stream};
  Bytes const before = device->used();
  Transformer<bfloat16> model{shape, run, *device, *stream};
  Step result;
  result.used = device->used() - before;
  result.loss = model.forward(random_batch(run.batch, run.sequence, shape.vocab, 1), parameters);
  model.backward(parameters, gradients);
  result.gradients = gradients.layers;
  return result;
}

TEST(TransformerOnGpu, HasItsAttentionComputedByThePlansThatItIsGiven) {
  if (offstage::cuda::find_gpus().count == 0) {
    GTEST_SKIP() << "no GPU: not run";
  }
  for (auto const& fates : {kept_block, recomputed_block}) {
    RunShape run{.batch = 2, .sequence = 11, .fates = {fates, fates}};
    auto const own = step(run);
    kernels::PretendedAttention pretended{{run.batch, run.sequence, 4, 2, 8}};
    run.attention = &pretended;
    run.attention_workspace = pretended.workspace();
    auto const planned = step(run);
    EXPECT_EQ(pretended.backwards, 2);
    EXPECT_EQ(pretended.forwards, fates == recomputed_block ? 3 : 2) << "the last block's is there";
    EXPECT_EQ(planned.loss, own.loss);
    EXPECT_TRUE(planned.gradients == own.gradients);
    EXPECT_GE(planned.used, own.used);
  }
}

}  // namespace
}  // namespace offstage::model::test
