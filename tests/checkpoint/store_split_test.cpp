#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.hpp"
#include "checkpoint/store_fixture.hpp"

namespace offstage::checkpoint {
namespace {

/// More in a layer, and in a subgroup, than is joined or split at a time.
state::ModelShape wide_model() {
  state::ModelShape model = small_model();
  model.vocab = 50000;
  model.tied_head = true;
  return model;
}
constexpr std::int64_t subgroup_elements = 400 * chunk_elements;

StateLayout split_layout(StateLayout const& whole) {
  auto planes = whole.planes();
  planes.front().type = PlaneType::low16;
  return StateLayout{std::move(planes)};
}

/// A shard whose tiers hold the lower halves, beside a working copy that is NaN at first.
class SplitShard {
 public:
  SplitShard(mpi::Communicator const& comm, StateLayout const& layout)
      : shard{wide_model(), comm.size(), comm.rank(), subgroup_elements, split_layout(layout)},
        copy(static_cast<std::size_t>(shard.map.shard_elements(comm.rank())),
             bfloat16{bf16_canonical_nan}) {}

  [[nodiscard]] SplitParameters split() {
    return {shard.layout, [this](state::Subgroup const& subgroup) {
              return std::span{copy}.subspan(static_cast<std::size_t>(subgroup.begin),
                                             static_cast<std::size_t>(subgroup.size));
            }};
  }
  void fill_from(Shard const& whole, std::uint64_t seed) {
    for (state::Subgroup const& subgroup : shard.subgroups) {
      auto const bytes = whole.expected(subgroup, seed);
      auto lease = shard.tiers->create(subgroup.index);
      std::copy(bytes.begin() + 4 * subgroup.size, bytes.end(),
                lease.mutable_bytes().begin() + 2 * subgroup.size);
      split().split(subgroup, lease.mutable_bytes(), 0, parameters_in(bytes, subgroup));
      lease.commit();
    }
  }
  /// True if joined every bit is that of the whole shard's state `seed`.
  [[nodiscard]] bool holds(Shard const& whole, std::uint64_t seed) {
    return std::ranges::all_of(shard.subgroups, [&](state::Subgroup const& subgroup) {
      auto const lease = shard.tiers->fetch(subgroup.index);
      std::vector<float> joined(static_cast<std::size_t>(subgroup.size));
      split().join(subgroup, lease.bytes(), 0, joined);
      auto const bytes = whole.expected(subgroup, seed);
      auto const parameters = parameters_in(bytes, subgroup);
      return std::ranges::equal(std::as_bytes(std::span{joined}), std::as_bytes(parameters)) &&
             std::equal(bytes.begin() + 4 * subgroup.size, bytes.end(),
                        lease.bytes().begin() + 2 * subgroup.size, lease.bytes().end());
    });
  }

  Shard shard;
  std::vector<bfloat16> copy;

 private:
  static std::span<float const> parameters_in(std::vector<std::byte> const& extent,
                                              state::Subgroup const& subgroup) {
    return {reinterpret_cast<float const*>(extent.data()), static_cast<std::size_t>(subgroup.size)};
  }
};

std::string text_of(std::string const& path) {
  std::ifstream file{path};
  return {std::istreambuf_iterator<char>{file}, {}};
}

TEST_F(CheckpointStore, SplitParametersAreWholeInACheckpoint) {
  for (StateLayout const& layout : {adamw_layout(), small_layout()}) {
    RunState const run{wide_model(), {.optimizer = "adamw", .moments = "any", .layout = layout}};
    Shard whole{wide_model(), world.size(), world.rank(), subgroup_elements, layout};
    whole.fill(6);
    SplitShard halves{world, layout};
    halves.fill_from(whole, 6);
    auto const save = [&](std::string const& where, Shard& shard,
                          std::optional<SplitParameters> split) {
      Store to{where, {}, world};
      if (split) {
        to.set_split(*std::move(split));
      }
      Meta of_step = meta(3);
      of_step.model = wide_model();
      of_step.state = run.state;
      return to.save(of_step, shard.map, shard.subgroups, *shard.tiers);
    };
    std::string const name = directory + "-" + std::to_string(layout.size());
    auto const of_whole = save(name + "-whole", whole, {});
    auto const of_halves = save(name + "-halves", halves.shard, halves.split());
    EXPECT_EQ(of_whole.bytes, of_halves.bytes);
    std::string const manifest = "/" + manifest_name(world.rank());  // with checksums
    EXPECT_EQ(text_of(of_whole.path + manifest), text_of(of_halves.path + manifest));

    Shard restored{wide_model(), world.size(), world.rank(), subgroup_elements, layout};
    (void)Store(name + "-halves", {}, world)
        .restore(of_halves.path, run, restored.map, restored.subgroups, *restored.tiers,
                 ignore_parameters);
    EXPECT_TRUE(restored.holds(6));

    SplitShard again{world, layout};
    Store from{name + "-whole", {}, world};
    from.set_split(again.split());
    (void)from.restore(of_whole.path, run, again.shard.map, again.shard.subgroups,
                       *again.shard.tiers, [](state::Subgroup const&, std::span<float const>) {
                         ADD_FAILURE() << "whole parameters where they are split";
                       });
    EXPECT_TRUE(again.holds(whole, 6));
  }
}

}  // namespace
}  // namespace offstage::checkpoint
