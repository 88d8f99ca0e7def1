#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "parameters/target.hpp"
#include "state/readiness.hpp"
#include "state/shard.hpp"

namespace offstage::parameters {

/// This rank's shard of the working copy if the device does not have it. Parts of layers are taken
/// from here, or whole layers if ranks share memory, and updates put new parameters here.
///
/// Threads: one calls begin and expect, one calls bring; any may call the others.
template <class T>
class ShardHome {
 public:
  /// Gets elements of a part from `offset` on. They are valid until it returns, and where
  /// stays_in_place() until an update changes them.
  using Take = std::function<void(std::int64_t offset, std::span<T const> elements)>;

  virtual ~ShardHome() = default;
  /// Announces that parameters may have changed. Nothing is expected.
  virtual void begin() {}
  /// Returns true if bring hands out the parameters where they live.
  [[nodiscard]] virtual bool stays_in_place() const noexcept { return false; }
  /// Returns true if bring hands out whole layers, which stay in place. It is collective then.
  [[nodiscard]] virtual bool has_whole_layers() const noexcept { return false; }
  /// Announces that the parts of these layers will be brought in this order, after those expected
  /// before.
  virtual void expect(std::span<int const> /*layers*/) {}
  /// Hands this rank's part of the layer, or all of it, the next one expected, to `take`: every
  /// element once, in pieces in any order. Waits until each is ready (state::Readiness).
  /// Errors: the error of a failed update; IoError of the tiers; PreconditionError: the layer is
  ///         not the next one, or this has been stopped.
  virtual void bring(int layer, Take const& take) = 0;
  /// The target of the subgroup's new parameters.
  [[nodiscard]] virtual Target target(state::Subgroup const& subgroup) = 0;
  /// Sets the object whose waits come first; null: everything is always ready. No layer is expected
  /// meanwhile.
  virtual void set_readiness(state::Readiness* readiness) = 0;
  /// Ends the threads. Nothing is brought any more. Waits of the readiness have to end by
  /// themselves.
  virtual void stop() noexcept {}
};

}  // namespace offstage::parameters
