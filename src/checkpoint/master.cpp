#include "checkpoint/master.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/printable.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/plausible.hpp"
#include "platform/h5/file.hpp"

namespace offstage::checkpoint {
namespace {

/// The first format with variants of families and a loss scale. Format 1 knew one family.
constexpr std::int64_t format_of_variants = 2;
/// The first format with extent files.
constexpr std::int64_t format_of_extents = 3;

constexpr std::size_t widest_name = 64;  // the longest name of a file of a checkpoint

/// Calls visit(key, value) for each property of a model but its family, with its configuration key.
template <class Model, class Visit>
void visit_model(Model& model, std::int64_t format, Visit&& visit) {
  visit("model.layers", model.layers);
  visit("model.hidden", model.hidden);
  visit("model.heads", model.heads);
  visit("model.kv-heads", model.kv_heads);
  visit("model.ffn-hidden", model.ffn_hidden);
  visit("model.vocab", model.vocab);
  visit("model.max-sequence", model.max_sequence);
  visit("model.tied-head", model.tied_head);
  visit("model.rope-theta", model.rope_theta);
  visit("model.norm-eps", model.norm_epsilon);
  if (format >= format_of_variants) {
    visit("model.qkv-bias", model.qkv_bias);
    visit("model.rope-scaling", model.rope_scaling);
    visit("model.rope-factor", model.rope_factor);
    visit("model.rope-low-frequency", model.rope_low_frequency);
    visit("model.rope-high-frequency", model.rope_high_frequency);
    visit("model.rope-original-sequence", model.rope_original_sequence);
  }
}

/// Calls visit(key, value, default) for properties that later programs added. A file has those keys
/// that are not at their defaults. A program that does not know them finds another checksum.
template <class Model, class Visit>
void visit_later_model(Model& model, Visit&& visit) {
  state::ModelShape const plain;
  visit("model.head-dim", model.head_size, plain.head_size);
  visit("model.qk-norm", model.qk_norm, plain.qk_norm);
  visit("model.norms-after", model.norms_after, plain.norms_after);
  visit("model.window", model.window, plain.window);
  visit("model.rope-attention-factor", model.rope_attention_factor, plain.rope_attention_factor);
  visit("model.exact-gelu", model.exact_gelu, plain.exact_gelu);
}

template <class AnyMeta, class Visit>
void visit_meta(AnyMeta& meta, std::int64_t format, Visit&& visit) {
  visit("step", meta.step);
  visit("samples", meta.samples);
  visit("seed", meta.seed);
  visit("loss_scale", meta.loss_scale);
  visit("learning_rate", meta.learning_rate);
  visit("bad_steps", meta.bad_steps);
  visit("optimizer_step", meta.optimizer_step);
  visit("configuration", meta.configuration);
  visit("program", meta.program);
  visit("threads", meta.threads);
  visit("ranks", meta.ranks);
  if (format >= format_of_variants) {
    visit("loss_scale_steps", meta.loss_scale_steps);
  }
  if (format >= format_of_planes) {
    visit("optimizer", meta.state.optimizer);
    visit("moments", meta.state.moments);
    visit("planes", meta.state.layout);
  }
  visit_model(meta.model, format, visit);
}

constexpr char const* family_key = "model.family";

/// The enumerator with this name. Errors: Refused.
template <class Enum>
Enum named(std::initializer_list<Enum> known, std::string const& name, char const* key) {
  for (Enum const value : known) {
    if (name == name_of(value)) {
      return value;
    }
  }
  throw Refused{fmt::format("it has {}={}, which this program does not know; use a newer offstage",
                            key, printable_name(name))};
}

std::string text_of(auto const& value) {
  return fmt::format("{}", value);
}
std::string text_of(state::RopeScaling value) {
  return name_of(value);
}
std::string text_of(state::QkNorm value) {
  return name_of(value);
}
std::string text_of(StateLayout const& layout) {
  return to_text(layout);
}

/// The checksum of every value that read_master returns. HDF5 checksums its metadata, but not the
/// data in arrays.
std::uint64_t checksum_of_format(Master const& master, std::int64_t format) {
  std::string text = fmt::format("{}={}\n", family_key, name_of(master.meta.model.family));
  visit_meta(master.meta, format, [&](char const* key, auto const& value) {
    text += fmt::format("{}={}\n", key, text_of(value));
  });
  visit_later_model(master.meta.model,
                    [&](char const* key, auto const& value, auto const& otherwise) {
                      if (value != otherwise) {
                        text += fmt::format("{}={}\n", key, text_of(value));
                      }
                    });
  if (master.meta.start != 0) {
    text += fmt::format("start={}\n", master.meta.start);
  }
  for (RankEntry const& entry : master.ranks) {
    text += fmt::format("{} {} {} {}\n", entry.file, entry.file_bytes, entry.manifest,
                        to_hex(entry.manifest_checksum));
  }
  for (ExtentEntry const& entry : master.extents) {
    text += fmt::format("{} {}\n", entry.file, entry.bytes);
  }
  return checksum_of(std::string_view{text});
}

void set(h5::File& file, char const* key, bool value) {
  file.set(key, static_cast<std::int64_t>(value));
}
void set(h5::File& file, char const* key, state::RopeScaling value) {
  file.set(key, std::string{name_of(value)});
}
void set(h5::File& file, char const* key, state::QkNorm value) {
  file.set(key, std::string{name_of(value)});
}
void set(h5::File& file, char const* key, StateLayout const& layout) {
  file.set(key, to_text(layout));
}
template <class T>
void set(h5::File& file, char const* key, T const& value) {
  file.set(key, value);
}

void get(h5::File const& file, char const* key, bool& value) {
  value = file.number<std::int64_t>(key) != 0;
}
void get(h5::File const& file, char const* key, std::string& value) {
  value = file.text(key);
}
void get(h5::File const& file, char const* key, state::RopeScaling& value) {
  value = named({state::RopeScaling::none, state::RopeScaling::linear, state::RopeScaling::llama3,
                 state::RopeScaling::yarn},
                file.text(key), key);
}
void get(h5::File const& file, char const* key, state::QkNorm& value) {
  value =
      named({state::QkNorm::none, state::QkNorm::head, state::QkNorm::all}, file.text(key), key);
}
void get(h5::File const& file, char const* key, StateLayout& layout) {
  auto found = parse_layout(file.text(key));
  if (!found) {
    throw Refused{
        fmt::format("it has {}={}, which this program does not know; use a newer offstage", key,
                    printable_name(file.text(key)))};
  }
  layout = *std::move(found);
}
template <class T>
void get(h5::File const& file, char const* key, T& value) {
  value = file.number<T>(key);
}

/// A piece of a layer in a file.
struct LayerPiece {
  Manifest const& manifest;
  std::size_t subgroup{};
  std::int64_t column{};  ///< the first element in the subgroup
  std::int64_t begin{};   ///< elements of the layer
  std::int64_t end{};
};

std::vector<std::vector<LayerPiece>> pieces_by_layer(std::span<Manifest const> manifests,
                                                     std::size_t layers) {
  std::vector<std::vector<LayerPiece>> pieces(layers);
  for (Manifest const& manifest : manifests) {
    for (std::size_t k = 0; k < manifest.subgroups.size(); ++k) {
      StoredSubgroup const& subgroup = manifest.subgroups[k];
      for (state::Piece const& of : subgroup.pieces) {
        std::int64_t const begin = of.chunks.first * chunk_elements;
        pieces.at(static_cast<std::size_t>(of.layer))
            .push_back({manifest, k, of.offset, begin, begin + of.chunks.count * chunk_elements});
      }
    }
  }
  return pieces;
}

/// Elements [begin, end) of a tensor as up to three boxes: the rest of a row, whole rows, the start
/// of a row.
std::vector<h5::Block> boxes_of(state::TensorLayout const& tensor, std::int64_t begin,
                                std::int64_t end) {
  if (tensor.columns == 0) {
    return {{{begin}, {end - begin}}};
  }
  std::vector<h5::Block> boxes;
  while (begin < end) {
    std::int64_t const row = begin / tensor.columns;
    std::int64_t const column = begin % tensor.columns;
    std::int64_t const rows = column == 0 ? (end - begin) / tensor.columns : 0;
    std::int64_t const columns =
        rows > 0 ? tensor.columns : std::min(tensor.columns - column, end - begin);
    boxes.push_back({{row, column}, {std::max<std::int64_t>(1, rows), columns}});
    begin += std::max<std::int64_t>(1, rows) * columns;
  }
  return boxes;
}

/// `count` elements of a plane from `column` on.
h5::Mapping source_of(LayerPiece const& piece, Plane const& plane, std::int64_t column,
                      std::int64_t count) {
  StoredSubgroup const& stored = piece.manifest.subgroups[piece.subgroup];
  return {.target = {},
          .file = stored.own_file ? stored.own_file->name : piece.manifest.file,
          .dataset = piece.manifest.place(piece.subgroup) + plane.name,
          .shape = {stored.elements},
          .source = {{column}, {count}}};
}

std::vector<h5::Mapping> mappings_of(state::TensorLayout const& tensor, Plane const& plane,
                                     std::span<LayerPiece const> pieces) {
  std::vector<h5::Mapping> mappings;
  for (LayerPiece const& piece : pieces) {
    std::int64_t const begin = std::max(piece.begin, tensor.offset);
    std::int64_t const end = std::min(piece.end, tensor.offset + tensor.elements());
    if (begin >= end) {
      continue;
    }
    std::int64_t column = piece.column + begin - piece.begin;
    for (h5::Block& box : boxes_of(tensor, begin - tensor.offset, end - tensor.offset)) {
      std::int64_t const count = h5::elements_of(box.count);
      mappings.push_back(source_of(piece, plane, column, count));
      mappings.back().target = std::move(box);
      column += count;
    }
  }
  return mappings;
}

/// Calls visit(name, type, shape, mappings) for each plane of every tensor that has a value for
/// each element.
template <class Visit>
void visit_tensors(Meta const& meta, std::span<Manifest const> manifests, Visit&& visit) {
  if (manifests.empty()) {
    return;
  }
  auto const layers = state::layers_of(meta.model);
  auto const pieces = pieces_by_layer(manifests, layers.size());
  for (std::size_t l = 0; l < layers.size(); ++l) {
    for (state::TensorLayout const& tensor : layers[l].tensors) {
      h5::Shape shape{tensor.rows};
      if (tensor.columns > 0) {
        shape.push_back(tensor.columns);
      }
      for (Plane const& plane : meta.state.layout.planes()) {
        if (plane.elements_per_value == 1) {
          visit(fmt::format("/{}/{}", plane.name, tensor.name), dataset_type(plane), shape,
                mappings_of(tensor, plane, pieces[l]));
        }
      }
    }
  }
}

/// The names of the planes after the parameter: "momentum, variance"; "none" if there are none.
std::string names_of_moments(StateLayout const& layout) {
  std::string names;
  for (Plane const& plane : layout.planes()) {
    if (plane.elements_per_value == 1 && plane.name != "parameter") {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", plane.name);
    }
  }
  return names.empty() ? "none" : names;
}

void write_ranks(h5::File& file, std::vector<RankEntry> const& ranks) {
  std::vector<std::string> files;
  std::vector<std::string> manifests;
  std::vector<std::int64_t> bytes;
  std::vector<std::uint64_t> checksums;
  for (RankEntry const& entry : ranks) {
    files.push_back(entry.file);
    manifests.push_back(entry.manifest);
    bytes.push_back(entry.file_bytes);
    checksums.push_back(entry.manifest_checksum);
  }
  h5::Shape const shape{static_cast<std::int64_t>(ranks.size())};
  file.write("/rank/file", files);
  file.write<std::int64_t>("/rank/file_bytes", shape, bytes);
  file.write("/rank/manifest", manifests);
  file.write<std::uint64_t>("/rank/manifest_checksum", shape, checksums);
}

/// The entries of all ranks. `format`: the master's.
std::vector<RankEntry> read_ranks(h5::File const& file, std::int64_t count, std::int64_t format,
                                  std::string const& path) {
  require_within(count, 1, most_ranks, "ranks", path);
  auto const files = file.read_texts("/rank/file", count, widest_name);
  auto const bytes = file.read<std::int64_t>("/rank/file_bytes", {count});
  auto const manifests = file.read_texts("/rank/manifest", count, widest_name);
  auto const checksums = file.read<std::uint64_t>("/rank/manifest_checksum", {count});
  std::vector<RankEntry> ranks;
  for (std::size_t r = 0; r < files.size(); ++r) {
    auto const rank = static_cast<int>(r);
    bool const of_nodes = has_node_files(format);
    bool const good =
        of_nodes ? is_node_file_name(files[r], count) : files[r] == rank_file_name(rank);
    if (!good || manifests[r] != manifest_name(rank)) {
      throw DataError{fmt::format("{}: it does not name {} and {}; the file is damaged", path,
                                  of_nodes ? "the file of a node" : rank_file_name(rank),
                                  manifest_name(rank))};
    }
    ranks.push_back({files[r], bytes[r], manifests[r], checksums[r]});
  }
  return ranks;
}

void write_extents(h5::File& file, std::vector<ExtentEntry> const& extents) {
  file.set("extents", std::ssize(extents));
  if (extents.empty()) {
    return;
  }
  std::vector<std::string> files;
  std::vector<std::int64_t> bytes;
  for (ExtentEntry const& entry : extents) {
    files.push_back(entry.file);
    bytes.push_back(entry.bytes);
  }
  file.write("/extent/file", files);
  file.write<std::int64_t>("/extent/file_bytes", {std::ssize(extents)}, bytes);
}

std::vector<ExtentEntry> read_extents(h5::File const& file, std::string const& path) {
  std::vector<ExtentEntry> extents;
  auto const count = file.number<std::int64_t>("extents");
  require_within(count, 0, most_extents, "extents", path);
  if (count == 0) {
    return extents;
  }
  auto const files = file.read_texts("/extent/file", count, widest_name);
  auto const bytes = file.read<std::int64_t>("/extent/file_bytes", {count});
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (!is_extent_file_name(files[i])) {
      throw DataError{fmt::format(
          "{}: its extent {} does not have an extent's name; the file is damaged", path, i)};
    }
    extents.push_back({files[i], bytes[i]});
  }
  return extents;
}

std::int64_t readable_format(h5::File const& file, std::string const& step_directory) {
  auto const format = file.number<std::int64_t>("format_version");
  if (format > format_version) {
    throw Refused{fmt::format(
        "checkpoint {} has format {}, this program reads up to {}; use a newer offstage",
        step_directory, format, format_version)};
  }
  if (format < 1) {
    throw DataError{fmt::format("checkpoint {} has format {}, which never existed; it is damaged",
                                step_directory, format)};
  }
  return format;
}

/// Reads everything in a master beside its tensors. Errors: as read_master's.
Master read(h5::File const& file, std::string const& path) {
  std::string const step_directory = std::filesystem::path{path}.parent_path().string();
  Master master;
  std::int64_t const format = master.format = readable_format(file, step_directory);
  try {
    master.meta.model.family =
        named({state::Family::llama, state::Family::gpt2}, file.text(family_key), family_key);
    visit_meta(master.meta, format, [&](char const* key, auto& value) { get(file, key, value); });
    visit_later_model(master.meta.model, [&](char const* key, auto& value, auto const&) {
      if (file.has(key)) {
        get(file, key, value);
      }
    });
  } catch (Refused const& refused) {
    throw Refused{fmt::format("checkpoint {}: {}", step_directory, refused.what())};
  }
  if (file.has("start")) {
    master.meta.start = file.number<std::uint64_t>("start");
  }
  master.ranks = read_ranks(file, master.meta.ranks, format, path);
  if (format >= format_of_extents) {
    master.extents = read_extents(file, path);
  }
  if (file.number<std::uint64_t>("checksum") != checksum_of_format(master, format)) {
    throw DataError{path + ": its contents do not match their checksum; the file is damaged"};
  }
  require_plausible(master, path);
  return master;
}

void write(h5::File& file, Master const& master, std::span<Manifest const> manifests) {
  file.set("format_version", master.format);
  file.set(family_key, std::string{name_of(master.meta.model.family)});
  visit_meta(master.meta, master.format,
             [&](char const* key, auto const& value) { set(file, key, value); });
  visit_later_model(master.meta.model,
                    [&](char const* key, auto const& value, auto const& otherwise) {
                      if (value != otherwise) {
                        set(file, key, value);
                      }
                    });
  if (master.meta.start != 0) {
    file.set("start", master.meta.start);
  }
  write_ranks(file, master.ranks);
  write_extents(file, master.extents);
  file.set("checksum", checksum_of_contents(master));
  if (manifests.empty()) {
    file.set("tensors", std::string{"not shown; offstage export writes the parameters"});
  }
  visit_tensors(master.meta, manifests,
                [&](std::string const& name, h5::Type type, h5::Shape const& shape,
                    std::vector<h5::Mapping> const& parts) { file.map(name, type, shape, parts); });
}

}  // namespace

bool can_show(std::span<Manifest const> manifests, StateLayout const& layout) {
  constexpr std::int64_t most_pieces = 32768;
  std::int64_t pieces = 0;
  for (Manifest const& manifest : manifests) {
    for (StoredSubgroup const& subgroup : manifest.subgroups) {
      pieces += std::ssize(subgroup.pieces);
    }
  }
  return pieces * std::ssize(layout.planes()) <= most_pieces;
}

void write_master(std::string const& path, Master const& master,
                  std::span<Manifest const> manifests) {
  h5::File file = h5::File::create(path);
  write(file, master, manifests);
  file.close();
}

std::string pack_master(Master const& master, std::string const& step_directory) {
  h5::File file = h5::File::create_in_memory(step_directory + "/" + master_name);
  // An attribute of such a file has less than 64 KiB. The configuration may be longer, as it may
  // name many files, and is packed in front.
  Master rest = master;
  std::string const configuration = std::exchange(rest.meta.configuration, {});
  write(file, rest, {});
  auto const size = static_cast<std::uint64_t>(configuration.size());
  std::string bytes(sizeof size, '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  return bytes + configuration + file.image();
}

Master unpack_master(std::string const& bytes, std::string const& step_directory) {
  std::string const path = step_directory + "/" + master_name;
  std::uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof size);
  Master master = read(h5::File::open_image(bytes.substr(sizeof size + size), path), path);
  master.meta.configuration = bytes.substr(sizeof size, size);
  return master;
}

void read_back_master(std::string const& path, Master const& master,
                      std::span<Manifest const> manifests) {
  try {
    h5::File const file = h5::File::open_read(path);
    Master const found = read(file, path);
    if (found.format != master.format ||
        checksum_of_contents(found) != checksum_of_contents(master)) {
      throw DataError{path + ": it holds other values"};
    }
    visit_tensors(master.meta, manifests,
                  [&](std::string const& name, h5::Type /*type*/, h5::Shape const& shape,
                      std::vector<h5::Mapping> const& parts) {
                    if (file.parts(name, shape) != std::ssize(parts)) {
                      throw DataError{fmt::format("{}: {} shows other parts", path, name)};
                    }
                  });
  } catch (DataError const& error) {
    throw not_as_written(error);
  }
}

Master read_master(std::string const& step_directory) {
  std::string const path = step_directory + "/" + master_name;
  return read(h5::File::open_read(path), path);
}

std::uint64_t checksum_of_contents(Master const& master) {
  return checksum_of_format(master, master.format);
}

IoError not_as_written(DataError const& error) {
  return IoError{
      fmt::format("a file that was just written reads back differently: {}", error.what())};
}

Bytes require_file(std::string const& path, Bytes bytes) {
  auto const found = size_of_file(path);
  if (!found) {
    throw DataError{path + " is missing"};
  }
  if (*found != bytes) {
    throw DataError{
        fmt::format("{} has {} bytes, expected {}; the file is damaged", path, *found, bytes)};
  }
  return bytes;
}

Bytes require_files(std::string const& step_directory, RankEntry const& rank) {
  std::string const manifest = fmt::format("{}/{}", step_directory, rank.manifest);
  auto const manifest_bytes = size_of_file(manifest);
  if (!manifest_bytes) {
    throw DataError{manifest + " is missing"};
  }
  require_within(*manifest_bytes, 1, most_manifest_bytes, "its size", manifest);
  return require_file(fmt::format("{}/{}", step_directory, rank.file), rank.file_bytes) +
         *manifest_bytes;
}

void require_same_model(std::string const& step_directory, state::ModelShape const& stored,
                        state::ModelShape const& run) {
  if (same_parameters(stored, run)) {
    return;
  }
  auto with_its_sequence = run;
  with_its_sequence.max_sequence = stored.max_sequence;
  if (same_parameters(stored, with_its_sequence)) {
    throw Refused{fmt::format(
        "checkpoint {} is of a model for sequences of {} tokens, with as many learned positions, "
        "and model.max-sequence={} (train.sequence unless it is given) is not; give "
        "model.max-sequence={}",
        step_directory, stored.max_sequence, run.max_sequence, stored.max_sequence)};
  }
  throw Refused{
      fmt::format("checkpoint {} is of another model ({}); use its model.* keys, or another "
                  "run.dir or checkpoint.resume",
                  step_directory, differences(stored, "checkpoint", run, "run"))};
}

void require_same_optimizer(std::string const& step_directory, OptimizerState const& stored,
                            OptimizerState const& run) {
  if (stored.optimizer != run.optimizer) {
    throw Refused{fmt::format(
        "checkpoint {} is of another optimizer (optimizer.kind: checkpoint {}, run {}); use its "
        "optimizer.kind, or start afresh from its parameters with train.init-from={} and another "
        "run.dir",
        step_directory, printable_name(stored.optimizer), run.optimizer, step_directory)};
  }
  if (names_of_moments(stored.layout) != names_of_moments(run.layout)) {
    throw Refused{fmt::format(
        "checkpoint {} has other moments ({}) than the run ({}); use its optimizer.momentum, or "
        "start afresh from its parameters with train.init-from={} and another run.dir",
        step_directory, names_of_moments(stored.layout), names_of_moments(run.layout),
        step_directory)};
  }
}

}  // namespace offstage::checkpoint
