#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "huggingface/companions.hpp"
#include "huggingface/tensor_file.hpp"
#include "state/initialize.hpp"
#include "state/model_shape.hpp"

namespace offstage::huggingface {

/// A Hugging Face model on disk, to read: config.json with model.safetensors, or with
/// model.safetensors.index.json and the files that its weight_map names; without both of them with
/// pytorch_model.bin, or its index.
///
/// Names:  GPT-2 files come with and without the prefix "transformer."; its buffers attn.bias and
///         attn.masked_bias are passed over, and so are rotary_emb.inv_freq of old LLaMA files.
/// Fused:  Phi-3's qkv_proj and gate_up_proj are tensors of a LLaMA one behind the other.
/// Head:   lm_head.weight may stand beside a tied head if it is the embedding again, in the same or
///         another dtype; read() compares what it reads of the embedding, piece by piece.
/// Memory: headers. Files stay open.
/// Errors: DataError naming file and tensor: missing file or shard, an index that names a tensor
///         its file does not have, tensors missing, in excess, of the wrong shape or of a dtype
///         that is not F32, BF16 or F16; in read(), a lm_head.weight of its own beside a tied head.
class ModelDirectory final : public state::ParameterReader {
 public:
  explicit ModelDirectory(std::string const& directory);

  [[nodiscard]] state::ModelShape const& shape() const override { return shape_; }
  /// Dropout that its config.json names.
  [[nodiscard]] std::string left_out() const override { return left_out_; }
  void read(int layer, state::ChunkRange chunks, std::span<float> out) override;

 private:
  struct Place {
    TensorFile const* file{};
    /// A part of a fused one has that one's name, and a shape and bytes of its own.
    TensorEntry tensor;
  };

  TensorFile const& open(std::string const& name);
  void open_shards(std::string const& index);
  /// Enters a tensor of a file, or each part of a fused one.
  void enter(TensorFile const& file, TensorEntry const& tensor);
  void require_all() const;
  /// For the error: the missing tensor under a longer name; empty: there is none.
  [[nodiscard]] std::string found_instead_of(std::string const& name) const;
  void require_same_head(Place const& embedding, std::int64_t first,
                         std::span<float const> numbers) const;

  std::string directory_;
  state::ModelShape shape_;
  std::string left_out_;
  std::vector<state::LayerLayout> layers_;
  std::vector<std::unique_ptr<TensorFile>> files_;
  std::map<std::string, Place> places_;  ///< by Offstage's name
};

/// True if a config.json stands in the directory, or the config of an adapter: the constructor
/// refuses that.
[[nodiscard]] bool is_model_directory(std::string const& path);

/// Writes a model: the caller creates it on one rank, and then any number of ranks fill it.
///
/// Files:  one model.safetensors, or model-00001-of-0000N.safetensors with tensors of at most
///         `shard_bytes` in each (a larger tensor has one of its own) with the index; companions,
///         if there are some; config.json.
///         The layout depends on shape, dtype and shard_bytes alone.
/// Commit: files are written under another name (".part") and get their names in commit(), after
///         fsync, config.json last. An export that was killed leaves a config.json.part
///         without a config.json; create() of the same export then removes what has names already.
/// Errors: IoError naming the path.
class ModelWriter {
 public:
  ModelWriter(std::string const& directory, state::ModelShape const& shape, DType dtype,
              Bytes shard_bytes);
  ~ModelWriter();
  ModelWriter(ModelWriter const&) = delete;
  ModelWriter& operator=(ModelWriter const&) = delete;

  /// The rank that creates and commits, before create(): what stands beside the weights.
  void set_companions(Companions companions);
  /// One rank, before any write: creates the directory if need be, durably, and the files in their
  /// full size with their headers; removes files of an export that was killed. A failure leaves
  /// nothing.
  /// Errors: also UsageError if the directory holds a model already, IoError if the space does not
  ///         suffice.
  void create();
  /// Any rank: chunks of a layer in FP32, rounded to the dtype (to nearest even; a number beyond
  /// its range is a DataError naming the tensor). Padding is left out.
  void write(int layer, state::ChunkRange chunks, std::span<float const> parameters);
  /// Any rank, after its writes: makes them durable.
  void sync();
  /// One rank, after all have synced.
  void commit();
  /// One rank, instead of commit(): removes what create() made.
  void abandon() noexcept;

  /// Bytes that the files take.
  [[nodiscard]] Bytes bytes() const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace offstage::huggingface
