#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/range.hpp"
#include "base/state_layout.hpp"
#include "base/units.hpp"
#include "device/device.hpp"
#include "kernels/optimizer/optimizer.hpp"
#include "state/shard.hpp"

namespace offstage::update {

/// Where each plane of a range of a subgroup's elements begins, or of all of them, in the layout's
/// order.
using StateViews = std::array<std::byte*, kernels::most_planes>;

/// Whether the working copy has the upper half of each parameter: an update reads it too.
[[nodiscard]] bool splits_parameter(StateLayout const& layout);

/// The planes of an extent of `size` elements. Errors: PreconditionError if it is shorter than
/// that.
[[nodiscard]] StateViews state_views(StateLayout const& layout, std::span<std::byte> state,
                                     std::int64_t size);
[[nodiscard]] StateViews part_of(StateLayout const& layout, StateViews const& state,
                                 std::int64_t begin);
[[nodiscard]] kernels::GradientView part_of(kernels::GradientView const& view, Range range);
[[nodiscard]] kernels::WorkingCopyView part_of(kernels::WorkingCopyView const& view, Range range);
[[nodiscard]] Bytes element_bytes(kernels::GradientView const& view);
[[nodiscard]] Bytes element_bytes(kernels::WorkingCopyView const& view);

/// A range of a subgroup that an optimizer's step is done on: all views are of its elements alone.
struct StepPart {
  state::Subgroup const& subgroup;
  Range range;
  StateLayout const& layout;
  StateViews state;
  kernels::GradientView gradient;
  kernels::WorkingCopyView copy;
};
/// One step of it, piece by piece. On the host with the caller's OpenMP team; on a stream, whose
/// device holds the views, it returns before the work is done.
/// Errors: as kernels::optimize.
void step_on_host(StepPart const& part, kernels::OptimizerStep const& step);
void step_on_stream(device::Stream& stream, StepPart const& part,
                    kernels::OptimizerStep const& step);

/// Whether a whole subgroup can be stepped with these: before its state is touched.
/// Errors: PreconditionError: the gradient has not an element for each of the subgroup's; its
/// pieces do not cover it.
void require_fit(state::Subgroup const& subgroup, kernels::GradientView const& gradient);

}  // namespace offstage::update
