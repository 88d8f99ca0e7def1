// Offstage's optimizers against torch.optim's (README.md).

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/optimizer/optimizer.hpp"

namespace offstage {
namespace {

constexpr std::int64_t elements = 24;
constexpr std::int64_t steps = 50;

struct Reference {
  std::string name;
  double momentum{};
  std::vector<double> parameters;
};

std::vector<Reference> read_references() {
  std::ifstream file{OFFSTAGE_REFERENCES "/optimizers.txt"};
  std::vector<Reference> all;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words{line};
    Reference& reference = all.emplace_back();
    words >> reference.name >> reference.momentum;
    for (double value{}; words >> value;) {
      reference.parameters.push_back(value);
    }
  }
  return all;
}

kernels::Optimizer optimizer_of(std::string const& name) {
  using enum kernels::Optimizer;
  for (kernels::Optimizer const optimizer : {adamw, adam, adagrad, rmsprop, sgd, lion}) {
    if (name_of(optimizer) == name) {
      return optimizer;
    }
  }
  throw std::runtime_error{"no optimizer " + name};
}

// As in make_optimizers.py.
float start(std::int64_t i) {
  return (static_cast<float>(i * 29 % 64) - 31.5F) / 16.0F;
}
float gradient(std::int64_t i, std::int64_t step) {
  auto const turn = static_cast<float>((i * 37 + step * 101) % 64) / 32.0F;
  auto const shift = static_cast<float>(step % 3);
  auto const power = static_cast<int>(i % 6);
  return turn * std::ldexp(1.0F, power - 1) - std::ldexp(1.0F, power - 2) * shift;
}

std::vector<float> trained(kernels::OptimizerStep step) {
  StateLayout const layout =
      kernels::state_layout(step.optimizer, kernels::Moments::fp32, step.momentum > 0.0);
  std::vector<std::vector<float>> planes(layout.planes().size(), std::vector<float>(elements));
  std::vector<float> gradients(elements), copy(elements);
  kernels::OptimizerPart part{.planes = {},
                              .gradient = std::span<float const>{gradients},
                              .working_copy = std::span{copy},
                              .elements = elements,
                              .decayed = elements};
  for (std::size_t i = 0; i < planes.size(); ++i) {
    part.planes[i] = reinterpret_cast<std::byte*>(planes[i].data());
  }
  for (std::int64_t i = 0; i < elements; ++i) {
    planes[0][static_cast<std::size_t>(i)] = start(i);
  }
  for (step.step = 1; step.step <= steps; ++step.step) {
    for (std::int64_t i = 0; i < elements; ++i) {
      gradients[static_cast<std::size_t>(i)] = gradient(i, step.step);
    }
    kernels::host::optimize(layout, part, step);
  }
  return planes[0];
}

TEST(Optimizers, AreWhereTorchIsAfter50Steps) {
  auto const references = read_references();
  ASSERT_EQ(references.size(), 7U);
  for (auto const& [name, momentum, expected] : references) {
    SCOPED_TRACE(testing::Message() << name << ", momentum " << momentum);
    ASSERT_EQ(std::ssize(expected), elements);
    auto const got = trained({.optimizer = optimizer_of(name),
                              .learning_rate = 0x1p-6,
                              .beta1 = 0.875,
                              .beta2 = 0.9375,
                              .momentum = momentum,
                              .epsilon = 0x1p-20,
                              .weight_decay = 0.125,
                              .gradient_scale = 1.0});
    for (std::size_t i = 0; i < expected.size(); ++i) {
      // 50 roundings of p, and those of the momentum.
      EXPECT_NEAR(got[i], expected[i], 3e-6 * std::max(1.0, std::abs(expected[i]))) << i;
    }
  }
}

}  // namespace
}  // namespace offstage
