#include "update/slice_transfer.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/watch.hpp"

namespace offstage::update {
namespace {

constexpr char const* row = "gradients to host";

}  // namespace

SliceTransfer::SliceTransfer(device::Device& device, device::Stream& model, state::RankLink& link,
                             Bytes most_sent, Bytes most_received, trace::Trace* trace,
                             DeviceMemory* memory)
    : model_{model},
      link_{link},
      trace_{trace},
      memory_{memory},
      held_{device.allocate(most_sent, "a layer's gradient on its way to the ranks")},
      received_{device.allocate(most_received, "slices of a layer's gradient from the ranks")},
      host_{most_received},
      pinned_{device.pin(host_.bytes())},
      stream_{device.make_stream(row)} {
  require(link.route() == state::Route::direct, "SliceTransfer: the link takes no device memory");
}

void SliceTransfer::begin(int layer, std::span<std::byte const> gradient,
                          std::span<Slice const> send_parts, std::span<Slice const> receive_parts) {
  require(begun_ == nullptr, "SliceTransfer: finish comes first");
  require(static_cast<Bytes>(gradient.size()) <= held_.size(),
          "SliceTransfer: a gradient that is larger than told");
  layer_ = layer;
  send_parts_.assign(send_parts.begin(), send_parts.end());
  receive_parts_.assign(receive_parts.begin(), receive_parts.end());
  bytes_ = 0;
  for (Slice const& part : receive_parts) {
    bytes_ = std::max(bytes_, part.size > 0 ? part.offset + part.size : 0);
  }
  require(bytes_ <= received_.size(), "SliceTransfer: slices that are larger than told");
  taken_ = DeviceMemory::Clock::now();
  model_.copy(held_.as<std::byte>().data(), gradient.data(), static_cast<Bytes>(gradient.size()),
              device::Copy::device_to_device);
  stream_->wait(*model_.record());
  begun_ = stream_->record();
}

std::span<std::byte const> SliceTransfer::exchange() {
  require(begun_ != nullptr && !exchanged_, "SliceTransfer: begin comes first");
  Waiting const waiting{"the ranks' slices of the gradient of layer", layer_};
  auto const received = received_.as<std::byte>();
  link_.all_to_all(*stream_, held_.as<std::byte>(), send_parts_, received, receive_parts_);
  exchanged_ = true;
  return received.first(static_cast<std::size_t>(bytes_));
}

std::span<std::byte const> SliceTransfer::finish(std::span<Range const> parts) {
  require(std::exchange(exchanged_, false), "SliceTransfer: exchange comes first");
  Waiting const waiting{"the ranks' slices of the gradient of layer", layer_};
  Bytes moved = 0;
  for (Range const& part : parts) {
    stream_->copy(host_.bytes().data() + part.begin, received_.as<std::byte>().data() + part.begin,
                  part.count, device::Copy::device_to_host);
    moved += part.count;
  }
  auto const begun = std::exchange(begun_, nullptr);
  auto const arrived = stream_->record();
  arrived->wait();
  if (trace_ != nullptr) {
    trace_->span(row, "copy", begun->when(), arrived->when(), layer_, moved);
  }
  if (memory_ != nullptr) {
    memory_->used(DeviceMemory::User::layer_gradient, held_.size() + bytes_, taken_,
                  arrived->when());
  }
  return host_.bytes().first(static_cast<std::size_t>(bytes_));
}

}  // namespace offstage::update
