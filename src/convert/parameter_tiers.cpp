#include "convert/parameter_tiers.hpp"

#include <algorithm>

#include "base/chunk.hpp"
#include "base/error.hpp"

namespace offstage::convert {

void read_pieces(state::ParameterReader& reader, state::Subgroup const& subgroup,
                 std::span<float> parameters) {
  for (state::Piece const& piece : subgroup.pieces) {
    reader.read(piece.layer, piece.chunks,
                parameters.subspan(static_cast<std::size_t>(piece.offset),
                                   static_cast<std::size_t>(piece.chunks.count * chunk_elements)));
  }
}

Bytes largest_state(std::vector<state::Subgroup> const& subgroups) {
  Bytes largest = 0;
  for (state::Subgroup const& subgroup : subgroups) {
    largest = std::max(largest, subgroup.state_bytes());
  }
  return largest;
}

ParameterTiers::ParameterTiers(state::ParameterReader& reader,
                               std::vector<state::Subgroup> const& subgroups)
    : reader_{reader}, subgroups_{subgroups} {
  if (!subgroups.empty()) {
    buffer_ = memory::HugeBuffer{largest_state(subgroups)};
  }
}

tiers::Lease ParameterTiers::fetch(tiers::Key key) {
  require(!leased_, "ParameterTiers: one lease at a time");
  state::Subgroup const& subgroup = subgroups_.at(static_cast<std::size_t>(key));
  auto const count = static_cast<std::size_t>(subgroup.size);
  std::span<float> const state = buffer_.as<float>().first(3 * count);
  read_pieces(reader_, subgroup, state.first(count));
  std::ranges::fill(state.subspan(count), 0.0F);
  leased_ = true;
  return {*this, key, std::as_writable_bytes(state), 0};
}

tiers::Lease ParameterTiers::create(tiers::Key /*key*/) {
  throw PreconditionError{"ParameterTiers: they are to be read alone"};
}

void ParameterTiers::commit(tiers::Key /*key*/, std::int64_t /*ticket*/) {
  throw PreconditionError{"ParameterTiers: they are to be read alone"};
}

void ParameterTiers::discard(tiers::Key /*key*/, std::int64_t /*ticket*/,
                             bool /*touched*/) noexcept {
  leased_ = false;
}

}  // namespace offstage::convert
