#include "update/gradients/flusher.hpp"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/chunk.hpp"
#include "base/error.hpp"
#include "base/watch.hpp"
#include "kernels/optimizer/gradient.hpp"

namespace offstage::update {
namespace {

/// What the kernel computes without other threads: the OpenMP team is the model's.
constexpr std::size_t piece_elements = 16 * static_cast<std::size_t>(chunk_elements);

void convert(kernels::GradientView const& view, std::span<float> to) {
  std::visit(
      [&]<class G>(std::span<G const> from) {
        require(from.size() == to.size(), "GradientFlusher: the extents differ in length");
        for (std::size_t begin = 0; begin < from.size(); begin += piece_elements) {
          std::size_t const count = std::min(piece_elements, from.size() - begin);
          kernels::host::accumulate<float, G>(
              {to.subspan(begin, count), from.subspan(begin, count), true});
        }
      },
      view);
}

}  // namespace

GradientFlusher::GradientFlusher(tiers::Tiers* flushed)
    : flushed_{flushed},
      thread_{{"gradients", "gradients to write", "gradients to be written"},
              [this](Item item) { handle(std::move(item)); }} {}

void GradientFlusher::commit(tiers::Lease lease, std::optional<double> squares) {
  thread_.put({.lease = std::move(lease), .view = {}, .squares = squares});
}

void GradientFlusher::flush(tiers::Lease lease, kernels::GradientView view, double squares) {
  require(flushed_ != nullptr, "GradientFlusher: there is nowhere to flush to");
  thread_.put({.lease = std::move(lease), .view = view, .flush = true, .squares = squares});
}

void GradientFlusher::bring(tiers::Lease lease, kernels::GradientView view, HeldGradients& held,
                            double squares) {
  thread_.put({.lease = std::move(lease), .view = view, .held = &held, .squares = squares});
}

void GradientFlusher::handle(Item item) {
  tiers::Key const key = item.lease.key();
  Waiting const waiting{"the write of gradient", key};
  auto const squares = item.squares;
  end(std::move(item));  // its lease ends before anyone hears of it
  if (squares && receiver_ != nullptr) {
    receiver_->complete(key, *squares);
  }
}

void GradientFlusher::end(Item item) {
  if (item.held != nullptr) {
    item.held->bring(item.lease.key(),
                     std::visit([](auto sums) { return std::as_bytes(sums); }, item.view));
    return;
  }
  if (!item.flush) {
    item.lease.commit();
    return;
  }
  tiers::Lease target = flushed_->create(item.lease.key());
  {
    tiers::Lease const source = std::move(item.lease);  // free while the FP32 bytes are written
    auto const bytes = target.mutable_bytes();
    convert(item.view, {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)});
  }
  target.commit();
}

}  // namespace offstage::update
