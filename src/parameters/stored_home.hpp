#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "parameters/extent_reader.hpp"
#include "parameters/read_plan.hpp"
#include "parameters/shard_home.hpp"
#include "state/shard.hpp"
#include "tiers/tiers.hpp"

namespace offstage::parameters {

/// The shard in extents of its own tiers, one per subgroup, whose index is the key.
///
/// Reading: extents are fetched ahead, at most `ahead` at a time, and each once as long as the
///          order goes up or down through the shard (plan_reads), from one expect to the next.
/// Waiting: parts that are expected keep leases until they are brought. An update that creates a
///          subgroup's extent therefore needs a buffer beside `ahead`. No layer of that subgroup
///          may be expected any more, which is so once its gradient is complete.
template <class T>
class StoredHome final : public ShardHome<T> {
 public:
  using typename ShardHome<T>::Take;

  /// `tiers` have extents of sizeof(T) per element. `device_writes`: the device writes to host
  /// memory as to its own.
  StoredHome(state::ShardMap const& map, int rank, std::vector<state::Subgroup> const& subgroups,
             tiers::Tiers& tiers, int ahead, bool device_writes);

  void expect(std::span<int const> layers) override;
  void bring(int layer, Take const& take) override;
  [[nodiscard]] Target target(state::Subgroup const& subgroup) override;
  void set_readiness(state::Readiness* readiness) override;
  void stop() noexcept override { reader_.stop(); }

 private:
  struct Part {
    int layer{};
    std::vector<ReadPiece> pieces;
  };
  void wait_until_ready(tiers::Key key);

  state::ShardMap const& map_;
  int rank_;
  std::vector<state::Subgroup> const& subgroups_;
  tiers::Tiers& tiers_;
  bool device_writes_;
  std::mutex mutex_;  ///< guards all members below
  state::Readiness* readiness_{};
  std::deque<Part> parts_;  ///< expected parts, in order
  ExtentReader reader_;     ///< last: its threads use all members above
};

}  // namespace offstage::parameters
