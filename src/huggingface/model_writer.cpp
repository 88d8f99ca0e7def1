#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ranges>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/chunk.hpp"
#include "base/error.hpp"
#include "base/regular_file.hpp"
#include "huggingface/companions.hpp"
#include "huggingface/config.hpp"
#include "huggingface/file.hpp"
#include "huggingface/model_directory.hpp"
#include "huggingface/names.hpp"
#include "platform/aio/file.hpp"

namespace offstage::huggingface {
namespace {

namespace fs = std::filesystem;

constexpr char const* part_suffix = ".part";
// Config and index, generously.
constexpr Bytes small_files = MiB;
// Elements that are rounded at a time.
constexpr std::size_t rounded_at_once = 16384;

/// One file of the model and what is in it.
struct Shard {
  std::string name;    ///< without directory
  std::string header;  ///< with its length before it
  Bytes size{};        ///< of the whole file
};

/// Where a tensor goes.
struct Target {
  std::size_t shard{};
  Bytes offset{};  ///< in the buffer of its file
};

char const* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return "BF16";
    case DType::fp16:
      return "F16";
    case DType::fp32:
      break;
  }
  return "F32";
}

/// The length and the JSON text, padded to 8 bytes.
std::string framed(nlohmann::ordered_json const& header) {
  std::string text = header.dump();
  text.resize(static_cast<std::size_t>(round_up(static_cast<Bytes>(text.size()), 8)), ' ');
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) {
    length[i] = static_cast<char>((text.size() >> (8 * i)) & 0xFFU);
  }
  return length + text;
}

bool is_model_file(std::string const& name) {
  return name == config_name || name.ends_with(".safetensors") || name == index_name;
}

bool is_ours(std::string const& name) {
  return is_model_file(name) || is_companion(name);
}

/// Rounds; `name` is the tensor's. Errors: DataError for a number that becomes infinite.
template <class T>
void round_to(std::span<float const> numbers, std::span<T> rounded, std::string const& name) {
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    rounded[i] = store<T>(numbers[i]);
    if (std::isinf(to_float(rounded[i])) && !std::isinf(numbers[i])) {
      throw DataError{
          fmt::format("tensor '{}' has the number {}, beyond the range of {}; use "
                      "--dtype={}",
                      name, numbers[i], name_of(dtype_of<T>()),
                      dtype_of<T>() == DType::fp16 ? "bf16 or fp32" : "fp32")};
    }
  }
}

}  // namespace

class ModelWriter::Implementation {
 public:
  Implementation(std::string const& directory, state::ModelShape const& shape, DType dtype,
                 Bytes shard_bytes)
      : directory_{directory}, shape_{shape}, layers_{state::layers_of(shape)}, dtype_{dtype} {
    require(shard_bytes >= 1, "ModelWriter: room in a file");
    deal(shard_bytes);
    name_and_frame();
    files_.resize(shards_.size());
  }

  void set_companions(Companions companions) { companions_ = std::move(companions); }

  void create() {
    made_.make(directory_);
    remove_leftovers();
    try {
      require_space();
      for (Shard const& shard : shards_) {
        File const file = File::create(part(shard.name));
        file.allocate(shard.size);
        file.write_at(0, std::as_bytes(std::span{shard.header}));
        file.sync();
      }
    } catch (IoError const&) {
      abandon();
      throw;
    }
  }

  void write(int layer, state::ChunkRange chunks, std::span<float const> parameters) {
    state::LayerLayout const& layout = layers_.at(static_cast<std::size_t>(layer));
    require(static_cast<std::int64_t>(parameters.size()) == chunks.count * chunk_elements,
            "ModelWriter: as many numbers as chunks have");
    std::int64_t const begin = chunks.first * chunk_elements;
    std::int64_t const end = begin + chunks.count * chunk_elements;
    for (state::TensorLayout const& tensor : layout.tensors) {
      std::int64_t const from = std::max(begin, tensor.offset);
      std::int64_t const to = std::min(end, tensor.offset + tensor.elements());
      if (from < to) {
        write_part(tensor, from - tensor.offset,
                   parameters.subspan(static_cast<std::size_t>(from - begin),
                                      static_cast<std::size_t>(to - from)));
      }
    }
  }

  void sync() {
    for (File& file : files_) {
      if (file.is_open()) {
        file.sync();
        file.reset();
      }
    }
  }

  void commit() {
    if (shards_.size() > 1) {
      write_text(index_name, index_json());
    }
    write_text(config_name, config_json(shape_, dtype_, companions_.ids));
    for (auto const& [name, text] : companions_.files) {
      write_text(name, text);
    }
    // The config under its other name marks what has names already as that of an unfinished export.
    aio::sync_directory(directory_);
    for (Shard const& shard : shards_) {
      publish(shard.name);
    }
    if (shards_.size() > 1) {
      publish(index_name);
    }
    for (auto const& [name, text] : companions_.files) {
      publish(name);
    }
    // The config makes a model of the directory: everything else is there for good by then.
    aio::sync_directory(directory_);
    publish(config_name);
    aio::sync_directory(directory_);
    made_.keep();
  }

  void abandon() noexcept {
    try {
      files_.clear();
      for (std::string const& name : published_ | std::views::reverse) {
        fs::remove(path(name));
      }
      for (std::string const& name : names()) {
        if (is_part(name)) {
          remove(name);
        }
      }
    } catch (std::exception const&) {
      // The next create() removes what is left.
    }
    made_.remove();
  }

  [[nodiscard]] Bytes bytes() const {
    Bytes sum = 0;
    for (Shard const& shard : shards_) {
      sum += shard.size;
    }
    return sum;
  }

 private:
  /// Which file holds which tensor: in the model's order, as many as fit.
  void deal(Bytes shard_bytes) {
    Bytes used = 0;
    targets_.resize(static_cast<std::size_t>(layers_.back().tensors.back().index) + 1);
    sizes_.push_back(0);
    for (state::LayerLayout const& layer : layers_) {
      for (state::TensorLayout const& tensor : layer.tensors) {
        Bytes const size = tensor.elements() * bytes_of(dtype_);
        if (used > 0 && size > shard_bytes - used) {
          sizes_.push_back(0);
          used = 0;
        }
        targets_[static_cast<std::size_t>(tensor.index)] = {sizes_.size() - 1, used};
        used += size;
        sizes_.back() = used;
      }
    }
  }

  void name_and_frame() {
    std::vector<nlohmann::ordered_json> headers(sizes_.size());
    for (nlohmann::ordered_json& header : headers) {
      header["__metadata__"] = {{"format", "pt"}};
    }
    for (state::LayerLayout const& layer : layers_) {
      for (state::TensorLayout const& tensor : layer.tensors) {
        Target const& target = target_of(tensor);
        headers[target.shard][tensor.name] = {
            {"dtype", dtype_name(dtype_)},
            {"shape", shape_of(tensor)},
            {"data_offsets",
             {target.offset, target.offset + tensor.elements() * bytes_of(dtype_)}}};
      }
    }
    for (std::size_t i = 0; i < headers.size(); ++i) {
      Shard shard;
      shard.name = headers.size() == 1
                       ? std::string{single_name}
                       : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, headers.size());
      shard.header = framed(headers[i]);
      shard.size = static_cast<Bytes>(shard.header.size()) + sizes_[i];
      shards_.push_back(std::move(shard));
    }
  }

  [[nodiscard]] Target const& target_of(state::TensorLayout const& tensor) const {
    return targets_.at(static_cast<std::size_t>(tensor.index));
  }

  [[nodiscard]] std::string index_json() const {
    nlohmann::ordered_json map = nlohmann::ordered_json::object();
    Bytes total = 0;
    for (state::LayerLayout const& layer : layers_) {
      for (state::TensorLayout const& tensor : layer.tensors) {
        map[tensor.name] = shards_[target_of(tensor).shard].name;
        total += tensor.elements() * bytes_of(dtype_);
      }
    }
    nlohmann::ordered_json index;
    index["metadata"] = {{"total_size", total}};
    index["weight_map"] = std::move(map);
    return index.dump(2) + "\n";
  }

  [[nodiscard]] std::string path(std::string const& name) const { return directory_ + "/" + name; }
  [[nodiscard]] std::string part(std::string const& name) const { return path(name) + part_suffix; }

  void write_part(state::TensorLayout const& tensor, std::int64_t first,
                  std::span<float const> numbers) {
    switch (dtype_) {
      case DType::fp32:
        put(tensor, first, std::as_bytes(numbers));
        return;
      case DType::bf16:
        write_rounded<bfloat16>(tensor, first, numbers);
        return;
      case DType::fp16:
        write_rounded<float16>(tensor, first, numbers);
        return;
    }
  }

  template <class T>
  void write_rounded(state::TensorLayout const& tensor, std::int64_t first,
                     std::span<float const> numbers) {
    std::array<T, rounded_at_once> room;
    while (!numbers.empty()) {
      std::size_t const count = std::min(numbers.size(), room.size());
      auto const rounded = std::span{room}.first(count);
      round_to<T>(numbers.first(count), rounded, tensor.name);
      put(tensor, first, std::as_bytes(rounded));
      first += static_cast<std::int64_t>(count);
      numbers = numbers.subspan(count);
    }
  }

  void put(state::TensorLayout const& tensor, std::int64_t first,
           std::span<std::byte const> bytes) {
    Target const& target = target_of(tensor);
    Shard const& shard = shards_[target.shard];
    File& file = files_[target.shard];
    if (!file.is_open()) {
      file = File::open_write(part(shard.name));
    }
    file.write_at(
        static_cast<Bytes>(shard.header.size()) + target.offset + first * bytes_of(dtype_), bytes);
  }

  void write_text(std::string const& name, std::string const& text) const {
    File const file = File::create(part(name));
    file.write_at(0, std::as_bytes(std::span{text}));
    file.sync();
  }

  void publish(std::string const& name) {
    std::error_code error;
    fs::rename(part(name), path(name), error);
    if (error) {
      throw IoError{"cannot rename to", path(name), error.value()};
    }
    published_.push_back(name);
  }

  void require_space() const {
    Bytes needed = bytes() + small_files;
    for (auto const& [name, text] : companions_.files) {
      needed += static_cast<Bytes>(text.size());
    }
    if (Bytes const free = aio::free_bytes(directory_); free < needed) {
      throw IoError{fmt::format("{}: the model takes {}, but {} is free there", directory_,
                                format_bytes(needed), format_bytes(free))};
    }
  }

  /// Names of all that is in the directory, in order.
  [[nodiscard]] std::set<std::string> names() const try {
    std::set<std::string> found;
    for (fs::directory_entry const& entry : fs::directory_iterator{directory_}) {
      found.insert(entry.path().filename());
    }
    return found;
  } catch (fs::filesystem_error const& error) {
    throw IoError{"cannot read the directory", directory_, error.code().value()};
  }

  void remove(std::string const& name) const {
    std::error_code error;
    fs::remove(path(name), error);
    if (error) {
      throw IoError{"cannot remove", path(name), error.value()};
    }
  }

  /// Removes what a killed export left: files named .part, and published ones with the content that
  /// this export writes. Their mark, the config's .part, goes when nothing else is left.
  /// Errors: UsageError, before anything is removed, if other files of a model are there.
  void remove_leftovers() const {
    std::string const mark = config_name + std::string{part_suffix};
    auto const there = names();
    bool const was_killed = there.contains(mark) && !there.contains(config_name);
    std::vector<std::string> leftovers;
    for (std::string const& name : there) {
      if (is_part(name)) {
        leftovers.push_back(name);
      } else if (is_model_file(name) || companions_.files.contains(name)) {
        if (!was_killed || !is_published(name)) {
          throw UsageError{fmt::format("{} holds a model already ({}); name another directory",
                                       directory_, name)};
        }
        leftovers.push_back(name);
      }
    }
    for (std::string const& name : leftovers) {
      if (name != mark) {
        remove(name);
      }
    }
    if (there.contains(mark)) {
      aio::sync_directory(directory_);
      remove(mark);
    }
  }

  static bool is_part(std::string const& name) {
    return name.ends_with(part_suffix) &&
           is_ours(name.substr(0, name.size() - std::string_view{part_suffix}.size()));
  }

  /// True for a file, and no link, that begins with these bytes and has this size.
  [[nodiscard]] bool holds(std::string const& name, std::string const& begin, Bytes size) const {
    if (is_link(path(name)) || !is_file(path(name))) {
      return false;
    }
    File const file = File::open_read(path(name));
    std::string found(begin.size(), '\0');
    if (file.size() != size) {
      return false;
    }
    file.read_at(0, std::as_writable_bytes(std::span{found}));
    return found == begin;
  }

  /// True for a file that this export would publish under this name, as far as its size and, of
  /// weights, its header tell.
  [[nodiscard]] bool is_published(std::string const& name) const {
    auto const is_text = [&](std::string const& text) {
      return holds(name, text, static_cast<Bytes>(text.size()));
    };
    if (auto const companion = companions_.files.find(name); companion != companions_.files.end()) {
      return is_text(companion->second);
    }
    if (name == index_name) {
      return shards_.size() > 1 && is_text(index_json());
    }
    auto const shard = std::ranges::find(shards_, name, &Shard::name);
    return shard != shards_.end() && holds(name, shard->header, shard->size);
  }

  std::string directory_;
  state::ModelShape shape_;
  std::vector<state::LayerLayout> layers_;
  DType dtype_;
  Companions companions_;
  aio::MadeDirectories made_;
  std::vector<Target> targets_;  ///< by TensorLayout::index
  std::vector<Bytes> sizes_;     ///< of the shards' buffers
  std::vector<Shard> shards_;
  std::vector<std::string> published_;
  std::vector<File> files_;  ///< of the shards; opened by the first write
};

ModelWriter::ModelWriter(std::string const& directory, state::ModelShape const& shape, DType dtype,
                         Bytes shard_bytes)
    : implementation_{std::make_unique<Implementation>(directory, shape, dtype, shard_bytes)} {}
ModelWriter::~ModelWriter() = default;

void ModelWriter::set_companions(Companions companions) {
  implementation_->set_companions(std::move(companions));
}
void ModelWriter::create() {
  implementation_->create();
}
void ModelWriter::write(int layer, state::ChunkRange chunks, std::span<float const> parameters) {
  implementation_->write(layer, chunks, parameters);
}
void ModelWriter::sync() {
  implementation_->sync();
}
void ModelWriter::commit() {
  implementation_->commit();
}
void ModelWriter::abandon() noexcept {
  implementation_->abandon();
}
Bytes ModelWriter::bytes() const {
  return implementation_->bytes();
}

}  // namespace offstage::huggingface
