#include "update/subgroup_step.hpp"

#include <algorithm>
#include <type_traits>

#include "base/error.hpp"

namespace offstage::update {
namespace {

/// Two different 16-bit types have no kernel: no run has both.
template <class G, class W>
constexpr bool have_kernel =
    std::is_same_v<G, W> || std::is_same_v<G, float> || std::is_same_v<W, float>;

template <class T>
std::span<T> part(std::span<T> all, Range range) {
  return all.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.count));
}

/// Calls `kernel(AdamwState<G, W>, AdamwStep)` for every part of the range that is decayed or not as one.
template <class Kernel>
void step_range(state::Subgroup const& subgroup, Range range, StateViews const& state,
                GradientView const& gradient, WorkingCopyView const& copy, kernels::AdamwStep step,
                Kernel const& kernel) {
  double const weight_decay = step.weight_decay;
  auto const call = [&]<class G, class W>(std::span<G const> gradients, std::span<W> copies) {
    if constexpr (have_kernel<G, W>) {
      for (state::DecayRange const& decay : subgroup.decay_ranges) {
        auto const begin = std::max(decay.begin, range.begin);
        auto const end = std::min(decay.end, range.begin + range.count);
        if (begin < end) {
          Range const here{begin - range.begin, end - begin};
          StateViews const views = part_of(state, here);
          step.weight_decay = decay.decayed ? weight_decay : 0.0;
          kernel(kernels::AdamwState<G, W>{views.parameter, views.momentum, views.variance,
                                           part(gradients, here), part(copies, here)},
                 step);
        }
      }
    }
  };
  std::visit(call, gradient, copy);
}

}  // namespace

StateViews state_views(std::span<std::byte> state, std::int64_t size) {
  require(std::ssize(state) >= 12 * size, "AdamW: the state is shorter than the subgroup");
  auto* const elements = reinterpret_cast<float*>(state.data());
  auto const count = static_cast<std::size_t>(size);
  return {{elements, count}, {elements + count, count}, {elements + 2 * count, count}};
}

StateViews part_of(StateViews const& state, Range range) {
  return {part(state.parameter, range), part(state.momentum, range), part(state.variance, range)};
}

GradientView part_of(GradientView const& view, Range range) {
  return std::visit([&](auto span) { return GradientView{part(span, range)}; }, view);
}

WorkingCopyView part_of(WorkingCopyView const& view, Range range) {
  return std::visit([&](auto span) { return WorkingCopyView{part(span, range)}; }, view);
}

std::int64_t elements_of(WorkingCopyView const& view) {
  return std::visit([](auto span) { return std::ssize(span); }, view);
}

Bytes element_bytes(GradientView const& view) {
  return std::visit([]<class G>(std::span<G>) { return static_cast<Bytes>(sizeof(G)); }, view);
}

Bytes element_bytes(WorkingCopyView const& view) {
  return std::visit([]<class W>(std::span<W>) { return static_cast<Bytes>(sizeof(W)); }, view);
}

void step_on_host(state::Subgroup const& subgroup, Range range, StateViews const& state,
                  GradientView const& gradient, WorkingCopyView const& copy,
                  kernels::AdamwStep const& step) {
  step_range(
      subgroup, range, state, gradient, copy, step,
      []<class G, class W>(kernels::AdamwState<G, W> const& views, kernels::AdamwStep const& with) {
        kernels::host::adamw<G, W>(views, with);
      });
}

void step_on_stream(device::Stream& stream, state::Subgroup const& subgroup, Range range,
                    StateViews const& state, GradientView const& gradient,
                    WorkingCopyView const& copy, kernels::AdamwStep const& step) {
  step_range(subgroup, range, state, gradient, copy, step,
             [&]<class G, class W>(kernels::AdamwState<G, W> const& views,
                                   kernels::AdamwStep const& with) {
               kernels::adamw<G, W>(stream, views, with);
             });
}

void require_fit(state::Subgroup const& subgroup, GradientView const& gradient,
                 WorkingCopyView const& copy) {
  std::visit(
      [&]<class G, class W>(std::span<G const> gradients, std::span<W>) {
        require(have_kernel<G, W>,
                "UpdatePipeline: gradient and working copy are of two different 16-bit types");
        require(std::ssize(gradients) == subgroup.size,
                "UpdatePipeline: a gradient needs an element for each of the subgroup's");
      },
      gradient, copy);
}

}  // namespace offstage::update
