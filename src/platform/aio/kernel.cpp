#include "platform/aio/kernel.hpp"

#include <libaio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

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

/// A context is a list of completions that nobody has taken yet.
class SynchronousKernel final : public Kernel {
 public:
  int setup(int depth, Context& context) override {
    auto done = std::make_unique<Done>();
    done->reserve(static_cast<std::size_t>(depth));
    context = done.release();
    return 0;
  }

  int submit(Context context, Transfer const& transfer) override {
    auto const length = static_cast<std::size_t>(transfer.length);
    bool const reads = transfer.direction == Direction::read;
    ssize_t moved{};
    do {
      moved = reads ? pread(transfer.descriptor, transfer.memory, length, transfer.offset)
                    : pwrite(transfer.descriptor, transfer.memory, length, transfer.offset);
    } while (moved < 0 && errno == EINTR);
    static_cast<Done*>(context)->push_back({transfer.tag, moved < 0 ? -Bytes{errno} : moved});
    return 0;
  }

  int get_events(Context context, std::span<Completion> completions) override {
    auto& done = *static_cast<Done*>(context);
    auto const count = std::min(done.size(), completions.size());
    auto const taken = done.begin() + static_cast<std::ptrdiff_t>(count);
    std::copy(done.begin(), taken, completions.begin());
    done.erase(done.begin(), taken);
    return static_cast<int>(count);
  }

  void destroy(Context context) noexcept override { delete static_cast<Done*>(context); }

 private:
  using Done = std::vector<Completion>;
};

}  // namespace

std::shared_ptr<Kernel> libaio_kernel() {
  return std::make_shared<LibaioKernel>();
}

std::shared_ptr<Kernel> synchronous_kernel() {
  return std::make_shared<SynchronousKernel>();
}

}  // namespace offstage::aio
