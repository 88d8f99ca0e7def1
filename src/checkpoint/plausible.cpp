#include "checkpoint/plausible.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace offstage::checkpoint {
namespace {

constexpr std::int64_t most_counted = 10'000'000'000'000;  // steps and sequences
constexpr std::int64_t most_threads = 1 << 20;

// Bounds of a manifest's text, in which all numbers have their largest width.
constexpr Bytes text_head_bytes = 4 * KiB;
constexpr Bytes text_subgroup_bytes = 512;
constexpr Bytes text_piece_bytes = 192;

void require_number(bool good, double value, char const* what, std::string const& path) {
  if (!good) {
    throw DataError{fmt::format("{}: {}={} is no value that a run writes; the file is damaged",
                                path, what, value)};
  }
}

void require_counts(Meta const& meta, std::string const& path) {
  auto const counted = [&](std::int64_t value, char const* what) {
    require_within(value, 0, most_counted, what, path);
  };
  counted(meta.step, "step");
  counted(meta.samples, "samples");
  counted(meta.bad_steps, "bad_steps");
  counted(meta.optimizer_step, "optimizer_step");
  counted(meta.loss_scale_steps, "loss_scale_steps");
  require_within(meta.threads, 0, most_threads, "threads", path);
  require_number(std::isfinite(meta.loss_scale) && meta.loss_scale > 0.0, meta.loss_scale,
                 "loss_scale", path);
  require_number(std::isfinite(meta.learning_rate), meta.learning_rate, "learning_rate", path);
}

void add_bytes(Bytes& total, Bytes bytes, std::string const& file, std::string const& path) {
  require_within(bytes, 1, most_checkpoint_bytes - total, "the size of " + file, path);
  total += bytes;
}

/// Bytes of all planes, without their padding. Does not lay out all layers.
Bytes state_bytes(state::ModelShape model, StateLayout const& layout) {
  std::int64_t const blocks = std::exchange(model.layers, 1);
  auto const one = state::layers_of(model);
  std::int64_t elements = 0;
  for (state::LayerLayout const& layer : one) {
    elements += (layer.block < 0 ? 1 : blocks) * layer.elements;
  }
  Bytes bytes = 0;
  for (std::size_t plane = 0; plane < layout.size(); ++plane) {
    bytes += layout.plane_bytes(plane, elements);
  }
  return bytes;
}

}  // namespace

void require_within(std::int64_t value, std::int64_t low, std::int64_t high,
                    std::string const& what, std::string const& path) {
  if (value < low || value > high) {
    throw DataError{fmt::format("{}: {} is {}, which is not from {} to {}; the file is damaged",
                                path, what, value, low, high)};
  }
}

void require_plausible(Master const& master, std::string const& path) {
  require_counts(master.meta, path);
  try {
    state::validate(master.meta.model);
  } catch (UsageError const& error) {
    throw DataError{fmt::format("{}: {}", path, error.what())};
  }
  Bytes bytes = 0;
  std::map<std::string_view, Bytes> files;  // each rank of a node names the node's file
  for (RankEntry const& entry : master.ranks) {
    auto const [known, is_new] = files.emplace(entry.file, entry.file_bytes);
    if (is_new) {
      add_bytes(bytes, entry.file_bytes, entry.file, path);
    }
    require_within(entry.file_bytes, known->second, known->second, "the size of " + entry.file,
                   path);
  }
  for (ExtentEntry const& entry : master.extents) {
    add_bytes(bytes, entry.bytes, entry.file, path);
  }
  if (Bytes const needed = state_bytes(master.meta.model, master.meta.state.layout);
      bytes < needed) {
    throw DataError{
        fmt::format("{}: its files have {}, but its model needs {}; the file is damaged", path,
                    format_bytes(bytes), format_bytes(needed))};
  }
}

Bytes manifest_limit(state::ShardMap const& map, int rank) {
  // A subgroup has one chunk at least, and so has a piece of it.
  std::int64_t const chunks = map.shard_elements(rank) / chunk_elements;
  return std::min(text_head_bytes + chunks * (text_subgroup_bytes + text_piece_bytes),
                  most_manifest_bytes);
}

void require_shard(Manifest const& manifest, state::ShardMap const& map, std::string const& path) {
  std::int64_t elements = 0;
  for (StoredSubgroup const& subgroup : manifest.subgroups) {
    for (state::Piece const& piece : subgroup.pieces) {
      require_within(piece.layer, 0, std::ssize(map.layers()) - 1, "a layer", path);
      state::ChunkRange const own = map.chunks(piece.layer, manifest.rank);
      require_within(piece.chunks.first, own.first, own.first + own.count - piece.chunks.count,
                     fmt::format("the first chunk of a piece of layer {}", piece.layer), path);
    }
    elements += subgroup.elements;
  }
  std::int64_t const expected = map.shard_elements(manifest.rank);
  require_within(elements, expected, expected, "the number of elements", path);
}

}  // namespace offstage::checkpoint
