#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "parameters/working_parameters.hpp"
#include "state/exchange.hpp"

namespace offstage::train {

/// A working copy that calls a function before each acquire of a layer.
template <class T>
class CallingSource final : public state::ParameterSource<T> {
 public:
  /// `call` and `copy` must outlive this object. `call` may be empty.
  CallingSource(std::function<void()> const& call, parameters::WorkingParameters<T>& copy)
      : call_{call}, copy_{copy} {}

  [[nodiscard]] std::span<T const> acquire(int layer) override {
    if (call_) {
      call_();
    }
    return copy_.acquire(layer);
  }
  void release(int layer, std::shared_ptr<device::Event> done) override {
    copy_.release(layer, std::move(done));
  }

 private:
  std::function<void()> const& call_;
  parameters::WorkingParameters<T>& copy_;
};

}  // namespace offstage::train
