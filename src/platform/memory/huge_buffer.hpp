#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "base/units.hpp"

namespace offstage::memory {

/// Owns page-aligned, zeroed memory backed by transparent huge pages where the kernel has them
/// (scattered 4 KiB pages halve the rate of O_DIRECT transfers). Every page is touched at
/// construction: later use runs at full speed and cannot fail for want of memory.
///
/// Memory: host; the size rounded up to a multiple of 4 KiB; aligned to 2 MiB if it is at least
///         that.
/// Errors: Error (1) naming the size if the memory is not to be had.
class HugeBuffer {
 public:
  HugeBuffer() noexcept = default;
  explicit HugeBuffer(Bytes size);
  ~HugeBuffer() { reset(); }

  HugeBuffer(HugeBuffer const&) = delete;
  HugeBuffer& operator=(HugeBuffer const&) = delete;
  HugeBuffer(HugeBuffer&& other) noexcept
      : data_{std::exchange(other.data_, nullptr)},
        size_{std::exchange(other.size_, 0)},
        mapped_{std::exchange(other.mapped_, 0)} {}
  HugeBuffer& operator=(HugeBuffer&& other) noexcept {
    HugeBuffer taken{std::move(other)};
    std::swap(data_, taken.data_);
    std::swap(size_, taken.size_);
    std::swap(mapped_, taken.mapped_);
    return *this;
  }

  /// The bytes asked for.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept {
    return {data_, static_cast<std::size_t>(size_)};
  }
  /// The bytes as elements; size() / sizeof(T) of them.
  template <class T>
  [[nodiscard]] std::span<T> as() const noexcept {
    return {reinterpret_cast<T*>(data_), static_cast<std::size_t>(size_) / sizeof(T)};
  }
  [[nodiscard]] Bytes size() const noexcept { return size_; }

  void reset() noexcept;

 private:
  std::byte* data_{};
  Bytes size_{};
  Bytes mapped_{};
};

}  // namespace offstage::memory
