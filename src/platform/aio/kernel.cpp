#include "platform/aio/kernel.hpp"

#include <libaio.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace offstage::aio {
namespace {

class LibaioKernel final : public Kernel {
 public:
  int setup(int depth, Context& context) override {
    io_context_t made{};
    int const status = io_setup(depth, &made);
    context = made;
    return status;
  }

  int submit(Context context, Transfer const& transfer) override {
    iocb block;  // the kernel copies it before io_submit returns
    iocb* list = &block;
    auto const length = static_cast<std::size_t>(transfer.length);
    if (transfer.direction == Direction::read) {
      io_prep_pread(&block, transfer.descriptor, transfer.memory, length, transfer.offset);
    } else {
      io_prep_pwrite(&block, transfer.descriptor, transfer.memory, length, transfer.offset);
    }
    block.data = reinterpret_cast<void*>(static_cast<std::intptr_t>(transfer.tag));
    int const started = io_submit(static_cast<io_context_t>(context), 1, &list);
    if (started == 0) {
      return -EAGAIN;
    }
    return std::min(started, 0);
  }

  int get_events(Context context, std::span<Completion> completions) override {
    std::array<io_event, 16> events{};
    auto const most = static_cast<long>(std::min(events.size(), completions.size()));
    int const count =
        io_getevents(static_cast<io_context_t>(context), 1, most, events.data(), nullptr);
    for (int i = 0; i < count; ++i) {
      io_event const& event = events[static_cast<std::size_t>(i)];
      completions[static_cast<std::size_t>(i)] = {
          static_cast<int>(reinterpret_cast<std::intptr_t>(event.data)),
          static_cast<Bytes>(event.res)};
    }
    return count;
  }

  void destroy(Context context) noexcept override {
    io_destroy(static_cast<io_context_t>(context));
  }
};

}  // namespace

std::shared_ptr<Kernel> libaio_kernel() {
  return std::make_shared<LibaioKernel>();
}

}  // namespace offstage::aio
