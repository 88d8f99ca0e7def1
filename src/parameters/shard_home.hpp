#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "parameters/target.hpp"
#include "state/readiness.hpp"
#include "state/shard.hpp"

namespace offstage::parameters {

/// This rank's shard of the working copy where the device does not have it: its parts of layers are taken
/// from here, or whole layers where ranks share memory, and updates put new parameters here.
///
/// Threads: one calls begin and expect, one bring; any the others.
template <class T>
class ShardHome {
 public:
  /// Gets elements of a part from `offset` on, valid until it returns.
  using Take = std::function<void(std::int64_t offset, std::span<T const> elements)>;

  virtual ~ShardHome() = default;
  /// Parameters may have changed: nothing is expected, and what was brought is over.
  virtual void begin() {}
  /// Whether bring hands out whole layers, which stay where they are shown; it is collective then.
  [[nodiscard]] virtual bool has_whole_layers() const noexcept { return false; }
  /// The parts of these layers will be brought next, in this order, after those expected before.
  virtual void expect(std::span<int const> layers) = 0;
  /// Hands this rank's part of the layer (or all of it), the next one expected, to `take`: every element once, in pieces in
  /// any order. Waits until each is ready (state::Readiness).
  /// Errors: what an update failed with; IoError of the tiers; PreconditionError: it is not the next one, or
  /// this has been stopped.
  virtual void bring(int layer, Take const& take) = 0;
  /// Where the subgroup's new parameters go.
  [[nodiscard]] virtual Target target(state::Subgroup const& subgroup) = 0;
  /// Whose waits come first; null: everything is always ready. Not while layers are expected.
  virtual void set_readiness(state::Readiness* readiness) = 0;
  /// Ends threads; nothing is brought any more. Waits of the readiness have to end by themselves.
  virtual void stop() noexcept = 0;
};

}  // namespace offstage::parameters
