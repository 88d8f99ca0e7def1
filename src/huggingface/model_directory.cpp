#include "huggingface/model_directory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "base/chunk.hpp"
#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/printable.hpp"
#include "base/regular_file.hpp"
#include "huggingface/config.hpp"
#include "huggingface/file.hpp"
#include "huggingface/json_text.hpp"
#include "huggingface/names.hpp"

namespace offstage::huggingface {
namespace {

constexpr Bytes largest_config = 4 * MiB;
constexpr Bytes largest_index = 64 * MiB;
/// Of Linux's file systems.
constexpr std::size_t longest_file_name = 255;

bool is_shard(std::string const& name) {
  return (name.starts_with("model-") && name.ends_with(".safetensors")) ||
         (name.starts_with("pytorch_model-") && name.ends_with(".bin"));
}

/// A Trainer's directory has optimizer.pt and training_args.bin too.
bool holds_weights(std::string const& name) {
  bool const is_model = name.starts_with("model") || name.starts_with("pytorch_model");
  return name.ends_with(".safetensors") || name.ends_with(".gguf") || name.ends_with(".pth") ||
         (is_model && (name.ends_with(".bin") || name.ends_with(".pt")));
}

/// Which file holds a tensor, by the name in the files.
using WeightMap = std::map<std::string, std::string>;

WeightMap read_index(std::string const& path) {
  JsonTree const parsed = parse_object(read_text(path, largest_index), path);
  nlohmann::json const& index = *parsed;
  auto const found = index.find("weight_map");
  if (found == index.end() || !found->is_object()) {
    throw DataError{path + ": has no weight_map, an object of tensors and their files"};
  }
  WeightMap map;
  for (auto const& [tensor, file] : found->items()) {
    if (!file.is_string()) {
      throw DataError{
          fmt::format("{}: weight_map names no file for '{}'", path, printable_name(tensor))};
    }
    auto const& name = file.get_ref<std::string const&>();
    bool const plain = !name.empty() && name.size() <= longest_file_name && name != "." &&
                       name != ".." && name.find('/') == std::string::npos &&
                       name.find('\0') == std::string::npos;
    if (!plain) {
      throw DataError{fmt::format("{}: weight_map names '{}' for '{}', which is no file name", path,
                                  printable_name(name), printable_name(tensor))};
    }
    map.emplace(tensor, name);
  }
  return map;
}

/// Buffers that older versions of transformers stored beside the parameters; computed, not learnt.
bool is_buffer(state::ModelShape const& shape, std::string const& name) {
  if (shape.family == state::Family::gpt2) {
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  }
  return name.ends_with(".rotary_emb.inv_freq");
}

std::string_view prefix_of(state::ModelShape const& shape) {
  return shape.family == state::Family::gpt2 ? gpt2_prefix : llama_prefix;
}

/// Offstage's name of a tensor in a file: a model that was saved without its head lacks the prefix.
std::string own_name(state::ModelShape const& shape, std::string const& name) {
  std::string const prefix{prefix_of(shape)};
  return name != head_name && !name.starts_with(prefix) ? prefix + name : name;
}

/// A part of a fused tensor: some of its rows.
struct Part {
  std::string name;  ///< Offstage's
  std::int64_t rows{};
};
/// The parts of a fused tensor, one behind the other; empty: the tensor is not fused.
std::vector<Part> parts_of_fused(state::ModelShape const& shape, std::string_view own) {
  auto const without = [&](std::string_view ending) {
    return std::string{own.substr(0, own.size() - ending.size())};
  };
  if (constexpr std::string_view fused = "qkv_proj.weight"; own.ends_with(fused)) {
    std::int64_t const kv_rows = shape.kv_heads * shape.head_dim();
    return {{without(fused) + "q_proj.weight", shape.heads * shape.head_dim()},
            {without(fused) + "k_proj.weight", kv_rows},
            {without(fused) + "v_proj.weight", kv_rows}};
  }
  if (constexpr std::string_view fused = "gate_up_proj.weight"; own.ends_with(fused)) {
    return {{without(fused) + "gate_proj.weight", shape.ffn_hidden},
            {without(fused) + "up_proj.weight", shape.ffn_hidden}};
  }
  return {};
}

void require_shape(TensorEntry const& tensor, std::vector<std::int64_t> const& wanted,
                   std::string const& path) {
  if (tensor.shape != wanted) {
    throw DataError{fmt::format("{}: tensor '{}' has the shape {}, but config.json asks for {}",
                                path, printable_name(tensor.name), shape_text(tensor.shape),
                                shape_text(wanted))};
  }
}

void require_fits(state::TensorLayout const& layout, TensorEntry const& tensor,
                  std::string const& path) {
  if (tensor.dtype != "F32" && tensor.dtype != "BF16" && tensor.dtype != "F16") {
    throw DataError{fmt::format("{}: tensor '{}' is of dtype {}; F32, BF16 and F16 are read", path,
                                printable_name(tensor.name), tensor.dtype)};
  }
  require_shape(tensor, shape_of(layout), path);
}

/// The tensor that a tied head shares.
state::TensorLayout const& embedding_of(std::vector<state::LayerLayout> const& layers) {
  return layers.front().tensors.front();
}

template <class T>
bool same_rounded(float a, float b) {
  return store<T>(a) == store<T>(b);
}

/// True if numbers of two tensors of these dtypes are the same, up to the rounding of one that went
/// from FP32 to 16 bits.
bool are_same(float a, float b, std::string_view dtype_a, std::string_view dtype_b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) {
    return true;
  }
  if (dtype_a == dtype_b || (dtype_a != "F32" && dtype_b != "F32")) {
    return false;
  }
  bool const bf16 = dtype_a == "BF16" || dtype_b == "BF16";
  return bf16 ? same_rounded<bfloat16>(a, b) : same_rounded<float16>(a, b);
}

}  // namespace

ModelDirectory::ModelDirectory(std::string const& directory) : directory_{directory} {
  if (is_there(directory + "/" + adapter_name)) {
    throw DataError{fmt::format(
        "{}: has {}: PEFT adds an adapter such as LoRA to the weights, and adapters are not read; "
        "merge it: AutoPeftModelForCausalLM.from_pretrained(DIR).merge_and_unload()"
        ".save_pretrained(NEW); take the file out if the weights have it already",
        directory, adapter_name)};
  }
  std::string const config = directory + "/" + config_name;
  std::string const text = read_text(config, largest_config);
  shape_ = parse_config(text, config);
  if (std::string const dropout = dropout_in(text, config); !dropout.empty()) {
    left_out_ = fmt::format("{} has {}: training here is without dropout", config, dropout);
  }
  layers_ = state::layers_of(shape_);
  if (is_there(directory + "/" + single_name)) {
    open(single_name);
  } else if (is_there(directory + "/" + index_name)) {
    open_shards(directory + "/" + index_name);
  } else if (is_there(directory + "/" + torch_name)) {
    open(torch_name);
  } else if (is_there(directory + "/" + torch_index_name)) {
    open_shards(directory + "/" + torch_index_name);
  } else if (is_there(directory + "/zero_to_fp32.py")) {
    throw DataError{directory +
                    ": is a checkpoint of DeepSpeed; the zero_to_fp32.py in it writes a directory "
                    "with pytorch_model.bin, into which the model's config.json belongs"};
  } else if (auto const shard = first_name(directory, is_shard)) {
    throw DataError{fmt::format(
        "{}: has {}, but {} is missing, which says what tensors each file has", directory,
        printable_name(*shard), shard->ends_with(".bin") ? torch_index_name : index_name)};
  } else if (auto const other = first_name(directory, holds_weights)) {
    throw DataError{fmt::format(
        "{}: has {}, but neither {} nor {}, whose names and layout are read; write it with "
        "transformers: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(DIR)",
        directory, printable_name(*other), single_name, torch_name)};
  } else {
    open(single_name);
  }
  require_all();
}

TensorFile const& ModelDirectory::open(std::string const& name) {
  TensorFile const& file =
      *files_.emplace_back(std::make_unique<TensorFile>(directory_ + "/" + name));
  for (auto const& [tensor, entry] : file.tensors()) {
    if (!is_buffer(shape_, own_name(shape_, tensor))) {
      enter(file, entry);
    }
  }
  return file;
}

void ModelDirectory::enter(TensorFile const& file, TensorEntry const& tensor) {
  std::string const own = own_name(shape_, tensor.name);
  auto const enter_as = [&](std::string const& name, TensorEntry entry) {
    auto const [place, fresh] = places_.emplace(name, Place{&file, std::move(entry)});
    if (!fresh) {
      throw DataError{fmt::format("{}: has the tensor '{}', which is in {} already", file.path(),
                                  printable_name(tensor.name), place->second.file->path())};
    }
  };
  auto const parts = parts_of_fused(shape_, own);
  if (parts.empty()) {
    enter_as(own, tensor);
    return;
  }
  std::int64_t rows = 0;
  for (Part const& part : parts) {
    rows += part.rows;
  }
  require_shape(tensor, {rows, shape_.hidden}, file.path());
  Bytes const row_bytes = (tensor.end - tensor.begin) / rows;
  TensorEntry entry = tensor;
  for (Part const& part : parts) {
    entry.shape = {part.rows, shape_.hidden};
    entry.end = entry.begin + part.rows * row_bytes;
    enter_as(part.name, entry);
    entry.begin = entry.end;
  }
}

void ModelDirectory::open_shards(std::string const& index) {
  WeightMap const map = read_index(index);
  std::map<std::string, TensorFile const*> opened;
  for (auto const& [tensor, name] : map) {
    auto [place, fresh] = opened.try_emplace(name, nullptr);
    if (fresh) {
      place->second = &open(name);
    }
    if (!place->second->tensors().contains(tensor)) {
      throw DataError{fmt::format("{}: weight_map finds '{}' in {}, which does not have it", index,
                                  printable_name(tensor), printable_name(name))};
    }
  }
}

std::string ModelDirectory::found_instead_of(std::string const& name) const {
  std::string_view bare = name;
  if (bare.starts_with(prefix_of(shape_))) {
    bare.remove_prefix(prefix_of(shape_).size());
  }
  for (auto const& [other, place] : places_) {
    if (!other.ends_with(fmt::format(".{}", bare))) {
      continue;
    }
    std::string const& there = place.tensor.name;
    bool const is_wrapped = there.starts_with("module.") || there.starts_with("_orig_mod.");
    return fmt::format("; {} has '{}'{}", place.file->path(), printable_name(there),
                       is_wrapped ? ": save the model in the wrapper, model.module of DDP or "
                                    "model._orig_mod of torch.compile"
                                  : "");
  }
  return {};
}

void ModelDirectory::require_all() const {
  std::set<std::string> known;
  for (state::LayerLayout const& layer : layers_) {
    for (state::TensorLayout const& layout : layer.tensors) {
      known.insert(layout.name);
      auto const place = places_.find(layout.name);
      if (place == places_.end()) {
        throw DataError{fmt::format("{}: has no tensor '{}'{}", directory_, layout.name,
                                    found_instead_of(layout.name))};
      }
      require_fits(layout, place->second.tensor, place->second.file->path());
    }
  }
  if (auto const head = places_.find(head_name); shape_.tied_head && head != places_.end()) {
    known.insert(head_name);
    require_fits(embedding_of(layers_), head->second.tensor, head->second.file->path());
  }
  for (auto const& [name, place] : places_) {
    if (!known.contains(name)) {
      throw DataError{fmt::format("{}: has a tensor '{}', which the model of config.json does not",
                                  place.file->path(), printable_name(place.tensor.name))};
    }
  }
}

/// Compares numbers of the embedding, from number `first` on, with a head that stands in the files,
/// too. Errors: DataError if they differ.
void ModelDirectory::require_same_head(Place const& embedding, std::int64_t first,
                                       std::span<float const> numbers) const {
  auto const found = places_.find(head_name);
  if (!shape_.tied_head || found == places_.end()) {
    return;
  }
  Place const& head = found->second;
  std::array<float, chunk_elements> room;
  for (std::size_t done = 0; done < numbers.size(); done += room.size()) {
    auto const part = numbers.subspan(done, std::min(room.size(), numbers.size() - done));
    auto const others = std::span{room}.first(part.size());
    head.file->read(head.tensor, first + static_cast<std::int64_t>(done), others);
    bool const same = std::ranges::equal(part, others, [&](float a, float b) {
      return are_same(a, b, embedding.tensor.dtype, head.tensor.dtype);
    });
    if (!same) {
      throw DataError{fmt::format(
          "{}: tensor '{}' differs from '{}', but {} ties them (tie_word_embeddings); write "
          "tie_word_embeddings=false there if the head has weights of its own, or take the tensor "
          "out",
          head.file->path(), head_name, printable_name(embedding.tensor.name), config_name)};
    }
  }
}

void ModelDirectory::read(int layer, state::ChunkRange chunks, std::span<float> out) {
  state::LayerLayout const& layout = layers_.at(static_cast<std::size_t>(layer));
  require(static_cast<std::int64_t>(out.size()) == chunks.count * chunk_elements &&
              chunks.first >= 0 && chunks.first + chunks.count <= layout.chunks(),
          "ModelDirectory: chunks of the layer and their room");
  std::int64_t const begin = chunks.first * chunk_elements;
  std::int64_t const end = begin + chunks.count * chunk_elements;
  for (state::TensorLayout const& tensor : layout.tensors) {
    std::int64_t const from = std::max(begin, tensor.offset);
    std::int64_t const to = std::min(end, tensor.offset + tensor.elements());
    if (from < to) {
      Place const& place = places_.at(tensor.name);
      auto const part =
          out.subspan(static_cast<std::size_t>(from - begin), static_cast<std::size_t>(to - from));
      place.file->read(place.tensor, from - tensor.offset, part);
      if (layer == 0 && tensor.name == embedding_of(layers_).name) {
        require_same_head(place, from - tensor.offset, part);
      }
    }
  }
  std::int64_t const padding = std::max(begin, layout.elements);
  if (padding < end) {
    std::ranges::fill(out.subspan(static_cast<std::size_t>(padding - begin)), 0.0F);
  }
}

bool is_model_directory(std::string const& path) {
  return is_there(path + "/" + config_name) || is_there(path + "/" + adapter_name);
}

}  // namespace offstage::huggingface
