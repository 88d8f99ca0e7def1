#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "base/error.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "probe/measure.hpp"
#include "probe/median.hpp"

namespace offstage::probe {
namespace {

/// What the update moves at a time: a third of a chunk's state.
constexpr Bytes piece_bytes = 16 * MiB;
/// A direction that is faster than that against the other one runs dry in the end.
constexpr double most_beside = 16.0;

/// A word of the pattern: no two blocks of memory are alike.
std::uint64_t word_at(std::size_t index) {
  std::uint64_t const mixed = (index + 1) * 0x9E3779B97F4A7C15U;
  return mixed ^ (mixed >> 29U);
}

/// One way over the link, in pieces.
struct Way {
  device::Stream& stream;
  std::byte* target;
  std::byte const* source;
  Bytes size;
  device::Copy direction;

  void queue(Bytes bytes) const {
    for (Bytes begin = 0; begin < bytes; begin += piece_bytes) {
      stream.copy(target + begin, source + begin, std::min(piece_bytes, bytes - begin), direction);
    }
  }
  /// Timed from the end of a first piece to that of the last: what starts a stream does not count.
  [[nodiscard]] Seconds run(int passes) const {
    queue(std::min(piece_bytes, size));
    auto const begin = stream.record();
    for (int i = 0; i < passes; ++i) {
      queue(size);
    }
    auto const end = stream.record();
    return end->when() - begin->when();
  }
  /// While `other` has work for longer.
  [[nodiscard]] Seconds run_beside(Way const& other, int passes, int other_passes) const {
    for (int i = 0; i < other_passes; ++i) {
      other.queue(other.size);
    }
    Seconds const taken = run(passes);
    other.stream.synchronize();
    return taken;
  }
};

class Link {
 public:
  Link(device::Device& device, Bytes size)
      : device_{device},
        size_{size},
        sent_{size},
        received_{size},
        target_{device.allocate(size, "the measuring of the link to the device")},
        source_{device.allocate(size, "the measuring of the link from the device")},
        in_{device.make_stream("probe-in")},
        out_{device.make_stream("probe-out")} {
    auto const words = sent_.as<std::uint64_t>();
    for (std::size_t i = 0; i < words.size(); ++i) {
      words[i] = word_at(i);
    }
  }

  [[nodiscard]] LinkRates measure(Effort const& effort) {
    LinkRates rates;
    // Before the memory is pinned. The way back brings what the way there has brought.
    rates.to_device_pageable = rate(to(source_), effort);
    rates.to_host_pageable = rate(from(source_), effort);
    verify("from pageable memory");
    auto const pinned_sent = device_.pin(sent_.bytes());
    auto const pinned_received = device_.pin(received_.bytes());
    forget();
    rates.to_device = rate(to(source_), effort);
    rates.to_host = rate(from(source_), effort);
    verify("from pinned memory");
    forget();
    measure_both(effort, rates);
    verify("both ways at once");
    static_cast<void>(from(target_).run(1));
    verify("both ways at once");
    return rates;
  }

  [[nodiscard]] LinkRates measure_both(Effort const& effort) {
    auto const pinned_sent = device_.pin(sent_.bytes());
    auto const pinned_received = device_.pin(received_.bytes());
    LinkRates rates;
    rates.to_device = rate(to(target_), effort);
    rates.to_host = rate(from(source_), effort);
    measure_both(effort, rates);
    return rates;
  }

 private:
  [[nodiscard]] double rate(Way const& way, Effort const& effort) const {
    return median_rate(effort, static_cast<double>(size_),
                       [&](int passes) { return way.run(passes); });
  }
  /// Each direction while the other runs, by what they reach alone.
  void measure_both(Effort const& effort, LinkRates& rates) {
    auto const beside = [&](Way const& way, Way const& other, double other_share) {
      double const more = std::ceil(std::clamp(2.0 * other_share, 1.0, most_beside)) + 1.0;
      return median_rate(effort, static_cast<double>(size_), [&](int passes) {
        return way.run_beside(other, passes, static_cast<int>(more) * passes);
      });
    };
    rates.to_device_both = beside(to(target_), from(source_), rates.to_host / rates.to_device);
    rates.to_host_both = beside(from(source_), to(target_), rates.to_device / rates.to_host);
  }

  [[nodiscard]] Way to(device::Buffer const& buffer) {
    return {*in_, buffer.as<std::byte>().data(), sent_.bytes().data(), size_,
            device::Copy::host_to_device};
  }
  [[nodiscard]] Way from(device::Buffer const& buffer) {
    return {*out_, received_.bytes().data(), buffer.as<std::byte>().data(), size_,
            device::Copy::device_to_host};
  }
  void forget() { std::ranges::fill(received_.bytes(), std::byte{}); }

  void verify(char const* how) const {
    auto const sent = sent_.bytes();
    auto const received = received_.bytes();
    if (std::memcmp(sent.data(), received.data(), sent.size()) == 0) {
      return;
    }
    auto const at = std::ranges::mismatch(sent, received).in1 - sent.begin();
    throw IoError{fmt::format(
        "device {}: moved {}, what came back is not what was sent, first at byte {} of {}: link, "
        "driver or memory is faulty",
        device_.name(), how, at, size_)};
  }

  device::Device& device_;
  Bytes size_;
  memory::HugeBuffer sent_, received_;
  device::Buffer target_, source_;
  std::unique_ptr<device::Stream> in_, out_;
};

}  // namespace

namespace {

Link open_link(device::Device& device, Effort const& effort) {
  Bytes const most = (device.capacity() - device.used()) / 4;
  Bytes const size = std::min(effort.bytes, most) / KiB * KiB;
  return Link{device, std::max(KiB, size)};
}

}  // namespace

LinkRates measure_link(device::Device& device, Effort const& effort) {
  return open_link(device, effort).measure(effort);
}

LinkRates measure_link_both(device::Device& device, Effort const& effort) {
  return open_link(device, effort).measure_both(effort);
}

}  // namespace offstage::probe
