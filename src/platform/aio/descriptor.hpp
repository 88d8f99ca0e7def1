#pragma once

#include <string>
#include <utility>

#include "base/units.hpp"

namespace offstage::aio {

/// Owns a file descriptor and the path that it was opened by; move-only. What is done with the
/// bytes is for the files built on it. Errors: IoError that names the path; the destructor closes
/// and never throws.
class Descriptor {
 public:
  Descriptor() noexcept = default;
  /// As open(2), with O_CLOEXEC.
  Descriptor(std::string path, int flags, unsigned mode);
  ~Descriptor() { reset(); }

  Descriptor(Descriptor const&) = delete;
  Descriptor& operator=(Descriptor const&) = delete;
  Descriptor(Descriptor&& other) noexcept
      : descriptor_{std::exchange(other.descriptor_, -1)}, path_{std::move(other.path_)} {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    Descriptor taken{std::move(other)};
    std::swap(descriptor_, taken.descriptor_);
    std::swap(path_, taken.path_);
    return *this;
  }

  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  [[nodiscard]] bool is_open() const noexcept { return descriptor_ >= 0; }
  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] Bytes size() const;
  void reset() noexcept;

 protected:
  /// Reserves bytes from offset 0 on and makes the file that long: 0, or the number of the error.
  [[nodiscard]] int reserve(Bytes size) const noexcept;

 private:
  int descriptor_{-1};
  std::string path_;
};

}  // namespace offstage::aio
