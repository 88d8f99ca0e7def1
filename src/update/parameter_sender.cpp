#include "update/parameter_sender.hpp"

#include "base/error.hpp"
#include "base/watch.hpp"
#include "update/subgroup_step.hpp"

namespace offstage::update {

ParameterSender::ParameterSender(device::Device& device, int buffers, Bytes buffer_bytes,
                                 LaneFigures& figures)
    : buffer_bytes_{buffer_bytes},
      figures_{figures},
      memory_{buffers * buffer_bytes},
      pinned_{device.pin(memory_.bytes())},
      stream_{device.make_stream("parameters")} {
  for (int i = 0; i < buffers; ++i) {
    buffers_.push_back({memory_.bytes().subspan(static_cast<std::size_t>(i * buffer_bytes),
                                                static_cast<std::size_t>(buffer_bytes)),
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
  Buffer& buffer = buffers_[next_];
  empty(buffer);
  return std::visit(
      [&]<class W>(std::span<W> all) -> kernels::WorkingCopyView {
        buffer.bytes = count * static_cast<Bytes>(sizeof(W));
        require(begin >= 0 && count >= 0 && begin + count <= std::ssize(all) &&
                    buffer.bytes <= buffer_bytes_,
                "DeviceLane::staging: not a chunk of the working copy");
        target_ = reinterpret_cast<std::byte*>(all.data() + begin);
        return std::span{reinterpret_cast<W*>(buffer.memory.data()),
                         static_cast<std::size_t>(count)};
      },
      target);
}

std::shared_ptr<device::Event> ParameterSender::send() {
  std::scoped_lock const lock{mutex_};
  require(target_ != nullptr, "DeviceLane::send: nothing was staged");
  Buffer& buffer = buffers_[next_];
  buffer.sent.begin = stream_->record();
  stream_->copy(target_, buffer.memory.data(), buffer.bytes, device::Copy::host_to_device);
  buffer.sent.end = stream_->record();
  target_ = nullptr;
  next_ = (next_ + 1) % buffers_.size();
  return buffer.sent.end;
}

void ParameterSender::empty(Buffer& buffer) {
  if (buffer.sent.end) {
    Waiting const waiting{"new parameters to be sent"};
    buffer.sent.end->wait();
    figures_.add(LaneFigures::Row::parameters, buffer.sent, buffer.bytes);
    buffer.sent = {};
  }
}

void ParameterSender::count() {
  std::scoped_lock const lock{mutex_};
  for (Buffer& buffer : buffers_) {
    empty(buffer);
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
