#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <variant>
#include <vector>

#include "kernels/optimizer/optimizer.hpp"
#include "kernels/optimizer/rounding.hpp"
#include "kernels/optimizer_support.hpp"

namespace offstage::kernels {

/// A rule, and how it keeps its state.
struct OptimizerCase {
  Optimizer optimizer;
  double momentum = 0.0;
  Moments moments = Moments::fp32;
  bool split = false;
  DType gradient = DType::fp32;
  DType copy = DType::bf16;

  [[nodiscard]] StateLayout layout() const {
    return state_layout(optimizer, moments, momentum > 0.0, split);
  }
  [[nodiscard]] std::string name() const {
    return std::string{name_of(optimizer)} + (momentum > 0.0 ? " with momentum, " : ", ") +
           std::string{name_of(moments)} + (split ? " split, " : ", ") + name_of(gradient) +
           " to " + name_of(copy);
  }
};

/// Every rule with FP32 moments.
inline std::vector<OptimizerCase> all_rules() {
  return {{.optimizer = Optimizer::adamw},
          {.optimizer = Optimizer::adam},
          {.optimizer = Optimizer::adagrad},
          {.optimizer = Optimizer::rmsprop},
          {.optimizer = Optimizer::rmsprop, .momentum = 0.9},
          {.optimizer = Optimizer::sgd},
          {.optimizer = Optimizer::sgd, .momentum = 0.9},
          {.optimizer = Optimizer::lion}};
}

/// Every rule with all the moments that it has.
inline std::vector<OptimizerCase> all_moments() {
  std::vector<OptimizerCase> cases;
  for (OptimizerCase rule : all_rules()) {
    for (Moments const moments : {Moments::fp32, Moments::bf16, Moments::int8}) {
      if (moments == Moments::fp32 || rule.optimizer != Optimizer::sgd || rule.momentum > 0.0) {
        rule.moments = moments;
        cases.push_back(rule);
      }
    }
  }
  return cases;
}

inline OptimizerStep ordinary_optimizer_step(OptimizerCase const& of) {
  return {.optimizer = of.optimizer,
          .learning_rate = 1e-3,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .momentum = of.momentum,
          .epsilon = 1e-8,
          .weight_decay = 0.1,
          .gradient_scale = 0.125,
          .step = 3,
          .seed = 17};
}

inline std::size_t size_of(DType type) {
  return static_cast<std::size_t>(bytes_of(type));
}

/// Owns what a step needs: `guard` elements, `count` elements, and more guard elements behind.
class OptimizerArrays {
 public:
  OptimizerArrays(OptimizerCase const& of, std::size_t elements, std::size_t guard, Values kind)
      : layout{of.layout()},
        gradient_type{of.gradient},
        copy_type{of.copy},
        offset{guard},
        count{elements} {
    std::size_t const all = guard + elements + 3;
    gradient = numbers(of.gradient, all, kind, 4);
    copy = numbers(of.copy, all, Values::ordinary, 5);
    for (Plane const& plane : layout.planes()) {
      planes.push_back(values_of(plane, all, kind));
    }
  }

  [[nodiscard]] OptimizerPart part() {
    OptimizerPart part{.gradient = {},
                       .working_copy = {},
                       .elements = static_cast<std::int64_t>(count),
                       .decayed = static_cast<std::int64_t>(decayed),
                       .layer = 2,
                       .first = 512};
    for (std::size_t i = 0; i < planes.size(); ++i) {
      part.planes[i] = at(i);
    }
    switch (gradient_type) {
      case DType::fp32:
        part.gradient = std::span{as<float const>(gradient), count};
        break;
      case DType::bf16:
        part.gradient = std::span{as<bfloat16 const>(gradient), count};
        break;
      case DType::fp16:
        part.gradient = std::span{as<float16 const>(gradient), count};
        break;
    }
    switch (copy_type) {
      case DType::fp32:
        part.working_copy = std::span{as<float>(copy), count};
        break;
      case DType::bf16:
        part.working_copy = std::span{as<bfloat16>(copy), count};
        break;
      case DType::fp16:
        part.working_copy = std::span{as<float16>(copy), count};
        break;
    }
    return part;
  }
  /// Where a plane's values of the part begin.
  [[nodiscard]] std::byte* at(std::size_t plane) {
    Plane const& of = layout.planes()[plane];
    auto const per_value = static_cast<std::size_t>(of.elements_per_value);
    return planes[plane].data() + offset / per_value * static_cast<std::size_t>(bytes_of(of.type));
  }
  template <class T>
  [[nodiscard]] T* plane(std::size_t index) {
    return reinterpret_cast<T*>(at(index));
  }
  template <class T>
  [[nodiscard]] T* as(std::vector<std::byte>& numbers) {
    return reinterpret_cast<T*>(numbers.data()) + offset;
  }

  StateLayout layout;
  DType gradient_type, copy_type;
  std::size_t offset;
  std::size_t count;
  std::size_t decayed = 0;
  std::vector<std::vector<std::byte>> planes;
  std::vector<std::byte> gradient, copy;

 private:
  template <class T>
  static std::vector<std::byte> bytes_of_all(std::vector<T> const& values) {
    auto const* const begin = reinterpret_cast<std::byte const*>(values.data());
    return {begin, begin + values.size() * sizeof(T)};
  }
  static std::vector<std::byte> numbers(DType type, std::size_t all, Values kind,
                                        std::uint64_t stream) {
    switch (type) {
      case DType::bf16:
        return bytes_of_all(make_values<bfloat16>(all, kind, stream));
      case DType::fp16:
        return bytes_of_all(make_values<float16>(all, kind, stream));
      case DType::fp32:
        break;
    }
    return bytes_of_all(make_values<float>(all, kind, stream));
  }
  static std::vector<std::byte> codes(std::size_t all, std::uint64_t stream) {
    std::vector<std::uint8_t> values(all);
    for (std::size_t i = 0; i < all; ++i) {
      values[i] = static_cast<std::uint8_t>(philox(5, stream, i)[0]);
    }
    return bytes_of_all(values);
  }
  static std::vector<std::byte> scales(std::size_t all, Values kind, std::uint64_t stream) {
    std::vector<float> values(all / static_cast<std::size_t>(scale_block) + 1);
    for (std::size_t i = 0; i < values.size(); ++i) {
      auto const words = philox(6, stream, i);
      std::uint32_t const power =
          kind == Values::ordinary ? 120 + words[0] % 10 : 35 + words[0] % 219;
      bool const is_rare = kind != Values::ordinary && words[1] % 8 == 0;
      values[i] = is_rare ? (kind == Values::extreme ? float_of_bits(nan_bits) : 0.0F)
                          : float_of_bits(power << 23);
    }
    return bytes_of_all(values);
  }
  /// What the plane could hold: canonical NaNs, and no variance below zero.
  static std::vector<std::byte> values_of(Plane const& plane, std::size_t all, Values kind) {
    bool const is_variance = plane.name.starts_with("variance");
    std::uint64_t const stream = plane.name == "parameter" ? 1 : is_variance ? 3 : 2;
    switch (plane.type) {
      case PlaneType::signed8:
      case PlaneType::unsigned8:
        return codes(all, stream);
      case PlaneType::low16: {
        auto const words = make_values<float>(all, Values::ordinary, stream);
        std::vector<std::uint16_t> lower(all);
        for (std::size_t i = 0; i < all; ++i) {
          lower[i] = static_cast<std::uint16_t>(bits_of_float(words[i]));
        }
        return bytes_of_all(lower);
      }
      case PlaneType::bf16: {
        auto values = make_values<bfloat16>(all, kind, stream);
        for (bfloat16& value : values) {
          float const x = to_float(value);
          value = to_bf16(is_variance ? x * x : x);
        }
        return bytes_of_all(values);
      }
      case PlaneType::fp32:
        break;
    }
    if (plane.elements_per_value > 1) {
      return scales(all, kind, stream);
    }
    auto values = make_values<float>(all, kind, stream);
    for (float& value : values) {
      value = is_variance ? value * value : value;
    }
    return bytes_of_all(values);
  }
};

inline void expect_same_bytes(std::vector<std::byte> const& got,
                              std::vector<std::byte> const& expected, std::string const& what) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] != expected[i]) {
      FAIL() << what << ", byte " << i << ": " << static_cast<int>(got[i]) << ", expected "
             << static_cast<int>(expected[i]);
    }
  }
}

/// Guard elements too.
inline void expect_same_bytes(OptimizerArrays const& got, OptimizerArrays const& expected) {
  for (std::size_t i = 0; i < got.planes.size(); ++i) {
    expect_same_bytes(got.planes[i], expected.planes[i], got.layout.planes()[i].name);
  }
  expect_same_bytes(got.copy, expected.copy, "working copy");
}

}  // namespace offstage::kernels
