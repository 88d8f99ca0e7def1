#pragma once

#include <hdf5.h>

#include <mutex>
#include <utility>

namespace offstage::h5 {

/// While it lives no other thread of the process calls HDF5, which is not safe for threads where it
/// is not built so. The library's state is the process's, and so is the lock. A thread may take
/// turns inside its own.
class Turn {
 public:
  Turn() : lock_{library()} {}

 private:
  static std::recursive_mutex& library();
  std::scoped_lock<std::recursive_mutex> lock_;
};

/// Owns one HDF5 identifier and knows how to close it; move-only. Negative: none. Closing a dataset
/// or an attribute that was written may write: a writer calls finish(), the destructor hides
/// errors.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);

  Handle(hid_t id, Close close) noexcept : id_{id}, close_{close} {}
  ~Handle() {
    if (id_ >= 0) {
      close_(id_);
    }
  }
  Handle(Handle const&) = delete;
  Handle& operator=(Handle const&) = delete;
  Handle(Handle&& other) noexcept : id_{std::exchange(other.id_, -1)}, close_{other.close_} {}
  Handle& operator=(Handle&&) = delete;

  [[nodiscard]] hid_t get() const noexcept { return id_; }
  /// Negative if HDF5 could not close it. Once.
  [[nodiscard]] herr_t finish() noexcept { return close_(std::exchange(id_, -1)); }
  /// From here on the caller closes it.
  [[nodiscard]] hid_t release() noexcept { return std::exchange(id_, -1); }

 private:
  hid_t id_;
  Close close_;
};

}  // namespace offstage::h5
