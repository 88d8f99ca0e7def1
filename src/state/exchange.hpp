#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace offstage::state {

/// Gives the model a layer's parameters just before use. T: float, bfloat16, float16,
/// or double in tests.
template <class T>
class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  /// The padded layer in device memory, valid until release(layer). At most two layers are held at
  /// a time (the tied head needs the embedding beside the last layer).
  /// Collective: all ranks acquire the same layers in the same order.
  [[nodiscard]] virtual std::span<T const> acquire(int layer) = 0;
  virtual void release(int layer) = 0;
};

/// Holds a layer's parameters for a scope.
template <class T>
class HeldLayer {
 public:
  HeldLayer(ParameterSource<T>& source, int layer)
      : source_{source}, layer_{layer}, parameters_{source.acquire(layer)} {}
  ~HeldLayer() { source_.release(layer_); }
  HeldLayer(HeldLayer const&) = delete;
  HeldLayer& operator=(HeldLayer const&) = delete;

  /// One tensor of the layer, `elements` from `offset` on.
  [[nodiscard]] std::span<T const> tensor(std::int64_t offset, std::int64_t elements) const {
    return parameters_.subspan(static_cast<std::size_t>(offset),
                               static_cast<std::size_t>(elements));
  }

 private:
  ParameterSource<T>& source_;
  int layer_;
  std::span<T const> parameters_;
};

/// Takes a layer's gradient of one micro-batch from the model.
template <class T>
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  /// `gradient` is the padded layer in device memory, padding zero; empty on a rank that has no
  /// micro-batch in this round. The memory is free again on return.
  /// Collective: all ranks add the same layers in the same order.
  virtual void add(int layer, std::span<T const> gradient) = 0;
};

}  // namespace offstage::state
