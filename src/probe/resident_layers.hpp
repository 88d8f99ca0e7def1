#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <vector>

#include "base/dtype.hpp"
#include "base/units.hpp"
#include "device/device.hpp"
#include "state/exchange.hpp"
#include "state/initialize.hpp"
#include "state/model_shape.hpp"

namespace offstage::probe {

/// All layers of a model on a device, for passes that are measured without a trainer. The numbers
/// are those of a run's start with seed 1.
template <class T>
class ResidentLayers final : public state::ParameterSource<T> {
 public:
  /// Errors: UsageError: the device has too little memory.
  ResidentLayers(state::ModelShape const& shape, device::Device& device, device::Stream& stream) {
    for (state::LayerLayout const& layer : state::layers_of(shape)) {
      std::vector<float> values(static_cast<std::size_t>(layer.padded_elements()));
      state::initialize(layer, 1, {0, layer.chunks()}, values);
      std::vector<T> rounded;
      rounded.reserve(values.size());
      std::ranges::transform(values, std::back_inserter(rounded),
                             [](float value) { return store<T>(value); });
      auto const bytes = static_cast<Bytes>(rounded.size() * sizeof(T));
      auto& there = layers_.emplace_back(device.allocate(bytes, "the model's parameters"));
      stream.copy(there.template as<T>().data(), rounded.data(), bytes,
                  device::Copy::host_to_device);
      stream.synchronize();
      count_ += layer.elements;
    }
  }
  std::span<T const> acquire(int layer) override {
    return layers_[static_cast<std::size_t>(layer)].template as<T const>();
  }
  void release(int /*layer*/, std::shared_ptr<device::Event> /*done*/) override {}
  /// Parameters of all layers, without padding.
  [[nodiscard]] std::int64_t count() const noexcept { return count_; }

 private:
  std::vector<device::Buffer> layers_;
  std::int64_t count_{};
};

/// Gradients that go nowhere.
template <class T>
class NoGradients final : public state::GradientSink<T> {
 public:
  std::shared_ptr<device::Event> add(int /*layer*/, std::span<T const> /*gradient*/) override {
    return nullptr;
  }
};

}  // namespace offstage::probe
