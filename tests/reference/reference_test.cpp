// Logits, loss and gradients of small random models against what PyTorch and transformers computed
// of them in FP32; README.md says where the files come from.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "huggingface/model_directory.hpp"
#include "huggingface/tensor_file.hpp"
#include "model/model_fixture.hpp"

namespace offstage::model {
namespace {

/// Of the largest error over the largest entry of a tensor. PyTorch's own FP32 lies within 1.2e-6
/// of FP64 for these models.
constexpr double tolerance = 1e-5;

using Values = std::vector<float>;

/// reference.safetensors of one model.
class Reference {
 public:
  explicit Reference(std::string const& directory) : file_{directory + "/reference.safetensors"} {}

  [[nodiscard]] Values values(std::string const& name) const {
    Values result(static_cast<std::size_t>(count(name)));
    file_.read(file_.tensors().at(name), 0, result);
    return result;
  }
  [[nodiscard]] std::size_t gradients() const {
    return static_cast<std::size_t>(std::ranges::count_if(
        file_.tensors(), [](auto const& tensor) { return tensor.first.starts_with("grad/"); }));
  }
  [[nodiscard]] data::TokenBatch batch() const {
    auto const& shape = file_.tensors().at("tokens").shape;
    return {.batch = shape.at(0),
            .sequence = shape.at(1),
            .tokens = integers("tokens"),
            .targets = integers("targets")};
  }

 private:
  [[nodiscard]] std::int64_t count(std::string const& name) const {
    std::int64_t elements = 1;
    for (auto const size : file_.tensors().at(name).shape) {
      elements *= size;
    }
    return elements;
  }
  [[nodiscard]] std::vector<std::int32_t> integers(std::string const& name) const {
    std::vector<std::int32_t> result;
    for (float const value : values(name)) {
      result.push_back(static_cast<std::int32_t>(value));
    }
    return result;
  }

  huggingface::TensorFile file_;
};

/// A tensor of the model and how far it is off.
struct Error {
  std::string name;
  double relative{};
};

template <class T>
Error error_of(std::string const& name, std::span<T const> found, Values const& wanted) {
  EXPECT_EQ(found.size(), wanted.size()) << name;
  double error = 0;
  double largest = 0;
  for (std::size_t i = 0; i < std::min(found.size(), wanted.size()); ++i) {
    auto const difference =
        std::abs(static_cast<double>(found[i]) - static_cast<double>(wanted[i]));
    // A NaN compares with nothing; it must not pass.
    error = std::isnan(difference) ? INFINITY : std::max(error, difference);
    largest = std::max(largest, std::abs(static_cast<double>(wanted[i])));
  }
  EXPECT_GT(largest, 0) << name << ": the reference is zero and shows nothing";
  return {name, error / largest};
}

template <class T>
void read_parameters(huggingface::ModelDirectory& directory,
                     std::vector<state::LayerLayout> const& layers,
                     test::MemoryParameters<T>& parameters) {
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    Values padded(static_cast<std::size_t>(layers[layer].padded_elements()));
    directory.read(static_cast<int>(layer), {0, layers[layer].chunks()}, padded);
    std::copy_n(padded.begin(), layers[layer].elements, parameters.values[layer].begin());
  }
}

template <class T>
std::vector<Error> errors_of_a_step(test::TestModel<T>& setup, Reference const& reference) {
  auto const batch = reference.batch();
  std::vector<T> logits(batch.tokens.size() * static_cast<std::size_t>(setup.shape.vocab));
  setup.model.logits(batch, setup.parameters, 0, logits);
  auto const loss = static_cast<T>(setup.step(batch));
  std::vector<Error> errors{
      error_of<T>("logits", logits, reference.values("logits")),
      error_of<T>("loss", std::span{&loss, 1}, reference.values("loss")),
  };
  for (std::size_t layer = 0; layer < setup.layers.size(); ++layer) {
    std::span<T const> const gradient = setup.gradients.values.at(static_cast<int>(layer));
    for (auto const& tensor : setup.layers[layer].tensors) {
      auto const name = "grad/" + tensor.name;
      errors.push_back(error_of(name,
                                gradient.subspan(static_cast<std::size_t>(tensor.offset),
                                                 static_cast<std::size_t>(tensor.elements())),
                                reference.values(name)));
    }
  }
  return errors;
}

template <class T>
void agrees_with_pytorch(std::string const& model, std::string const& numbers,
                         BlockFates const& fates) {
  SCOPED_TRACE(model + " in " + numbers);
  auto const path = std::string{OFFSTAGE_REFERENCES} + "/" + model;
  huggingface::ModelDirectory directory{path};
  Reference const reference{path};
  auto const batch = reference.batch();
  test::TestModel<T> setup{directory.shape(),
                           {.batch = batch.batch,
                            .sequence = batch.sequence,
                            .fates = test::all_blocks(directory.shape(), fates)}};
  read_parameters(directory, setup.layers, setup.parameters);

  auto const errors = errors_of_a_step(setup, reference);
  for (auto const& [name, relative] : errors) {
    EXPECT_LT(relative, tolerance) << name;
  }
  EXPECT_EQ(errors.size() - 2, reference.gradients())
      << "a tensor of the reference is missing here";
  auto const worst = std::ranges::max_element(errors, {}, &Error::relative);
  std::cout << fmt::format("{:7} {}: worst of {} tensors {:.1e} ({})\n", model, numbers,
                           errors.size(), worst->relative, worst->name);
}

class AgreesWithPyTorch : public ::testing::TestWithParam<char const*> {};

TEST_P(AgreesWithPyTorch, InFp32) {
  agrees_with_pytorch<float>(GetParam(), "fp32", kept_block);
}

TEST_P(AgreesWithPyTorch, InFp32WithRecomputation) {
  agrees_with_pytorch<float>(GetParam(), "fp32", recomputed_block);
}

// What is left then is PyTorch's own rounding.
TEST_P(AgreesWithPyTorch, InFp64) {
  agrees_with_pytorch<double>(GetParam(), "fp64", kept_block);
}

INSTANTIATE_TEST_SUITE_P(Reference, AgreesWithPyTorch,
                         ::testing::Values("llama", "llama3", "qwen2", "gpt2", "qwen3", "mistral",
                                           "linear", "yarn", "phi3", "olmo2", "cerebras"),
                         [](auto const& which) { return std::string{which.param}; });

TEST(TorchFile, HoldsTheBitsThatSafetensorsHold) {
  std::string const directory = std::string{OFFSTAGE_REFERENCES} + "/cerebras/";
  huggingface::TensorFile const torch{directory + "pytorch_model.bin"};
  huggingface::TensorFile const safe{directory + "model.safetensors"};
  EXPECT_EQ(torch.tensors().size(), safe.tensors().size() + 1);
  auto const values = [](huggingface::TensorFile const& file,
                         huggingface::TensorEntry const& tensor) {
    std::vector<std::uint32_t> bits(static_cast<std::size_t>(tensor.end - tensor.begin) / 4);
    file.read(tensor, 0, {reinterpret_cast<float*>(bits.data()), bits.size()});
    return bits;
  };
  for (auto const& [name, tensor] : safe.tensors()) {
    auto const& other = torch.tensors().at(name);
    EXPECT_EQ(other.shape, tensor.shape) << name;
    EXPECT_EQ(other.dtype, tensor.dtype) << name;
    EXPECT_EQ(values(torch, other), values(safe, tensor)) << name;
  }
  // The tied head is the embedding once more.
  EXPECT_EQ(torch.tensors().at("lm_head.weight").begin,
            torch.tensors().at("transformer.wte.weight").begin);
}

}  // namespace
}  // namespace offstage::model
