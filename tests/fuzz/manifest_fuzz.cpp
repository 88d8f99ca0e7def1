// A rank's manifest, as bytes.
#include <cstdint>
#include <limits>
#include <string>

#include "base/error.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/older_layout.hpp"
#include "checkpoint/plausible.hpp"

namespace {

using namespace offstage;
using namespace offstage::checkpoint;

void expect(bool good) {
  if (!good) {
    __builtin_trap();
  }
}

/// What the readers of a subgroup take for granted.
void expect_sound(StoredSubgroup const& subgroup, std::size_t k, Manifest const& manifest) {
  Bytes file_bytes = manifest.file_bytes;
  if (subgroup.own_file) {
    expect(subgroup.own_file->name == extent_file_name(manifest.rank, k));
    expect(manifest.format >= format_of_planes ||
           subgroup.own_file->dataset_elements >= 3 * subgroup.elements);
    file_bytes = subgroup.own_file->bytes;
  }
  expect(subgroup.elements > 0 && subgroup.elements % chunk_elements == 0);
  expect(subgroup.offset >= 0 && subgroup.offset % 4096 == 0);
  expect(subgroup.elements <= (file_bytes - subgroup.offset) / 12);
  std::int64_t filled = 0;
  for (state::Piece const& piece : subgroup.pieces) {
    expect(piece.layer >= 0 && piece.offset == filled);
    expect(piece.chunks.first >= 0 && piece.chunks.count > 0);
    expect(piece.chunks.first <= std::numeric_limits<std::int64_t>::max() - piece.chunks.count);
    filled += piece.chunks.count * chunk_elements;
  }
  expect(filled == subgroup.elements);
}

void expect_sound(Manifest const& manifest) {
  expect(manifest.rank >= 0 && manifest.rank < manifest.ranks);
  expect(has_node_files(manifest.format) ? is_node_file_name(manifest.file, manifest.ranks)
                                         : manifest.file == rank_file_name(manifest.rank));
  Bytes held = 0;
  for (std::size_t k = 0; k < manifest.subgroups.size(); ++k) {
    expect_sound(manifest.subgroups[k], k, manifest);
    held += manifest.subgroups[k].own_file ? 0 : 12 * manifest.subgroups[k].elements;
    expect(held <= manifest.file_bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  // Three layers of one chunk each.
  static std::vector<state::LayerLayout> const layers = layers_of({.layers = 1,
                                                                   .hidden = 4,
                                                                   .heads = 1,
                                                                   .kv_heads = 1,
                                                                   .ffn_hidden = 4,
                                                                   .vocab = 8,
                                                                   .max_sequence = 4,
                                                                   .tied_head = true},
                                                                  format_of_two_layers - 1);
  try {
    Manifest const manifest = parse_manifest({reinterpret_cast<char const*>(data), size},
                                             adamw_layout(), "rank-0000.json");
    expect_sound(manifest);
    std::string const text = to_json(manifest);  // in the newest format
    expect(to_json(parse_manifest(text, adamw_layout(), "rank-0000.json")) == text);
    state::ShardMap const map{layers, manifest.ranks, deal_of(manifest.format)};
    require_shard(manifest, map, "rank-0000.json");
    expect(std::ssize(text) <= manifest_limit(map, manifest.rank));
  } catch (DataError const&) {
  }
  return 0;
}
