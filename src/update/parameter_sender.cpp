#include "update/parameter_sender.hpp"

#include "base/error.hpp"
#include "base/watch.hpp"
#include "update/subgroup_step.hpp"

namespace offstage::update {

ParameterSender::ParameterSender(device::Device& device, int slots, Bytes slot_bytes,
                                 LaneFigures& figures)
    : slot_bytes_{slot_bytes},
      figures_{figures},
      memory_{slots * slot_bytes},
      pinned_{device.pin(memory_.bytes())},
      stream_{device.make_stream("parameters")} {
  for (int i = 0; i < slots; ++i) {
    slots_.push_back({memory_.bytes().subspan(static_cast<std::size_t>(i * slot_bytes),
                                              static_cast<std::size_t>(slot_bytes)),
                      {},
                      0});
  }
}

ParameterSender::~ParameterSender() {
  settle();
}

kernels::WorkingCopyView ParameterSender::staging(kernels::WorkingCopyView const& target,
                                                  std::int64_t begin, std::int64_t count) {
  std::scoped_lock const lock{mutex_};
  Slot& slot = slots_[next_];
  empty(slot);
  return std::visit(
      [&]<class W>(std::span<W> all) -> kernels::WorkingCopyView {
        slot.bytes = count * static_cast<Bytes>(sizeof(W));
        require(begin >= 0 && count >= 0 && begin + count <= std::ssize(all) &&
                    slot.bytes <= slot_bytes_,
                "DeviceLane::staging: not a chunk of the working copy");
        target_ = reinterpret_cast<std::byte*>(all.data() + begin);
        return std::span{reinterpret_cast<W*>(slot.memory.data()), static_cast<std::size_t>(count)};
      },
      target);
}

std::shared_ptr<device::Event> ParameterSender::send() {
  std::scoped_lock const lock{mutex_};
  require(target_ != nullptr, "DeviceLane::send: nothing was staged");
  Slot& slot = slots_[next_];
  slot.sent.begin = stream_->record();
  stream_->copy(target_, slot.memory.data(), slot.bytes, device::Copy::host_to_device);
  slot.sent.end = stream_->record();
  target_ = nullptr;
  next_ = (next_ + 1) % slots_.size();
  return slot.sent.end;
}

void ParameterSender::empty(Slot& slot) {
  if (slot.sent.end) {
    Waiting const waiting{"new parameters to be sent"};
    slot.sent.end->wait();
    figures_.add(LaneFigures::Row::parameters, slot.sent, slot.bytes);
    slot.sent = {};
  }
}

void ParameterSender::count() {
  std::scoped_lock const lock{mutex_};
  for (Slot& slot : slots_) {
    empty(slot);
  }
}

void ParameterSender::settle() noexcept {
  std::scoped_lock const lock{mutex_};
  try {
    stream_->synchronize();
  } catch (...) {  // whoever waits for the event of what failed gets the error
  }
}

}  // namespace offstage::update
