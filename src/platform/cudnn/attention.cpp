#include "platform/cudnn/attention.hpp"

#include <fmt/format.h>

namespace offstage::cudnn {
namespace {

constexpr int hopper = 90;
constexpr int blackwell = 100;
constexpr std::int64_t query_tile = 64;
constexpr std::int64_t key_tile = 128;  ///< of Hopper; others have 64

/// Statistics of a head's rows, and what is aligned up.
constexpr Bytes alignment_bytes = 4 * KiB;

}  // namespace

std::string reason_against(AttentionShape const& shape, int capability) {
  if (shape.type == DType::fp32) {
    return "it has none of fp32";
  }
  if (capability < 80) {
    return fmt::format("it has none for compute capability {}.{}", capability / 10,
                       capability % 10);
  }
  if (shape.sequence < 2) {
    return "it has none of a single position";
  }
  std::int64_t const widest = capability >= hopper && capability < blackwell ? 256 : 128;
  if (shape.head_dim % 8 != 0 || shape.head_dim > widest) {
    return fmt::format(
        "its deterministic backward takes heads of multiples of 8 up to {}, not of {}", widest,
        shape.head_dim);
  }
  return {};
}

Bytes largest_workspace(AttentionShape const& shape) {
  Bytes const rows = shape.batch * shape.heads * round_up(shape.sequence, query_tile);
  Bytes const scores = rows * round_up(shape.sequence, key_tile) * 2;
  Bytes const statistics = rows * static_cast<Bytes>(sizeof(float));
  Bytes const by_query_head = shape.heads == shape.kv_heads ? 0 : 2 * rows * shape.head_dim * 2;
  return scores + statistics + by_query_head + alignment_bytes;
}

}  // namespace offstage::cudnn
