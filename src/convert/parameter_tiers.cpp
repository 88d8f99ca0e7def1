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

std::int64_t largest_subgroup(std::vector<state::Subgroup> const& subgroups) {
  std::int64_t largest = 0;
  for (state::Subgroup const& subgroup : subgroups) {
    largest = std::max(largest, subgroup.size);
  }
  return largest;
}

ParameterTiers::ParameterTiers(state::ParameterReader& reader,
                               std::vector<state::Subgroup> const& subgroups)
    : reader_{reader}, subgroups_{subgroups} {
  if (!subgroups.empty()) {
    buffer_ = memory::HugeBuffer{layout_.bytes(largest_subgroup(subgroups))};
  }
}

tiers::Lease ParameterTiers::fetch(tiers::Key key) {
  require(!leased_, "ParameterTiers: one lease at a time");
  state::Subgroup const& subgroup = subgroups_.at(static_cast<std::size_t>(key));
  auto const state = buffer_.bytes().first(static_cast<std::size_t>(layout_.bytes(subgroup.size)));
  read_pieces(reader_, subgroup,
              buffer_.as<float>().first(static_cast<std::size_t>(subgroup.size)));
  std::ranges::fill(state.subspan(static_cast<std::size_t>(layout_.plane_bytes(0, subgroup.size))),
                    std::byte{});
  leased_ = true;
  return {*this, key, state};
}

tiers::Lease ParameterTiers::create(tiers::Key /*key*/) {
  throw PreconditionError{"ParameterTiers: they are to be read alone"};
}

void ParameterTiers::commit(tiers::Key /*key*/) {
  throw PreconditionError{"ParameterTiers: they are to be read alone"};
}

void ParameterTiers::discard(tiers::Key /*key*/, bool /*touched*/) noexcept {
  leased_ = false;
}

}  // namespace offstage::convert
