#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace offstage::tiers {

/// Names an extent: 0 .. n - 1, opaque here (the update uses the subgroup's index).
using Key = std::int64_t;

class Tiers;

/// The only door to offloaded bytes: verified, and this thread's alone until it ends.
///
/// Ends:    commit() makes the bytes the key's new version; destruction without commit keeps the
///          version before.
/// Errors:  commit throws IoError; a deferred error surfaces there, never in the destructor.
class Lease {
 public:
  Lease() noexcept = default;
  Lease(Tiers& owner, Key key, std::span<std::byte> bytes) noexcept
      : owner_{&owner}, key_{key}, bytes_{bytes} {}
  ~Lease() { discard(); }
  Lease(Lease const&) = delete;
  Lease& operator=(Lease const&) = delete;
  Lease(Lease&& other) noexcept
      : owner_{std::exchange(other.owner_, nullptr)},
        key_{other.key_},
        bytes_{std::exchange(other.bytes_, {})},
        touched_{other.touched_} {}
  Lease& operator=(Lease&&) = delete;

  [[nodiscard]] Key key() const noexcept { return key_; }
  /// False of a lease that has ended, or was made of nothing.
  [[nodiscard]] bool is_held() const noexcept { return owner_ != nullptr; }
  /// The bytes, to read.
  [[nodiscard]] std::span<std::byte const> bytes() const noexcept { return bytes_; }
  /// The bytes, to change.
  [[nodiscard]] std::span<std::byte> mutable_bytes() noexcept {
    touched_ = true;
    return bytes_;
  }
  /// The bytes are the new version when this returns, and what had to leave host memory for it is
  /// written. Ends the lease, whatever is thrown.
  void commit();

 private:
  void discard() noexcept;

  Tiers* owner_{};
  Key key_{};
  std::span<std::byte> bytes_;
  bool touched_{};
};

}  // namespace offstage::tiers
