#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "probe/measure.hpp"
#include "probe/median.hpp"

namespace offstage::probe {
namespace {

/// The byte that fills a rank's part.
std::byte mark_of(int rank) {
  return static_cast<std::byte>(rank % 255 + 1);
}

void copy(device::Stream& stream, std::byte* target, std::byte const* source, Bytes bytes,
          device::Copy direction) {
  stream.copy(target, source, bytes, direction);
  stream.synchronize();
}

}  // namespace

double measure_rank_link(device::Device& device, state::RankLink& link, Effort const& effort) {
  mpi::Communicator const& comm = link.comm();
  Bytes const room = comm.minimum((device.capacity() - device.used()) / 2);
  Bytes const part = std::max<Bytes>(1, std::min(effort.bytes, room) / link.size());
  Bytes const all = part * link.size();
  bool const in_host_memory = link.route() == state::Route::staged;
  memory::HugeBuffer host;
  device::Buffer there;
  std::unique_ptr<device::Stream> stream;
  std::span<std::byte> buffer;
  mpi::agree(comm, [&] {
    stream = device.make_calling_stream("probe-gather");
    host = memory::HugeBuffer{all};
    auto const mine = host.bytes().subspan(static_cast<std::size_t>(link.rank() * part),
                                           static_cast<std::size_t>(part));
    std::ranges::fill(mine, mark_of(link.rank()));
    buffer = host.bytes();
    if (!in_host_memory) {
      there = device.allocate(all, "the measuring of layers between ranks");
      buffer = there.as<std::byte>();
      copy(*stream, buffer.data(), host.bytes().data(), all, device::Copy::host_to_device);
    }
  });
  // The time is the same on all ranks, and so is how often they do it.
  double const rate = median_rate(effort, static_cast<double>(all - part), [&](int passes) {
    comm.barrier();
    Stopwatch const watch;
    for (int i = 0; i < passes; ++i) {
      link.all_gather(*stream, buffer);
    }
    stream->synchronize();
    return Seconds{comm.maximum(watch.elapsed().count())};
  });
  mpi::agree(comm, [&] {
    if (!in_host_memory) {
      copy(*stream, host.bytes().data(), buffer.data(), all, device::Copy::device_to_host);
    }
    for (Bytes at = 0; at < all; ++at) {
      if (host.bytes()[static_cast<std::size_t>(at)] != mark_of(static_cast<int>(at / part))) {
        throw IoError{fmt::format(
            "layers between ranks: what came from rank {} is not what was sent, first at byte {}",
            at / part, at % part)};
      }
    }
  });
  return rate;
}

}  // namespace offstage::probe
