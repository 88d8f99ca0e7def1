#include "activations/host_activations.hpp"

#include <algorithm>

#include "activations/parts.hpp"
#include "base/error.hpp"

namespace offstage::activations {
namespace {

constexpr char const* out_row = "activations out";
constexpr char const* back_row = "activations back";

}  // namespace

Bytes HostActivations::host_bytes(std::span<state::LeavingPart const> parts) {
  Bytes bytes = 0;
  for (state::LeavingPart const& part : parts) {
    bytes += round_up(part.bytes, part_alignment);
  }
  return bytes;
}

HostActivations::HostActivations(std::span<state::LeavingPart const> parts, device::Device& device,
                                 trace::Trace* trace)
    : trace_{trace},
      memory_{host_bytes(parts)},
      pinned_{device.pin(memory_.bytes())},
      out_{device.make_stream(out_row)},
      back_{device.make_stream(back_row)} {
  Bytes offset = 0;
  for (state::LeavingPart const& part : parts) {
    places_[{part.block, part.part}].memory = memory_.bytes().subspan(
        static_cast<std::size_t>(offset), static_cast<std::size_t>(part.bytes));
    offset += round_up(part.bytes, part_alignment);
  }
}

HostActivations::~HostActivations() {
  for (auto* const stream : {out_.get(), back_.get()}) {
    try {
      stream->synchronize();
    } catch (...) {  // whoever waited for the point has heard of it
    }
  }
  try {
    tell_of_copies();
  } catch (...) {  // those of a run that failed are missing from the picture
  }
}

void HostActivations::open() {
  tell_of_copies();
  for (auto& [key, place] : places_) {
    place.there = nullptr;
  }
}

HostActivations::Place& HostActivations::place(int block, int part, std::size_t bytes) {
  auto const found = places_.find({block, part});
  require(found != places_.end() && found->second.memory.size() == bytes,
          "HostActivations: a part that is not one of those that leave");
  return found->second;
}

std::shared_ptr<device::Event> HostActivations::put(int block, int part,
                                                    std::span<std::byte const> memory,
                                                    std::shared_ptr<device::Event> const& made) {
  Place& to = place(block, part, memory.size());
  state::queue_behind(*out_, *made);
  to.there = copy(*out_, to.memory.data(), memory.data(),
                  {out_row, block, static_cast<Bytes>(memory.size()), {}, {}},
                  device::Copy::device_to_host);
  traffic_.out += static_cast<Bytes>(memory.size());
  return to.there;
}

std::shared_ptr<device::Event> HostActivations::take(int block, int part,
                                                     std::span<std::byte> memory,
                                                     std::shared_ptr<device::Event> const& freed) {
  Place& from = place(block, part, memory.size());
  require(from.there != nullptr, "HostActivations: what was not put cannot be taken");
  state::queue_behind(*back_, *from.there);
  state::queue_behind(*back_, *freed);
  traffic_.back += static_cast<Bytes>(memory.size());
  return copy(*back_, memory.data(), from.memory.data(),
              {back_row, block, static_cast<Bytes>(memory.size()), {}, {}},
              device::Copy::host_to_device);
}

std::shared_ptr<device::Event> HostActivations::copy(device::Stream& stream, std::byte* target,
                                                     std::byte const* source, TracedCopy copy,
                                                     device::Copy direction) {
  if (trace_ != nullptr) {
    copy.begin = stream.record();
  }
  for (Bytes done = 0; done < copy.bytes; done += most_at_a_time) {
    stream.copy(target + done, source + done, std::min(most_at_a_time, copy.bytes - done),
                direction);
  }
  copy.end = stream.record();
  auto end = copy.end;
  if (trace_ != nullptr) {
    copies_.push_back(std::move(copy));
  }
  return end;
}

void HostActivations::tell_of_copies() {
  for (TracedCopy const& copy : std::exchange(copies_, {})) {
    trace_->span(copy.row, "block", copy.begin->when(), copy.end->when(), copy.block, copy.bytes);
  }
}

}  // namespace offstage::activations
