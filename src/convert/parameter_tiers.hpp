#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/state_layout.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "state/initialize.hpp"
#include "state/shard.hpp"
#include "tiers/tiers.hpp"

namespace offstage::convert {

/// State that is made when it is asked for: p from a ParameterReader, m and v zero. To be read
/// alone: create() and commit() are a bug.
/// Memory: one subgroup's state, whatever the model's size. Threads: one, one lease at a time.
/// Errors: those of the reader, from fetch().
class ParameterTiers final : public tiers::Tiers {
 public:
  /// `subgroups` and `reader` outlive this; a key is an index of `subgroups`.
  ParameterTiers(state::ParameterReader& reader, std::vector<state::Subgroup> const& subgroups);

  [[nodiscard]] tiers::Lease fetch(tiers::Key key) override;
  [[nodiscard]] tiers::Lease create(tiers::Key key) override;
  [[nodiscard]] tiers::Traffic traffic() const override { return {}; }
  [[nodiscard]] Bytes host_bytes() const override { return buffer_.size(); }

 protected:
  void commit(tiers::Key key) override;
  void discard(tiers::Key key, bool touched) noexcept override;

 private:
  state::ParameterReader& reader_;
  std::vector<state::Subgroup> const& subgroups_;
  StateLayout layout_ = adamw_layout();
  memory::HugeBuffer buffer_;
  bool leased_ = false;
};

/// Reads the pieces of a subgroup; `parameters` has an element for each of its own.
void read_pieces(state::ParameterReader& reader, state::Subgroup const& subgroup,
                 std::span<float> parameters);

/// The most elements of one of them; 0 if there is none.
[[nodiscard]] std::int64_t largest_subgroup(std::vector<state::Subgroup> const& subgroups);

}  // namespace offstage::convert
