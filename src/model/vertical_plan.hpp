#pragma once

#include <algorithm>
#include <vector>

#include "base/units.hpp"
#include "model/fates.hpp"
#include "model/transformer.hpp"
#include "model/workspace.hpp"
#include "state/exchange.hpp"
#include "state/model_shape.hpp"

namespace offstage::model {

/// Numbers of tensors of a vertical schedule that wait, and of slabs of device memory that they
/// have.
struct VerticalPlan {
  int micro_batches = 0;  ///< this rank's in a step; 0: the schedule is horizontal
  int blocks = 0;
  bool leaves = false;  ///< they wait in an ActivationStore
  bool ahead = false;   ///< the next tensors are brought while the present ones are worked on
  plan::StayingTensors stay{};  ///< tensors that stay where others leave
  bool tied = false;

  /// Number of tensors: inputs of all blocks, the output of the last one, and the gradient of one
  /// layer's inputs.
  [[nodiscard]] int tensors() const { return micro_batches * (blocks + 2); }
  [[nodiscard]] int tables() const { return tied ? micro_batches : 0; }
  /// Number of slabs. Tensors that leave have some in turn. The block at work has its input and its
  /// output or the gradient; ahead of it are the next input and gradient; behind it one tensor
  /// leaves, and another's slab is becoming free.
  [[nodiscard]] int slabs() const {
    constexpr int at_work = 3;
    constexpr int with_ahead = 6;
    int const most = (ahead ? with_ahead : at_work) + stay.tensors;
    return leaves && most < tensors() ? most : tensors();
  }
  /// Number of tensors with slabs of their own, if others leave. They are the last ones: a layer's
  /// gradients, which every block would move twice, and the inputs of the last blocks.
  [[nodiscard]] int staying() const { return slabs() < tensors() ? stay.tensors : 0; }
  /// Number of slabs for tables: a GradientSink reads one while the next one is computed.
  [[nodiscard]] int table_slabs() const {
    constexpr int in_turn = 2;
    return leaves && !stay.tables && in_turn < tables() ? in_turn : tables();
  }
  /// Bytes of the pieces in which a table leaves. Where extents wait, each has the room of the
  /// largest, so a piece is no larger than a tensor, but for tensors that are tiny beside it.
  [[nodiscard]] static Bytes table_piece(Bytes tensor, Bytes table) {
    constexpr Bytes most_pieces = 64;
    return std::min(table, std::max(tensor, ceil_div(table, most_pieces)));
  }
  [[nodiscard]] plan::WaitingGroup tensor_group() const {
    return {.tensors = tensors(), .slabs = slabs(), .staying = staying()};
  }
  [[nodiscard]] plan::WaitingGroup table_group(Bytes tensor, Bytes table) const {
    return {.tensors = tables(),
            .slabs = table_slabs(),
            .pieces = static_cast<int>(ceil_div(table, table_piece(tensor, table))),
            .first_block = tensors()};
  }
  /// The parts that leave, under the numbers that Vertical gives them.
  [[nodiscard]] std::vector<state::LeavingPart> leaving_parts(Bytes tensor, Bytes table) const {
    std::vector<state::LeavingPart> parts;
    for (int i = 0; slabs() < tensors() && i < tensors() - staying(); ++i) {
      parts.push_back({i, 0, tensor});
    }
    auto const group = table_group(tensor, table);
    Bytes const piece = table_piece(tensor, table);
    for (int i = 0; table_slabs() < tables() && i < tables(); ++i) {
      for (int n = 0; n < group.pieces; ++n) {
        parts.push_back({group.block_of(i) + n, 0, std::min(piece, table - n * piece)});
      }
    }
    return parts;
  }
  /// Demand on the workspace, which has one table in any case.
  [[nodiscard]] VerticalDemand demand() const {
    return micro_batches == 0 ? VerticalDemand{}
                              : VerticalDemand{.micro_batches = micro_batches,
                                               .tensors = slabs(),
                                               .tables = tied ? table_slabs() - 1 : 0};
  }
};

/// Bytes of an input or gradient that waits, and of a tied table's gradient, with elements of so
/// many bytes.
[[nodiscard]] inline Bytes tensor_bytes(Dims const& dims, Bytes element) {
  return dims.rows() * dims.C * element;
}
[[nodiscard]] inline Bytes table_bytes(Dims const& dims, Bytes element) {
  return dims.V * dims.C * element;
}

/// The ring of blocks' memory. A vertical schedule computes one block at a time, and all of it
/// again in backward.
[[nodiscard]] BlockRing ring_of(state::ModelShape const& shape, RunShape const& run);
[[nodiscard]] VerticalPlan vertical_plan(state::ModelShape const& shape, RunShape const& run);

}  // namespace offstage::model
