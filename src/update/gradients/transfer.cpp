#include "update/gradients/transfer.hpp"

#include <utility>

namespace offstage::update {

GradientTransfer::GradientTransfer(device::Device& device, device::Stream& stream, Bytes most_bytes,
                                   trace::Trace* trace)
    : model_stream_{stream},
      trace_{trace},
      staging_{buffers, most_bytes, &device},
      stream_{device.make_stream("gradients to host")} {}

GradientArrival GradientTransfer::begin(int layer, std::span<std::byte const> gradient,
                                        std::span<Slice const> parts) {
  auto const ready = model_stream_.record();
  auto staging = staging_.take();
  auto const to = staging.memory();
  stream_->wait(*ready);
  GradientArrival::Way way{.begun = stream_->record(), .trace = trace_};
  for (Slice const& part : parts) {
    stream_->copy(to.data() + part.offset, gradient.data() + part.offset, part.size,
                  device::Copy::device_to_host);
    way.moved += part.size;
  }
  way.arrived = stream_->record();
  return {layer, std::move(staging), static_cast<Bytes>(gradient.size()), std::move(way)};
}

}  // namespace offstage::update
