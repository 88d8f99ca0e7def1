#include "update/subgroup_step.hpp"

#include <algorithm>

#include "base/chunk.hpp"
#include "base/error.hpp"

namespace offstage::update {
namespace {

template <class T>
std::span<T> part(std::span<T> all, Range range) {
  return all.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.count));
}

/// Calls `optimize(OptimizerPart)` for every run of one layer's elements in the part.
template <class Optimize>
void step_pieces(StepPart const& part, Optimize const& optimize) {
  for (state::Piece const& piece : part.subgroup.pieces) {
    auto const begin = std::max(piece.offset, part.range.begin);
    auto const end = std::min(piece.offset + piece.chunks.count * chunk_elements,
                              part.range.begin + part.range.count);
    if (begin >= end) {
      continue;
    }
    Range const here{begin - part.range.begin, end - begin};
    std::int64_t const skipped = begin - piece.offset;
    optimize(kernels::OptimizerPart{
        .planes = part_of(part.layout, part.state, here.begin),
        .gradient = part_of(part.gradient, here),
        .working_copy = part_of(part.copy, here),
        .elements = here.count,
        .decayed = std::clamp<std::int64_t>(piece.decayed - skipped, 0, here.count),
        .layer = static_cast<std::uint64_t>(piece.layer),
        .first = static_cast<std::uint64_t>(piece.chunks.first * chunk_elements + skipped)});
  }
}

}  // namespace

bool splits_parameter(StateLayout const& layout) {
  return layout.planes().front().type == PlaneType::low16;
}

StateViews state_views(StateLayout const& layout, std::span<std::byte> state, std::int64_t size) {
  require(std::ssize(state) >= layout.bytes(size),
          "the update: the state is shorter than the subgroup");
  StateViews views{};
  for (std::size_t plane = 0; plane < layout.size(); ++plane) {
    views.at(plane) = state.data() + layout.plane_offset(plane, size);
  }
  return views;
}

StateViews part_of(StateLayout const& layout, StateViews const& state, std::int64_t begin) {
  StateViews views{};
  for (std::size_t plane = 0; plane < layout.size(); ++plane) {
    views.at(plane) = state.at(plane) + layout.plane_bytes(plane, begin);
  }
  return views;
}

kernels::GradientView part_of(kernels::GradientView const& view, Range range) {
  return std::visit([&](auto span) { return kernels::GradientView{part(span, range)}; }, view);
}

kernels::WorkingCopyView part_of(kernels::WorkingCopyView const& view, Range range) {
  return std::visit([&](auto span) { return kernels::WorkingCopyView{part(span, range)}; }, view);
}

Bytes element_bytes(kernels::GradientView const& view) {
  return std::visit([]<class G>(std::span<G>) { return static_cast<Bytes>(sizeof(G)); }, view);
}

Bytes element_bytes(kernels::WorkingCopyView const& view) {
  return std::visit([]<class W>(std::span<W>) { return static_cast<Bytes>(sizeof(W)); }, view);
}

void step_on_host(StepPart const& part, kernels::OptimizerStep const& step) {
  step_pieces(part, [&](kernels::OptimizerPart const& piece) {
    kernels::host::optimize(part.layout, piece, step);
  });
}

void step_on_stream(device::Stream& stream, StepPart const& part,
                    kernels::OptimizerStep const& step) {
  step_pieces(part, [&](kernels::OptimizerPart const& piece) {
    kernels::optimize(stream, part.layout, piece, step);
  });
}

void require_fit(state::Subgroup const& subgroup, kernels::GradientView const& gradient) {
  std::int64_t covered = 0;
  for (state::Piece const& piece : subgroup.pieces) {
    covered += piece.chunks.count * chunk_elements;
  }
  require(covered == subgroup.size, "Update: pieces cover the subgroup");
  std::visit(
      [&](auto gradients) {
        require(std::ssize(gradients) == subgroup.size,
                "Update: a gradient needs an element for each of the subgroup's");
      },
      gradient);
}

}  // namespace offstage::update
