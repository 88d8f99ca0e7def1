#include "huggingface/model_directory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/chunk.hpp"
#include "base/dtype.hpp"
#include "base/error.hpp"
#include "huggingface/config.hpp"
#include "huggingface/file.hpp"
#include "huggingface/sample.hpp"
#include "platform/failing_calls.hpp"
#include "temporary_directory.hpp"

namespace offstage::huggingface {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

/// Layers of one or two chunks whose borders lie inside tensors.
state::ModelShape small(state::Family family) {
  bool const gpt2 = family == state::Family::gpt2;
  return {.family = family,
          .layers = 2,
          .hidden = 24,
          .heads = 2,
          .kv_heads = gpt2 ? 2 : 1,
          .ffn_hidden = 40,
          .vocab = 300,
          .max_sequence = 16,
          .tied_head = gpt2,
          .qkv_bias = !gpt2};
}

/// A number that 16 bits hold exactly.
float value_at(std::size_t layer, std::int64_t element) {
  return static_cast<float>((element * 7 + static_cast<std::int64_t>(layer)) % 251 - 125);
}

std::vector<float> numbers_of(state::LayerLayout const& layout, std::size_t layer) {
  std::vector<float> numbers(static_cast<std::size_t>(layout.padded_elements()), 0.0F);
  for (std::int64_t i = 0; i < layout.elements; ++i) {
    numbers[static_cast<std::size_t>(i)] = value_at(layer, i);
  }
  return numbers;
}

void write_model(std::string const& directory, state::ModelShape const& shape, DType dtype,
                 Bytes shard_bytes) {
  ModelWriter writer{directory, shape, dtype, shard_bytes};
  writer.create();
  auto const layers = state::layers_of(shape);
  for (std::size_t k = 0; k < layers.size(); ++k) {
    std::vector<float> const numbers = numbers_of(layers[k], k);
    // The last chunk first: order must not matter.
    for (std::int64_t chunk = layers[k].chunks() - 1; chunk >= 0; --chunk) {
      writer.write(static_cast<int>(k), {chunk, 1},
                   std::span{numbers}.subspan(static_cast<std::size_t>(chunk * chunk_elements),
                                              chunk_elements));
    }
  }
  writer.sync();
  writer.commit();
}

std::vector<std::string> names_in(fs::path const& directory) {
  std::vector<std::string> names;
  for (fs::directory_entry const& entry : fs::directory_iterator{directory}) {
    names.push_back(entry.path().filename());
  }
  std::ranges::sort(names);
  return names;
}

void expect_model(std::string const& directory, state::ModelShape const& shape) {
  ModelDirectory model{directory};
  EXPECT_EQ(model.shape(), shape);
  auto const layers = state::layers_of(shape);
  for (std::size_t k = 0; k < layers.size(); ++k) {
    std::vector<float> const expected = numbers_of(layers[k], k);
    std::vector<float> read(expected.size(), 9.0F);
    model.read(static_cast<int>(k), {0, layers[k].chunks()}, read);
    EXPECT_EQ(read, expected) << layers[k].name;
    std::vector<float> last(chunk_elements, 9.0F);
    model.read(static_cast<int>(k), {layers[k].chunks() - 1, 1}, last);
    EXPECT_TRUE(std::equal(last.begin(), last.end(), expected.end() - chunk_elements));
  }
}

TEST(ModelDirectory, ReadsWhatTheWriterWroteInAnyDtypeAndAnyNumberOfFiles) {
  for (state::Family const family : {state::Family::llama, state::Family::gpt2}) {
    for (DType const dtype : {DType::fp32, DType::bf16, DType::fp16}) {
      for (Bytes const shard_bytes : {Bytes{1}, 8 * KiB, GiB}) {
        TemporaryDirectory const folder;
        write_model(folder.path() / "model", small(family), dtype, shard_bytes);
        expect_model(folder.path() / "model", small(family));
      }
    }
  }
}

/// A LLaMA with q, k and v as one tensor, and gate and up as another.
class FusedFiles : public testing::Test {
 protected:
  FusedFiles() {
    shape_.qkv_bias = false;
    folder_.write("config.json", config_json(shape_, DType::fp32));
    auto const layers = state::layers_of(shape_);
    for (std::size_t k = 0; k < layers.size(); ++k) {
      auto const numbers = numbers_of(layers[k], k);
      for (state::TensorLayout const& layout : layers[k].tensors) {
        auto const begin = numbers.begin() + layout.offset;
        Tensor tensor{fused_name(layout.name),
                      "F32",
                      {layout.rows},
                      bytes_of<float>({begin, begin + layout.elements()})};
        if (layout.columns > 0) {
          tensor.shape.push_back(layout.columns);
        }
        if (!tensors_.empty() && tensors_.back().name == tensor.name) {
          tensors_.back().shape[0] += layout.rows;
          tensors_.back().bytes += tensor.bytes;
        } else {
          tensors_.push_back(std::move(tensor));
        }
      }
    }
  }

  static std::string fused_name(std::string name) {
    for (auto const& [part, fused] : {std::pair{"q_proj", "qkv_proj"},
                                      {"k_proj", "qkv_proj"},
                                      {"v_proj", "qkv_proj"},
                                      {"gate_proj", "gate_up_proj"},
                                      {"up_proj", "gate_up_proj"}}) {
      std::string const inside = fmt::format(".{}.", part);
      if (auto const at = name.find(inside); at != std::string::npos) {
        return name.replace(at, inside.size(), fmt::format(".{}.", fused));
      }
    }
    return name;
  }
  Tensor& find(std::string const& ending) {
    return *std::ranges::find_if(tensors_,
                                 [&](Tensor const& t) { return t.name.ends_with(ending); });
  }
  void write() const { folder_.write("model.safetensors", safetensors(tensors_)); }
  [[nodiscard]] std::string refusal() const {
    return message_of<DataError>([&] { ModelDirectory const model{folder_.path()}; });
  }

  TemporaryDirectory folder_;
  state::ModelShape shape_ = small(state::Family::llama);
  std::vector<Tensor> tensors_;
};

TEST_F(FusedFiles, AreReadByTheirParts) {
  EXPECT_EQ(find("1.self_attn.qkv_proj.weight").shape, (std::vector<std::int64_t>{48, 24}));
  EXPECT_EQ(find("1.mlp.gate_up_proj.weight").shape, (std::vector<std::int64_t>{80, 24}));
  write();
  expect_model(folder_.path(), shape_);
}

TEST_F(FusedFiles, AreRefusedWithTheNameOfWhatIsWrong) {
  Tensor& qkv = find("0.self_attn.qkv_proj.weight");
  qkv.shape = {24, 48};
  write();
  EXPECT_THAT(refusal(), HasSubstr("'model.layers.0.self_attn.qkv_proj.weight' has the shape "
                                   "[24, 48], but config.json asks for [48, 24]"));
  qkv.shape = {48, 24};
  tensors_.push_back(
      {"model.layers.0.self_attn.k_proj.weight", "F32", {12, 24}, std::string(4 * 12 * 24, 'x')});
  write();
  EXPECT_THAT(refusal(), HasSubstr("which is in"));
  tensors_.pop_back();
  std::erase_if(tensors_, [](Tensor const& t) { return t.name.ends_with("gate_up_proj.weight"); });
  write();
  EXPECT_THAT(refusal(), HasSubstr("has no tensor 'model.layers.0.mlp.gate_proj.weight'"));
}

TEST(ModelWriter, MakesOneFileOrShardsWithAnIndexAndLeavesNothingElse) {
  TemporaryDirectory const folder;
  write_model(folder.path() / "one", small(state::Family::gpt2), DType::fp32, GiB);
  EXPECT_THAT(names_in(folder.path() / "one"),
              testing::ElementsAre("config.json", "model.safetensors"));
  write_model(folder.path() / "two", small(state::Family::gpt2), DType::fp32, 40 * KiB);
  EXPECT_THAT(
      names_in(folder.path() / "two"),
      testing::ElementsAre("config.json", "model-00001-of-00002.safetensors",
                           "model-00002-of-00002.safetensors", "model.safetensors.index.json"));
}

TEST(ModelWriter, RefusesADirectoryThatHoldsAModel) {
  TemporaryDirectory const folder;
  folder.write("model.safetensors", "");
  EXPECT_THAT(message_of<UsageError>([&] {
                write_model(folder.path(), small(state::Family::gpt2), DType::fp32, GiB);
              }),
              HasSubstr("holds a model already (model.safetensors)"));
}

TEST(ModelWriter, TakesNoModelOfTheSameShapeForAKilledExports) {
  TemporaryDirectory const folder;
  auto const shape = small(state::Family::gpt2);
  write_model(folder.path(), shape, DType::fp32, GiB);
  fs::remove(folder.path() / "config.json");
  ModelWriter writer{folder.path(), shape, DType::fp32, GiB};
  EXPECT_THAT(message_of<UsageError>([&] { writer.create(); }),
              HasSubstr("holds a model already (model.safetensors)"))
      << "there is no mark of an unfinished export";
  EXPECT_THAT(names_in(folder.path()), testing::ElementsAre("model.safetensors"));
}

TEST(ModelWriter, SyncsItsWeightsAndTheMarkOfAnUnfinishedExport) {
  TemporaryDirectory const folder;
  ModelWriter writer{folder.path(), small(state::Family::gpt2), DType::fp32, GiB};
  writer.create();
  writer.write(0, {0, 1}, std::vector<float>(chunk_elements));
  int of_weights = 0;
  int of_mark = 0;  // its file's and its directory's, before a file has its name
  {
    FailingCalls const calls{{.kinds = Call::sync,
                              .times = 0,
                              .name = "model.safetensors.part",
                              .before = [&](std::int64_t) { ++of_weights; }}};
    writer.sync();
  }
  {
    FailingCalls const calls{{.kinds = Call::sync, .times = 0, .before = [&](std::int64_t) {
                                of_mark += fs::exists(folder.path() / "config.json.part") &&
                                                   !fs::exists(folder.path() / "model.safetensors")
                                               ? 1
                                               : 0;
                              }}};
    writer.commit();
  }
  EXPECT_EQ(of_weights, 1);
  EXPECT_EQ(of_mark, 2);
}

TEST(ModelWriter, RoundsMoreNumbersThanItDoesAtATime) {
  TemporaryDirectory const folder;
  state::ModelShape shape = small(state::Family::llama);
  shape.vocab = 1000;  // 24,000 numbers
  std::string const model = folder.path() / "model";
  ModelWriter writer{model, shape, DType::bf16, GiB};
  writer.create();
  auto const layers = state::layers_of(shape);
  for (std::size_t k = 0; k < layers.size(); ++k) {
    writer.write(static_cast<int>(k), {0, layers[k].chunks()}, numbers_of(layers[k], k));
  }
  writer.sync();
  writer.commit();
  expect_model(model, shape);
}

TEST(ModelWriter, NamesTheConfigOnceAllElseIsThereForGood) {
  TemporaryDirectory const folder;
  ModelWriter writer{folder.path(), small(state::Family::gpt2), DType::fp32, GiB};
  writer.create();
  bool synced = false;
  FailingCalls const calls{{.kinds = Call::sync, .times = 0, .before = [&](std::int64_t) {
                              synced = synced || (fs::exists(folder.path() / "model.safetensors") &&
                                                  !fs::exists(folder.path() / "config.json"));
                            }}};
  writer.commit();
  EXPECT_TRUE(synced);
}

TEST(ModelWriter, RemovesWhatAKilledExportLeftAndWhatItAbandons) {
  TemporaryDirectory const folder;
  folder.write("model-00007-of-00009.safetensors.part", "old");
  folder.write("tokenizer.json", "mine");
  ModelWriter writer{folder.path(), small(state::Family::gpt2), DType::fp32, GiB};
  writer.create();
  EXPECT_THAT(names_in(folder.path()),
              testing::ElementsAre("model.safetensors.part", "tokenizer.json"));
  writer.abandon();
  EXPECT_THAT(names_in(folder.path()), testing::ElementsAre("tokenizer.json"));
}

TEST(ModelWriter, MakesItsFilesAnewAndNeverThroughALink) {
  TemporaryDirectory const folder;
  auto const target = folder.write("target", "another's");
  fs::create_symlink(target, folder.path() / "a");
  EXPECT_THROW((void)File::create(folder.path() / "a"), IoError);
  EXPECT_THROW((void)File::open_write(folder.path() / "a"), IoError);
  EXPECT_EQ(fs::file_size(target), std::string{"another's"}.size());
}

TEST(ModelWriter, RefusesNumbersBeyondTheRangeOfTheDtype) {
  TemporaryDirectory const folder;
  ModelWriter writer{folder.path() / "x", small(state::Family::gpt2), DType::fp16, GiB};
  writer.create();
  std::vector<float> numbers(chunk_elements, 65504.0F);
  writer.write(0, {0, 1}, numbers);
  numbers[3] = 65520.0F;
  EXPECT_THAT(message_of<DataError>([&] {
                writer.write(0, {0, 1}, numbers);
              }),
              AllOf(HasSubstr("transformer.wte.weight"), HasSubstr("65520"), HasSubstr("fp16")));
  writer.abandon();
  EXPECT_FALSE(fs::exists(folder.path() / "x"));
}

TEST(ModelWriter, LeavesNoDirectoryWhereTheModelDoesNotFit) {
  TemporaryDirectory const folder;
  state::ModelShape shape = small(state::Family::gpt2);
  shape.vocab = std::int64_t{1} << 44;
  std::string const path = folder.path() / "new" / "model";
  ModelWriter writer{path, shape, DType::fp32, GiB};
  EXPECT_THAT(message_of<IoError>([&] { writer.create(); }),
              AllOf(HasSubstr(path + ": the model takes"), HasSubstr("is free there")));
  EXPECT_FALSE(fs::exists(path));
}

/// A GPT-2 of one block, with names as the hub has them.
class HubFiles : public testing::Test {
 protected:
  HubFiles() {
    shape_.layers = 1;
    for (state::LayerLayout const& layer : state::layers_of(shape_)) {
      for (state::TensorLayout const& tensor : layer.tensors) {
        std::vector<std::int64_t> dimensions{tensor.rows};
        if (tensor.columns != 0) {
          dimensions.push_back(tensor.columns);
        }
        tensors_.push_back({tensor.name.substr(std::string_view{"transformer."}.size()), "F16",
                            dimensions,
                            std::string(static_cast<std::size_t>(2 * tensor.elements()), '\0')});
      }
    }
    folder_.write("config.json", config_json(shape_, DType::fp16));
  }

  void add(std::string const& name) { tensors_.push_back({name, "F32", {1}, std::string(4, 'x')}); }
  /// The embedding's zeros again, in 16 or 32 bits.
  Tensor& add_head(std::string const& dtype) {
    auto const width = dtype == "F32" ? 4U : 2U;
    auto const& shape = tensors_[0].shape;
    return tensors_.emplace_back(
        Tensor{"lm_head.weight", dtype, shape,
               std::string(static_cast<std::size_t>(shape[0] * shape[1]) * width, '\0')});
  }
  void write() const { folder_.write("model.safetensors", safetensors(tensors_)); }
  /// Two files; the index maps `first` tensors to the one and the others to the other.
  void write_shards(std::string const& extra_entry = "") const {
    auto const middle = tensors_.begin() + 3;
    folder_.write("a.safetensors", safetensors({tensors_.begin(), middle}));
    folder_.write("b.safetensors", safetensors({middle, tensors_.end()}));
    std::string map = extra_entry;
    for (auto it = tensors_.begin(); it != tensors_.end(); ++it) {
      map += fmt::format(R"({}"{}":"{}.safetensors")", map.empty() ? "" : ",", it->name,
                         it < middle ? "a" : "b");
    }
    folder_.write("model.safetensors.index.json", fmt::format(R"({{"weight_map":{{{}}}}})", map));
  }
  [[nodiscard]] std::string refusal() const {
    return message_of<DataError>([&] { ModelDirectory const model{folder_.path()}; });
  }
  void expect_good() const {
    EXPECT_EQ(ModelDirectory{folder_.path()}.shape(), shape_);
    read_embedding();
  }
  /// Piece by piece.
  void read_embedding() const {
    ModelDirectory model{folder_.path()};
    std::vector<float> numbers(chunk_elements);
    for (std::int64_t i = 0; i < state::layers_of(shape_)[0].chunks(); ++i) {
      model.read(0, {i, 1}, numbers);
    }
  }

  TemporaryDirectory folder_;
  state::ModelShape shape_ = small(state::Family::gpt2);
  std::vector<Tensor> tensors_;
};

TEST_F(HubFiles, MayLackThePrefixAndHoldBuffersAndATiedHead) {
  add("h.0.attn.bias");
  add("h.0.attn.masked_bias");
  add_head("F16");
  write();
  expect_good();
  fs::remove(folder_.path() / "model.safetensors");
  write_shards();
  expect_good();
}

TEST_F(HubFiles, MayHoldATiedHeadThatWasRoundedOrNot) {
  auto const last = tensors_[0].bytes.size() / 2 - 1;
  auto const put = [&](Tensor& tensor, auto value) {
    std::memcpy(tensor.bytes.data() + last * sizeof value, &value, sizeof value);
  };
  put(tensors_[0], to_fp16(0.1F));
  put(add_head("F32"), 0.1F);
  write();
  expect_good();
  tensors_.pop_back();
  put(add_head("BF16"), to_bf16(0.1F));
  write();
  EXPECT_THAT(message_of<DataError>([&] { read_embedding(); }), HasSubstr("differs from"));
}

TEST_F(HubFiles, MayHoldATiedHeadOfMoreNumbersThanAreComparedAtATime) {
  add_head("F16").bytes[1] = 0x38;  // 0.5
  tensors_[0].bytes[1] = 0x38;
  write();
  ModelDirectory model{folder_.path()};
  auto const chunks = state::layers_of(shape_)[0].chunks();
  std::vector<float> numbers(static_cast<std::size_t>(chunks * chunk_elements));
  EXPECT_NO_THROW(model.read(0, {0, chunks}, numbers));
}

TEST_F(HubFiles, AreRefusedWithAHeadOfItsOwnBesideATiedOne) {
  add_head("F16").bytes.back() = 1;
  write();
  EXPECT_THAT(message_of<DataError>([&] { read_embedding(); }),
              AllOf(HasSubstr("model.safetensors: tensor 'lm_head.weight' differs from "
                              "'wte.weight', but config.json ties them"),
                    HasSubstr("write tie_word_embeddings=false")));
  tensors_.back().shape = {24, 300};
  write();
  EXPECT_THAT(refusal(), HasSubstr("'lm_head.weight' has the shape [24, 300], but config.json asks "
                                   "for [300, 24]"));
}

TEST_F(HubFiles, AreRefusedWithAnAdapterOverThem) {
  write();
  expect_good();
  folder_.write("adapter_config.json", "{}");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("has adapter_config.json: "), HasSubstr("merge it")));
  fs::remove(folder_.path() / "config.json");
  ASSERT_TRUE(is_model_directory(folder_.path())) << "an adapter alone";
  EXPECT_THAT(refusal(), HasSubstr("has adapter_config.json: "));
}

TEST_F(HubFiles, AreRefusedWithTheNameOfWhatIsWrong) {
  EXPECT_THAT(refusal(), HasSubstr("model.safetensors: there is no such file"));
  folder_.write("zero_to_fp32.py", "");
  EXPECT_THAT(refusal(), HasSubstr("is a checkpoint of DeepSpeed; "));
  std::filesystem::remove(folder_.path() / "zero_to_fp32.py");
  folder_.write("training_args.bin", "");
  folder_.write("optimizer.pt", "");
  EXPECT_THAT(refusal(), HasSubstr("model.safetensors: there is no such file"));
  folder_.write("consolidated.00.pth", "");
  EXPECT_THAT(refusal(), HasSubstr("has consolidated.00.pth, but neither model.safetensors nor "
                                   "pytorch_model.bin"));
  auto const good = tensors_;
  auto const refused_after = [&](auto&& change) {
    tensors_ = good;
    change();
    write();
    return refusal();
  };
  EXPECT_THAT(refused_after([&] { tensors_.pop_back(); }),
              HasSubstr("has no tensor 'transformer.ln_f.bias'"));
  EXPECT_THAT(refused_after([&] {
                for (auto& tensor : tensors_) {
                  tensor.name = "module." + tensor.name;
                }
              }),
              AllOf(HasSubstr("model.safetensors has 'module.wte.weight': save the model in the "),
                    HasSubstr("model.module of DDP")));
  EXPECT_THAT(refused_after([&] { tensors_[0].name = "language_model." + tensors_[0].name; }),
              testing::EndsWith("model.safetensors has 'language_model.wte.weight'"));
  EXPECT_THAT(refused_after([&] { add("h.1.ln_1.weight"); }),
              HasSubstr("has a tensor 'h.1.ln_1.weight', which the model"));
  EXPECT_THAT(refused_after([&] { add("transformer.wte.weight"); }),
              HasSubstr("has the tensor 'wte.weight', which is in"));
  EXPECT_THAT(
      refused_after([&] { std::swap(tensors_[0].shape[0], tensors_[0].shape[1]); }),
      HasSubstr("'wte.weight' has the shape [24, 300], but config.json asks for [300, 24]"));
  EXPECT_THAT(refused_after([&] { tensors_[0].dtype = "I16"; }),
              HasSubstr("'wte.weight' is of dtype I16"));
}

TEST_F(HubFiles, AreRefusedAsGitLfsPointers) {
  std::string const pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5000000\n";
  std::string const words = ": is a Git LFS pointer: run git lfs pull";
  folder_.write("model.safetensors", pointer);
  EXPECT_THAT(refusal(), HasSubstr("model.safetensors" + words));
  folder_.write("config.json", pointer);
  EXPECT_THAT(refusal(), HasSubstr("config.json" + words));
}

TEST_F(HubFiles, AreRefusedWithShardsAndNoIndex) {
  folder_.write("model-00002-of-00002.safetensors", "");
  folder_.write("model-00001-of-00002.safetensors", "");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("has model-00001-of-00002.safetensors"),
                               HasSubstr("model.safetensors.index.json is missing")));
}

TEST_F(HubFiles, TellOfDropout) {
  write();
  EXPECT_EQ(ModelDirectory{folder_.path()}.left_out(), "");
  std::string config = config_json(shape_, DType::fp16);
  config.replace(config.find(R"("embd_pdrop": 0.0)"), 17, R"("embd_pdrop": 0.1)");
  folder_.write("config.json", config);
  EXPECT_THAT(ModelDirectory{folder_.path()}.left_out(),
              HasSubstr("config.json has embd_pdrop=0.1: training here is without dropout"));
}

TEST_F(HubFiles, AreRefusedWithTheMistakeOfTheirIndex) {
  write_shards(R"("x":"a.safetensors")");
  EXPECT_THAT(refusal(),
              HasSubstr("weight_map finds 'x' in a.safetensors, which does not have it"));
  write_shards(R"("x":"../a.safetensors")");
  EXPECT_THAT(refusal(), HasSubstr("names '../a.safetensors' for 'x', which is no file name"));
  write_shards(R"("x":3)");
  EXPECT_THAT(refusal(), HasSubstr("names no file for 'x'"));
  write_shards(R"("x":"a.safetensors","x":"a.safetensors")");
  EXPECT_THAT(refusal(), HasSubstr("has the key 'x' twice"));
  write_shards();
  fs::remove(folder_.path() / "b.safetensors");
  EXPECT_THAT(refusal(), HasSubstr("b.safetensors: there is no such file"));
  folder_.write("model.safetensors.index.json", "{}");
  EXPECT_THAT(refusal(), HasSubstr("has no weight_map"));
}

TEST_F(HubFiles, ShowWhatTheirIndexSaysOnOneLine) {
  write_shards(R"("x":"../a\n\u001b[2J\u202e")");
  EXPECT_THAT(refusal(), HasSubstr(R"(names '../a\x0a\x1b[2J\u202e' for 'x')"));
  write_shards(R"("x":"a\n\u001b[2J")");
  EXPECT_THAT(refusal(), HasSubstr(R"(a\x0a\x1b[2J: there is no such file)"));
  write_shards(R"("x\n\u009b":"a.safetensors")");
  EXPECT_THAT(refusal(), HasSubstr(R"(finds 'x\x0a\u009b' in a.safetensors)"));
  write_shards(fmt::format(R"("{}":"{}")", std::string(100'000, 'x'), std::string(100'000, 'y')));
  EXPECT_THAT(refusal(), AllOf(HasSubstr("xxx[...]xxx"), HasSubstr("yyy[...]yyy")));
  EXPECT_LT(refusal().size(), 1000U);
}

}  // namespace
}  // namespace offstage::huggingface
