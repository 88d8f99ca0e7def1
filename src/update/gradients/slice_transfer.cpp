#include "update/gradients/slice_transfer.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/watch.hpp"

namespace offstage::update {

SliceTransfer::SliceTransfer(device::Device& device, device::Stream& model, state::RankLink& link,
                             Bytes most_received, trace::Trace* trace,
                             device::MemoryCounter* memory)
    : model_{model},
      link_{link},
      trace_{trace},
      memory_{memory},
      received_{device.allocate(most_received, "slices of a layer's gradient from the ranks")},
      staging_{buffers, most_received, &device},
      stream_{device.make_stream("gradients to host")} {
  require(link.route() == state::Route::direct, "SliceTransfer: the link takes no device memory");
}

void SliceTransfer::begin(int layer, std::span<std::byte const> gradient,
                          std::span<Slice const> send_parts, std::span<Slice const> receive_parts) {
  require(begun_ == nullptr, "SliceTransfer: finish comes first");
  layer_ = layer;
  gradient_ = gradient;
  send_parts_.assign(send_parts.begin(), send_parts.end());
  receive_parts_.assign(receive_parts.begin(), receive_parts.end());
  bytes_ = 0;
  for (Slice const& part : receive_parts) {
    bytes_ = std::max(bytes_, part.size > 0 ? part.offset + part.size : 0);
  }
  require(bytes_ <= received_.size(), "SliceTransfer: slices that are larger than told");
  taken_ = device::MemoryCounter::Clock::now();
  stream_->wait(*model_.record());
  begun_ = stream_->record();
}

std::span<std::byte const> SliceTransfer::exchange() {
  require(begun_ != nullptr && !exchanged_, "SliceTransfer: begin comes first");
  Waiting const waiting{"the ranks' slices of the gradient of layer", layer_};
  auto const received = received_.as<std::byte>();
  link_.all_to_all(*stream_, gradient_, send_parts_, received, receive_parts_);
  exchanged_ = true;
  return received.first(static_cast<std::size_t>(bytes_));
}

GradientArrival SliceTransfer::finish(std::span<Slice const> parts) {
  require(std::exchange(exchanged_, false), "SliceTransfer: exchange comes first");
  auto staging = staging_.take();
  GradientArrival::Way way{.begun = std::exchange(begun_, nullptr),
                           .trace = trace_,
                           .memory = memory_,
                           .taken_bytes = bytes_,
                           .taken = taken_};
  for (Slice const& part : parts) {
    stream_->copy(staging.memory().data() + part.offset,
                  received_.as<std::byte>().data() + part.offset, part.size,
                  device::Copy::device_to_host);
    way.moved += part.size;
  }
  way.arrived = stream_->record();
  return {layer_, std::move(staging), bytes_, std::move(way)};
}

}  // namespace offstage::update
