#include "model/transformer.hpp"

#include <vector>

#include "base/error.hpp"
#include "base/instantiate.hpp"
#include "model/block_traffic.hpp"
#include "model/dims.hpp"
#include "model/horizontal_pass.hpp"
#include "model/layer_work.hpp"
#include "model/vertical_pass.hpp"
#include "model/vertical_plan.hpp"

namespace offstage::model {

/// A model that is made for a vertical schedule evaluates horizontally too.
template <class T>
class Transformer<T>::Implementation {
 public:
  Implementation(state::ModelShape const& shape, RunShape const& run, device::Device& device,
                 device::Stream& stream)
      : is_vertical{run.micro_batches > 0},
        work{shape, run, device, stream},
        horizontal{work, run},
        vertical{work, vertical_plan(shape, run)} {}
  /// Waits for the stream, because work that a failed call left there uses this object's memory.
  ~Implementation() {
    try {
      work.stream().synchronize();
    } catch (...) {  // the failed call has reported the error
    }
  }
  Implementation(Implementation const&) = delete;
  Implementation& operator=(Implementation const&) = delete;

  bool is_vertical;
  LayerWork<T> work;
  Horizontal<T> horizontal;
  Vertical<T> vertical;
};

template <class T>
Transformer<T>::Transformer(state::ModelShape const& shape, RunShape const& run,
                            device::Device& device, device::Stream& stream)
    : implementation_{std::make_unique<Implementation>(shape, run, device, stream)} {}

template <class T>
Transformer<T>::~Transformer() = default;

template <class T>
void Transformer<T>::set_store(state::ActivationStore& store) {
  if (implementation_->is_vertical) {
    implementation_->vertical.set_store(store);
  } else {
    implementation_->horizontal.set_store(store);
  }
}

template <class T>
double Transformer<T>::forward(data::TokenBatch const& batch, state::ParameterSource<T>& source,
                               double loss_scale) {
  require(!implementation_->is_vertical, "Transformer: made for a vertical schedule");
  return implementation_->horizontal.forward(batch, source, true, loss_scale);
}

template <class T>
void Transformer<T>::backward(state::ParameterSource<T>& source, state::GradientSink<T>& sink) {
  implementation_->horizontal.backward(source, sink);
}

template <class T>
double Transformer<T>::evaluate(data::TokenBatch const& batch, state::ParameterSource<T>& source) {
  return implementation_->horizontal.forward(batch, source, false, 1.0);
}

template <class T>
void Transformer<T>::logits(data::TokenBatch const& batch, state::ParameterSource<T>& source,
                            std::int64_t first_row, std::span<Real<T>> out) {
  implementation_->horizontal.logits(batch, source, first_row, out);
}

template <class T>
std::span<std::byte> Transformer<T>::idle_memory() const {
  return implementation_->work.memory().idle_memory();
}

template <class T>
void Transformer<T>::idle_forward(state::ParameterSource<T>& source) {
  implementation_->horizontal.idle_forward(source);
}

template <class T>
void Transformer<T>::idle_backward(state::ParameterSource<T>& source,
                                   state::GradientSink<T>& sink) {
  implementation_->horizontal.idle_backward(source, sink);
}

template <class T>
void Transformer<T>::forward(std::span<data::TokenBatch const> batches, int rounds,
                             state::ParameterSource<T>& source) {
  implementation_->vertical.forward(batches, rounds, source);
}

template <class T>
std::vector<double> Transformer<T>::head(state::ParameterSource<T>& source,
                                         state::GradientSink<T>& sink, double loss_scale) {
  return implementation_->vertical.head(source, sink, loss_scale);
}

template <class T>
void Transformer<T>::backward_all(state::ParameterSource<T>& source, state::GradientSink<T>& sink) {
  implementation_->vertical.backward(source, sink);
}

template <class T>
std::vector<state::LeavingPart> leaving_parts(state::ModelShape const& shape, RunShape const& run) {
  if (run.micro_batches > 0) {
    Dims const dims = dims_of(shape, run);
    return vertical_plan(shape, run)
        .leaving_parts(tensor_bytes(dims, sizeof(T)), table_bytes(dims, sizeof(T)));
  }
  return leaving_parts_of<T>(dims_of(shape, run),
                             BlockRing{static_cast<int>(shape.layers), run.fates, run.slabs});
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, leaving_parts)
OFFSTAGE_INSTANTIATE_CLASS(OFFSTAGE_ALL_TYPES, Transformer)

}  // namespace offstage::model
