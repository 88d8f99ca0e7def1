#include "update/gradient_transfer.hpp"

#include <utility>

#include "base/error.hpp"
#include "base/watch.hpp"

namespace offstage::update {
namespace {

constexpr char const* row = "gradients to host";

}  // namespace

GradientTransfer::GradientTransfer(device::Device& device, device::Stream& stream, Bytes most_bytes,
                                   trace::Trace* trace, DeviceMemory* memory)
    : model_stream_{stream},
      trace_{trace},
      memory_{memory},
      held_{device.allocate(most_bytes, "a layer's gradient on its way to the host")},
      sent_{most_bytes},
      pinned_{device.pin(sent_.bytes())},
      stream_{device.make_stream(row)} {}

GradientTransfer::~GradientTransfer() {
  if (arrived_) {
    try {
      arrived_->wait();
    } catch (...) {  // nobody will read it
    }
  }
}

void GradientTransfer::begin(int layer, std::span<std::byte const> gradient,
                             std::span<Range const> parts) {
  require(!arrived_, "GradientTransfer: finish comes first");
  layer_ = layer;
  bytes_ = static_cast<Bytes>(gradient.size());
  taken_ = DeviceMemory::Clock::now();
  auto* const held = held_.as<std::byte>().data();
  for (Range const& part : parts) {
    model_stream_.copy(held + part.begin, gradient.data() + part.begin, part.count,
                       device::Copy::device_to_device);
  }
  stream_->wait(*model_stream_.record());
  begun_ = stream_->record();
  moved_ = 0;
  for (Range const& part : parts) {
    stream_->copy(sent_.bytes().data() + part.begin, held + part.begin, part.count,
                  device::Copy::device_to_host);
    moved_ += part.count;
  }
  arrived_ = stream_->record();
}

std::span<std::byte const> GradientTransfer::finish() {
  require(arrived_ != nullptr, "GradientTransfer: begin comes first");
  Waiting const waiting{"the gradient from the device, of layer", layer_};
  auto const arrived = std::exchange(arrived_, nullptr);
  arrived->wait();
  if (trace_ != nullptr) {
    trace_->span(row, "copy", begun_->when(), arrived->when(), layer_, moved_);
  }
  if (memory_ != nullptr) {
    memory_->used(DeviceMemory::User::layer_gradient, moved_, taken_, arrived->when());
  }
  return sent_.bytes().first(static_cast<std::size_t>(bytes_));
}

}  // namespace offstage::update
