// Whatever allocation fails while a model's files are read: it ends with an error that says so,
// leaves nothing open, and is done the next time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/failing_allocations.hpp"
#include "huggingface/config.hpp"
#include "huggingface/tensor_file.hpp"
#include "huggingface/torch_sample.hpp"
#include "temporary_directory.hpp"

namespace offstage::huggingface {
namespace {

void expect_typed(std::vector<StarvedRun> const& runs) {
  EXPECT_FALSE(runs.empty());
  for (StarvedRun const& run : runs) {
    EXPECT_FALSE(run.is_data_error) << run.first << ": " << run.message;
    EXPECT_EQ(run.more_descriptors, 0) << run.first << ": " << run.message;
  }
}

void expect_read_or_not(std::string const& bytes) {
  TemporaryDirectory const directory;
  std::string const path = directory.write("file", bytes);
  for (bool const forever : {false, true}) {
    expect_typed(starve(
        [&] {
          TensorFile const file{path};
          std::array<float, 4> read{};
          for (auto const& [name, tensor] : file.tensors()) {
            file.read(tensor, 0, read);
            EXPECT_EQ(read[3], 4.0F);
          }
        },
        [] {}, forever));
  }
}

std::string const numbers = bytes_of<float>({1, 2, 3, 4});

TEST(StarvedSafetensors, AreReadOrNot) {
  expect_read_or_not(safetensors({{"a-name-that-takes-memory-of-its-own", "F32", {2, 2}, numbers},
                                  {"another-name-that-takes-memory", "F32", {4}, numbers}}));
}

TEST(StarvedTorchFile, IsReadOrNot) {
  expect_read_or_not(
      archive(torch_records(state_dict(pickled(std::string{"a-name-that-takes-memory-of-its-own"}) +
                                       pickled(TorchTensor{})),
                            numbers)));
}

TEST(StarvedConfig, IsReadOrNot) {
  std::string const text =
      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
      "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 512, "max_position_embeddings": 128,
      "rms_norm_eps": 1e-05, "hidden_act": "silu"})";
  expect_typed(starve([&] { (void)parse_config(text, "config.json"); }));
}

}  // namespace
}  // namespace offstage::huggingface
