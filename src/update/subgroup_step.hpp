#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/units.hpp"
#include "device/device.hpp"
#include "kernels/optimizer/adamw.hpp"
#include "state/shard.hpp"
#include "update/views.hpp"

namespace offstage::update {

/// Elements [begin, begin + count) of a subgroup.
struct Range {
  std::int64_t begin{};
  std::int64_t count{};
};

/// p, m and v of such a range, or of a whole subgroup.
struct StateViews {
  std::span<float> parameter;
  std::span<float> momentum;
  std::span<float> variance;
};

/// Of `size` elements whose p, m and v follow each other.
[[nodiscard]] StateViews state_views(std::span<std::byte> state, std::int64_t size);
[[nodiscard]] StateViews part_of(StateViews const& state, Range range);
[[nodiscard]] GradientView part_of(GradientView const& view, Range range);
[[nodiscard]] WorkingCopyView part_of(WorkingCopyView const& view, Range range);
[[nodiscard]] std::int64_t elements_of(WorkingCopyView const& view);
[[nodiscard]] Bytes element_bytes(GradientView const& view);
[[nodiscard]] Bytes element_bytes(WorkingCopyView const& view);

/// One AdamW step of a range of a subgroup, whose elements alone all views are of. The weight decay
/// applies inside the subgroup's decayed ranges alone. On the host with the caller's OpenMP team; on a
/// stream, whose device holds the views, it returns before the work is done.
/// Errors: as kernels::adamw.
void step_on_host(state::Subgroup const& subgroup, Range range, StateViews const& state,
                  GradientView const& gradient, WorkingCopyView const& copy,
                  kernels::AdamwStep const& step);
void step_on_stream(device::Stream& stream, state::Subgroup const& subgroup, Range range,
                    StateViews const& state, GradientView const& gradient,
                    WorkingCopyView const& copy, kernels::AdamwStep const& step);

/// Whether a whole subgroup can be stepped with these: before its state is touched.
/// Errors: PreconditionError: the gradient has not an element for each of the subgroup's; gradient and
///         copy are of two different 16-bit types, for which there is no kernel.
void require_fit(state::Subgroup const& subgroup, GradientView const& gradient,
                 WorkingCopyView const& copy);

}  // namespace offstage::update
