#include "checkpoint/manifest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/extent_file.hpp"
#include "checkpoint/json_tree.hpp"
#include "checkpoint/plausible.hpp"
#include "platform/aio/file.hpp"

namespace offstage::checkpoint {
namespace {

constexpr std::int64_t most_int = std::numeric_limits<int>::max();

/// A JSON object and its name in messages.
class Object {
 public:
  Object(JsonNode const& node, std::string path, std::string prefix)
      : members_{std::get_if<JsonNode::Object>(&node.value)},
        path_{std::move(path)},
        prefix_{std::move(prefix)} {
    if (members_ == nullptr) {
      fail("", "must be an object");
    }
  }

  [[nodiscard]] std::int64_t whole(char const* key, std::int64_t low, std::int64_t high) const {
    auto const* const value = std::get_if<std::int64_t>(&member(key).value);
    if (value == nullptr || *value < low || *value > high) {
      fail(key, fmt::format("must be a whole number from {} to {}", low, high));
    }
    return *value;
  }

  [[nodiscard]] std::string const& text(char const* key) const {
    auto const* const value = std::get_if<std::string>(&member(key).value);
    if (value == nullptr) {
      fail(key, "must be a text");
    }
    return *value;
  }

  [[nodiscard]] bool has(char const* key) const { return find(key) != nullptr; }

  /// Accepts the expected name alone. Other names could lead out of the directory, or twice to one
  /// file.
  [[nodiscard]] std::string file_name(char const* key, std::string const& expected) const {
    if (text(key) != expected) {
      fail(key, "must be a file name, " + expected);
    }
    return expected;
  }

  /// Calls take(object) for each element of an array of objects.
  template <class Take>
  void each(char const* key, Take&& take) const {
    auto const* const array = std::get_if<JsonNode::Array>(&member(key).value);
    if (array == nullptr) {
      fail(key, "must be an array");
    }
    for (std::size_t i = 0; i < array->size(); ++i) {
      take(Object{(*array)[i], path_, fmt::format("{}{}[{}].", prefix_, key, i)});
    }
  }

  [[noreturn]] void fail(std::string const& key, std::string const& message) const {
    throw DataError{fmt::format("{}: field {}{} {}", path_, prefix_, key, message)};
  }

 private:
  [[nodiscard]] JsonNode const* find(std::string_view key) const {
    auto const found =
        std::ranges::find_if(*members_, [&](auto const& member) { return member.name == key; });
    return found == members_->end() ? nullptr : &found->node;
  }
  [[nodiscard]] JsonNode const& member(char const* key) const {
    JsonNode const* const found = find(key);
    if (found == nullptr) {
      fail(key, "is missing");
    }
    return *found;
  }

  JsonNode::Object const* members_;
  std::string path_;
  std::string prefix_;
};

std::vector<state::Piece> parse_pieces(Object const& object, std::int64_t elements) {
  std::vector<state::Piece> pieces;
  std::int64_t offset = 0;
  object.each("pieces", [&](Object const& piece) {
    std::int64_t const left = (elements - offset) / chunk_elements;
    std::int64_t const first = piece.whole("first_chunk", 0, most_checkpoint_bytes / block_bytes);
    auto const layer = static_cast<int>(piece.whole("layer", 0, most_int));
    pieces.push_back({layer, {first, piece.whole("chunks", 1, left)}, offset});
    offset += pieces.back().chunks.count * chunk_elements;
  });
  if (offset != elements) {
    object.fail("pieces", "must hold as many elements as the subgroup");
  }
  return pieces;
}

/// Reads the entry of a subgroup that has a file of its own.
ExtentFile parse_extent_file(Object const& object, std::string const& name, std::int64_t format) {
  ExtentFile file;
  file.name = object.file_name("file", name);
  file.bytes = object.whole("file_bytes", 1, most_checkpoint_bytes);
  if (format < format_of_planes) {
    file.dataset_elements = object.whole("dataset_elements", 3 * chunk_elements, file.bytes / 4);
  }
  return file;
}

/// The group of the rank: "/rank/R/" in the file of a node.
std::string top_group(Manifest const& manifest) {
  return has_node_files(manifest.format) ? fmt::format("/rank/{}/", manifest.rank) : "/";
}

std::string place_of(Manifest const& manifest, StoredSubgroup const& subgroup, std::size_t k) {
  if (manifest.format < format_of_planes) {
    return subgroup.own_file ? extent_dataset : fmt::format("/subgroup/{}", k);
  }
  return subgroup.own_file ? "/" : fmt::format("{}subgroup/{}/", top_group(manifest), k);
}

/// Reads the name of the rank's file, or its node's.
std::string parse_file(Object const& object, Manifest const& manifest) {
  if (!has_node_files(manifest.format)) {
    return object.file_name("file", rank_file_name(manifest.rank));
  }
  std::string const& name = object.text("file");
  if (!is_node_file_name(name, manifest.ranks)) {
    object.fail("file", "must be a file name, as " + node_file_name(0));
  }
  return name;
}

/// Reads the next subgroup of a manifest.
StoredSubgroup parse_subgroup(Object const& object, Manifest const& manifest,
                              StateLayout const& layout) {
  std::size_t const index = manifest.subgroups.size();
  Bytes file_bytes = manifest.file_bytes;
  StoredSubgroup subgroup;
  if (object.has("file")) {
    subgroup.own_file =
        parse_extent_file(object, extent_file_name(manifest.rank, index), manifest.format);
    file_bytes = subgroup.own_file->bytes;
  }
  bool const has_planes = manifest.format >= format_of_planes;
  char const* const key = has_planes ? "place" : "dataset";
  std::string const place = place_of(manifest, subgroup, index);
  if (object.text(key) != place) {
    object.fail(key, "must be " + place);
  }
  subgroup.offset = object.whole("offset_bytes", 0, file_bytes);
  Bytes const room = file_bytes - subgroup.offset;
  subgroup.elements = object.whole("elements", chunk_elements,
                                   room / static_cast<Bytes>(layout.bytes_per_element()));
  if (!has_planes && subgroup.own_file &&
      subgroup.own_file->dataset_elements / 3 < subgroup.elements) {
    object.fail("dataset_elements", "must be three times the elements, or more");
  }
  if (layout.bytes(subgroup.elements) > room) {
    object.fail("elements", "must have room in the file");
  }
  if (subgroup.offset % aio::direct_alignment != 0) {
    object.fail("offset_bytes", fmt::format("must be a multiple of {}", aio::direct_alignment));
  }
  if (subgroup.elements % chunk_elements != 0) {
    object.fail("elements", fmt::format("must be a multiple of {}", chunk_elements));
  }
  auto const checksum = parse_hex(object.text("checksum"));
  if (!checksum) {
    object.fail("checksum", "must be 16 hexadecimal digits");
  }
  subgroup.checksum = *checksum;
  subgroup.pieces = parse_pieces(object, subgroup.elements);
  return subgroup;
}

/// Returns whether no two subgroups overlap. With overlaps a small file could claim a large state.
bool have_places_of_their_own(std::vector<StoredSubgroup> const& subgroups,
                              StateLayout const& layout) {
  std::vector<std::pair<Bytes, Bytes>> places;
  for (StoredSubgroup const& subgroup : subgroups) {
    if (!subgroup.own_file) {
      places.emplace_back(subgroup.offset, subgroup.offset + layout.bytes(subgroup.elements));
    }
  }
  std::ranges::sort(places);
  return std::ranges::adjacent_find(places, [](auto const& a, auto const& b) {
           return b.first < a.second;
         }) == places.end();
}

void append_json(Manifest const& manifest, std::size_t k, std::string& text) {
  StoredSubgroup const& subgroup = manifest.subgroups[k];
  text += fmt::format("  {{\n   \"place\": {},\n", quoted(manifest.place(k)));
  if (auto const& own = subgroup.own_file) {
    text +=
        fmt::format("   \"file\": {},\n   \"file_bytes\": {},\n", quoted(own->name), own->bytes);
  }
  text += fmt::format(
      "   \"offset_bytes\": {},\n   \"elements\": {},\n   \"checksum\": \"{}\",\n   \"pieces\": [",
      subgroup.offset, subgroup.elements, to_hex(subgroup.checksum));
  for (std::size_t i = 0; i < subgroup.pieces.size(); ++i) {
    state::Piece const& piece = subgroup.pieces[i];
    text += fmt::format(
        "{}\n    {{\n     \"layer\": {},\n     \"first_chunk\": {},\n     \"chunks\": {}\n    }}",
        i == 0 ? "" : ",", piece.layer, piece.chunks.first, piece.chunks.count);
  }
  text += subgroup.pieces.empty() ? "]\n  }" : "\n   ]\n  }";
}

}  // namespace

std::int64_t StoredSubgroup::blocks(StateLayout const& layout) const {
  return ceil_div(layout.bytes(elements), block_bytes);
}

std::string Manifest::place(std::size_t k) const {
  return place_of(*this, subgroups.at(k), k);
}

std::string Manifest::checksum_name(std::size_t k) const {
  return fmt::format("{}checksum/{}", top_group(*this), k);
}

std::string to_json(Manifest const& manifest) {
  std::string text = fmt::format(
      "{{\n \"format_version\": {},\n \"rank\": {},\n \"ranks\": {},\n \"file\": {},\n"
      " \"file_bytes\": {},\n \"subgroups\": [",
      manifest.format, manifest.rank, manifest.ranks, quoted(manifest.file), manifest.file_bytes);
  for (std::size_t k = 0; k < manifest.subgroups.size(); ++k) {
    text += k == 0 ? "\n" : ",\n";
    append_json(manifest, k, text);
  }
  return text + (manifest.subgroups.empty() ? "]\n}\n" : "\n ]\n}\n");
}

Manifest parse_manifest(std::string const& text, StateLayout const& layout,
                        std::string const& path) {
  require_within(std::ssize(text), 0, most_manifest_bytes, "its size", path);
  JsonNode const json = parse_json(text, path);
  Object const object{json, path, ""};
  Manifest manifest;
  manifest.format = object.whole("format_version", 1, format_version);
  manifest.ranks = static_cast<int>(object.whole("ranks", 1, most_int));
  manifest.rank = static_cast<int>(object.whole("rank", 0, manifest.ranks - 1));
  manifest.file = parse_file(object, manifest);
  manifest.file_bytes = object.whole("file_bytes", 1, most_checkpoint_bytes);
  object.each("subgroups", [&](Object const& subgroup) {
    manifest.subgroups.push_back(parse_subgroup(subgroup, manifest, layout));
  });
  if (!have_places_of_their_own(manifest.subgroups, layout)) {
    object.fail("subgroups", "must not share bytes of the file");
  }
  return manifest;
}

}  // namespace offstage::checkpoint
