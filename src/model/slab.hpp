#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/units.hpp"
#include "device/device.hpp"

namespace offstage::model {

/// Hands out consecutive, aligned parts of one device buffer. An empty slab gives empty views and
/// only adds up the size, so one layout function both measures and divides.
class Slab {
 public:
  Slab() = default;
  explicit Slab(device::Buffer const& memory) : memory_{memory.as<std::byte>()} {}
  explicit Slab(std::span<std::byte> memory) : memory_{memory} {}

  template <class U>
  [[nodiscard]] std::span<U> take(std::int64_t elements) {
    Bytes const begin = round_up(used_, alignment);
    Bytes const bytes = elements * static_cast<Bytes>(sizeof(U));
    used_ = begin + bytes;
    if (memory_.empty()) {
      return {};
    }
    auto const part =
        memory_.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(bytes));
    return {reinterpret_cast<U*>(part.data()), static_cast<std::size_t>(elements)};
  }
  /// Rounds used() up, so that the next part begins there.
  void align() { used_ = round_up(used_, alignment); }
  /// Memory from `begin` on, an earlier used(): the same memory as other parts', for use at another
  /// time.
  template <class U>
  [[nodiscard]] std::span<U> take_again(Bytes begin, std::int64_t elements) {
    Bytes const end = std::exchange(used_, begin);
    auto const part = take<U>(elements);
    used_ = std::max(used_, end);
    return part;
  }
  /// The same for all parts that `lay_out(*this)` takes.
  template <class LayOut>
  [[nodiscard]] auto again(Bytes begin, LayOut const& lay_out) {
    Bytes const end = std::exchange(used_, begin);
    auto const parts = lay_out(*this);
    used_ = std::max(used_, end);
    return parts;
  }
  [[nodiscard]] Bytes used() const noexcept { return used_; }
  /// Bytes that a part takes of a slab which has more behind it.
  [[nodiscard]] static constexpr Bytes aligned(Bytes part) { return round_up(part, alignment); }

 private:
  static constexpr Bytes alignment = 256;  ///< alignment of cudaMalloc
  std::span<std::byte> memory_;
  Bytes used_{};
};

template <class T>
void zero(device::Stream& stream, std::span<T> memory) {
  stream.zero(memory.data(), static_cast<Bytes>(memory.size_bytes()));
}

}  // namespace offstage::model
