#include "checkpoint/split_parameters.hpp"

#include "base/error.hpp"
#include "kernels/optimizer/working_copy.hpp"

namespace offstage::checkpoint {
namespace {

/// The lower halves of elements [begin, begin + count) of an extent.
template <class Low, class Byte>
std::span<Low> lower_halves(StateLayout const& layout, state::Subgroup const& subgroup,
                            std::span<Byte> extent, std::int64_t begin, std::size_t count) {
  require(layout.planes().front().type == PlaneType::low16 &&
              std::ssize(extent) == layout.bytes(subgroup.size),
          "checkpoint: an extent of lower halves");
  require(begin >= 0 && begin + static_cast<std::int64_t>(count) <= subgroup.size,
          "checkpoint: parameters of the subgroup");
  return {reinterpret_cast<Low*>(extent.data()) + begin, count};
}

}  // namespace

void SplitParameters::split(state::Subgroup const& subgroup, std::span<std::byte> extent,
                            std::int64_t begin, std::span<float const> parameters) const {
  kernels::host::split_parameters(
      parameters, lower_halves<std::uint16_t>(layout, subgroup, extent, begin, parameters.size()),
      copy(subgroup).subspan(static_cast<std::size_t>(begin), parameters.size()));
}

void SplitParameters::join(state::Subgroup const& subgroup, std::span<std::byte const> extent,
                           std::int64_t begin, std::span<float> parameters) const {
  kernels::host::join_parameters(
      copy(subgroup).subspan(static_cast<std::size_t>(begin), parameters.size()),
      lower_halves<std::uint16_t const>(layout, subgroup, extent, begin, parameters.size()),
      parameters);
}

}  // namespace offstage::checkpoint
