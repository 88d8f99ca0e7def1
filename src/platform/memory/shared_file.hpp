#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "base/slice.hpp"
#include "base/units.hpp"

namespace offstage::memory {

/// Owns a mapping of parts of a shared file; move-only. The mapping outlives the file.
class SharedMapping {
 public:
  SharedMapping() noexcept = default;
  explicit SharedMapping(std::span<std::byte> bytes) noexcept : bytes_{bytes} {}
  ~SharedMapping() { reset(); }
  SharedMapping(SharedMapping const&) = delete;
  SharedMapping& operator=(SharedMapping const&) = delete;
  SharedMapping(SharedMapping&& other) noexcept : bytes_{std::exchange(other.bytes_, {})} {}
  SharedMapping& operator=(SharedMapping&& other) noexcept {
    SharedMapping taken{std::move(other)};
    std::swap(bytes_, taken.bytes_);
    return *this;
  }

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  void reset() noexcept;

  std::span<std::byte> bytes_;
};

/// Memory that processes of one node share: a file of /dev/shm, which counts as their memory. One
/// process creates it, empty, the others open it by its name, and then it loses the name. It takes
/// memory only after that. So whatever ends the processes, nothing but an empty file can be left,
/// and this only in the moment after create.
///
/// Errors: IoError that names /dev/shm, the bytes that were asked for, and a remedy.
class SharedFile {
 public:
  SharedFile() noexcept = default;
  /// An empty file with a new name, for this user alone.
  [[nodiscard]] static SharedFile create(std::string const& remedy);
  /// The file that another process has created. `remedy` is the one of require_room.
  [[nodiscard]] static SharedFile open(std::string const& name, std::string const& remedy);
  ~SharedFile() { close(); }
  SharedFile(SharedFile const&) = delete;
  SharedFile& operator=(SharedFile const&) = delete;
  SharedFile(SharedFile&& other) noexcept
      : descriptor_{std::exchange(other.descriptor_, -1)},
        name_{std::exchange(other.name_, {})},
        named_{std::exchange(other.named_, false)} {}
  SharedFile& operator=(SharedFile&& other) noexcept {
    SharedFile taken{std::move(other)};
    std::swap(descriptor_, taken.descriptor_);
    std::swap(name_, taken.name_);
    std::swap(named_, taken.named_);
    return *this;
  }

  [[nodiscard]] std::string const& name() const noexcept { return name_; }
  /// Takes the name away that create has given.
  void remove_name() noexcept;
  /// Returns the bytes for which /dev/shm has room: the most that there are if it has no limit, and
  /// 0 if it cannot be asked.
  [[nodiscard]] static Bytes room() noexcept;
  /// Checks that /dev/shm has room for `whole` bytes, before any process takes some: if one process
  /// lacked memory, others would have taken theirs in vain. For the error: `what` needs the bytes,
  /// and the `remedy` would need none.
  static void require_room(Bytes whole, std::string const& what, std::string const& remedy);
  /// Makes the pages of these parts of the file, zeroed, near the calling thread. Later use cannot
  /// fail for want of memory. The other arguments are those of require_room.
  void allocate(std::span<Slice const> parts, Bytes whole, std::string const& what,
                std::string const& remedy) const;
  /// Maps these parts of the file one behind the other, in their order. Offsets and sizes are
  /// multiples of the system's pages. Errors: Error (1): no addresses are left.
  [[nodiscard]] SharedMapping map(std::span<Slice const> parts) const;

 private:
  void close() noexcept;

  int descriptor_ = -1;
  std::string name_;
  bool named_ = false;  ///< this object gave the name, and it is still there
};

/// Bytes of the system's pages.
[[nodiscard]] Bytes system_page_bytes();

}  // namespace offstage::memory
