#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/random.hpp"
#include "device/device.hpp"
#include "kernels/gpu_support.hpp"
#include "kernels/linear/matmul.hpp"
#include "platform/cuda/blas_lt.hpp"
#include "platform/cuda/check.hpp"
#include "platform/cuda/gpus.hpp"

namespace offstage::kernels {
namespace {

struct Case {
  std::int64_t m, n, k;
  Transpose transpose_a, transpose_b;
  bool bias;
  std::size_t shift;  ///< elements between what cudaMalloc gives and each matrix
  /// Elements behind each row; of C none with a bias.
  std::int64_t pad_a = 0, pad_b = 0, pad_c = 0;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (auto const a : {Transpose::no, Transpose::yes}) {
    for (auto const b : {Transpose::no, Transpose::yes}) {
      for (bool const bias : {false, true}) {
        all.insert(all.end(), {{1, 1, 1, a, b, bias, 0},
                               {1, 7, 5, a, b, bias, 0},
                               {7, 1, 5, a, b, bias, 1},
                               {6, 5, 1, a, b, bias, 0},
                               {3, 17, 33, a, b, bias, 3},
                               {64, 96, 128, a, b, bias, 0},
                               {64, 96, 128, a, b, bias, 8},
                               {64, 96, 128, a, b, bias, 0, 8, 0, 0},
                               {64, 96, 128, a, b, bias, 0, 0, 8, 0},
                               {64, 96, 128, a, b, bias, 0, 0, 0, 8},
                               {129, 65, 71, a, b, bias, 0},
                               {129, 65, 71, a, b, bias, 0, 3, 11, 19}});
      }
    }
  }
  return all;
}

/// A product of a case on a stream, its operands drawn by `draw(number, index)`.
template <class T, class Out>
struct Trial {
  template <class Draw>
  Trial(Case const& of, Draw const& draw) : what{of} {
    product.m = what.m;
    product.n = what.n;
    product.k = what.k;
    product.transpose_a = what.transpose_a;
    product.transpose_b = what.transpose_b;
    product.a_pitch = product.a_row() + what.pad_a;
    product.b_pitch = product.b_row() + what.pad_b;
    product.c_pitch = what.n + (what.bias ? 0 : what.pad_c);
    bool const a_columns = what.transpose_a == Transpose::yes;
    bool const b_columns = what.transpose_b == Transpose::yes;
    fill(a, a_columns ? what.k : what.m, product.a_row(), product.a_stride(), 1, draw);
    fill(b, b_columns ? what.n : what.k, product.b_row(), product.b_stride(), 2, draw);
    fill(bias, what.bias ? 1 : 0, what.n, what.n, 3, draw);
  }
  /// The rows of C, one after another; the product so many times, each added to the one before.
  [[nodiscard]] std::vector<Out> run(device::Stream& stream, int times = 1) const {
    DeviceArray<T> const there_a{a}, there_b{b};
    DeviceArray<Out> const there_bias{bias};
    auto const guard = store<Out>(77.0F);
    auto const is_guard = [&](std::size_t at) {
      return at < what.shift || (at - what.shift) % size_of(product.c_stride()) >= size_of(what.n);
    };
    std::vector<Out> c(what.shift + size_of(what.m * product.c_stride()));
    for (std::size_t i = 0; i < c.size(); ++i) {
      c[i] = is_guard(i) ? guard : store<Out>(std::numeric_limits<float>::quiet_NaN());
    }
    DeviceArray<Out> const there_c{c};
    auto there = product;
    there.a = there_a.view(what.shift, 0).data();
    there.b = there_b.view(what.shift, 0).data();
    there.c = there_c.view(what.shift, 0).data();
    there.bias = what.bias ? there_bias.view(what.shift, 0).data() : nullptr;
    for (int i = 0; i < times; ++i) {
      there.add = i > 0;
      matmul<T, Out>(stream, there);
    }
    stream.synchronize();
    there_c.copy_to(c);
    std::vector<Out> rows;
    for (std::size_t i = 0; i < c.size(); ++i) {
      if (!is_guard(i)) {
        rows.push_back(c[i]);
      } else {
        EXPECT_EQ(c[i], guard) << "written outside the rows";
      }
    }
    return rows;
  }
  /// call(i, j, the sum without the bias, its magnitude), in double.
  template <class Call>
  void for_each_sum(Call const& call) const {
    auto const* const from_a = a.data() + what.shift;
    auto const* const from_b = b.data() + what.shift;
    for (std::int64_t i = 0; i < what.m; ++i) {
      for (std::int64_t j = 0; j < what.n; ++j) {
        double sum = 0.0;
        double magnitude = 0.0;
        for (std::int64_t q = 0; q < what.k; ++q) {
          bool const a_columns = what.transpose_a == Transpose::yes;
          bool const b_columns = what.transpose_b == Transpose::yes;
          auto const at_a = a_columns ? q * product.a_stride() + i : i * product.a_stride() + q;
          auto const at_b = b_columns ? j * product.b_stride() + q : q * product.b_stride() + j;
          double const term =
              static_cast<double>(load(from_a[at_a])) * static_cast<double>(load(from_b[at_b]));
          sum += term;
          magnitude += std::abs(term);
        }
        call(i, j, sum, magnitude);
      }
    }
  }
  [[nodiscard]] double bias_at(std::int64_t j) const {
    return what.bias ? static_cast<double>(load(bias[what.shift + size_of(j)])) : 0.0;
  }
  static std::size_t size_of(std::int64_t count) { return static_cast<std::size_t>(count); }

  Case what;
  Matmul<T, Out> product{};  ///< without addresses
  std::vector<T> a, b;
  std::vector<Out> bias;

 private:
  /// Rows `stride` apart, with NaN between them and before the first.
  template <class Element, class Draw>
  void fill(std::vector<Element>& values, std::int64_t rows, std::int64_t length,
            std::int64_t stride, std::uint64_t number, Draw const& draw) {
    values.assign(what.shift + size_of(rows * stride),
                  store<Element>(std::numeric_limits<float>::quiet_NaN()));
    for (std::int64_t i = 0; i < rows * stride; ++i) {
      if (i % stride < length) {
        auto const at = what.shift + size_of(i);
        values[at] = store<Element>(static_cast<float>(draw(number, at)));
      }
    }
  }
};

double any_number(std::uint64_t number, std::size_t index) {
  return normal(1, number, index);
}

/// Whose products have exact sums in FP32.
double whole_number(std::uint64_t number, std::size_t index) {
  return std::round(16 * normal(3, number, index));
}

template <class Types>
class MatmulOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (offstage::cuda::find_gpus().count == 0) {
      GTEST_SKIP() << "no GPU: not run";
    }
    device = device::make_cuda_device(0, 64 * MiB);
    stream = device->make_calling_stream("compute");
  }

  std::unique_ptr<device::Device> device;
  std::unique_ptr<device::Stream> stream;
};

template <class In, class Result>
struct Types {
  using T = In;
  using Out = Result;
};
using AllTypes =
    testing::Types<Types<float, float>, Types<bfloat16, bfloat16>, Types<bfloat16, float>,
                   Types<float16, float16>, Types<float16, float>>;
TYPED_TEST_SUITE(MatmulOnGpu, AllTypes);

TYPED_TEST(MatmulOnGpu, TakesEveryTransposeSizeAlignmentAndBias) {
  using Out = typename TypeParam::Out;
  // With a bias a result may be rounded twice.
  double const tolerance = std::is_same_v<Out, bfloat16>  ? 0x1.02p-7
                           : std::is_same_v<Out, float16> ? 0x1.01p-10
                                                          : 2e-6;
  constexpr double smallest = std::is_same_v<Out, float16> ? 0x1p-25 : 0.0;
  for (Case const& what : cases()) {
    Trial<typename TypeParam::T, Out> const trial{what, any_number};
    auto const c = trial.run(*this->stream);
    trial.for_each_sum([&](std::int64_t i, std::int64_t j, double sum, double magnitude) {
      double const bias = trial.bias_at(j);
      ASSERT_NEAR(load(c[static_cast<std::size_t>(i * what.n + j)]), sum + bias,
                  tolerance * (magnitude + std::abs(bias)) + smallest)
          << "at (" << i << ", " << j << ") of " << what.m << " x " << what.n << " x " << what.k;
    });
  }
}

TYPED_TEST(MatmulOnGpu, SumsInFp32AndRoundsOnce) {
  using Out = typename TypeParam::Out;
  Case const what{19, 23, 300, Transpose::no, Transpose::yes, false, 0};
  Trial<typename TypeParam::T, Out> const trial{what, whole_number};
  auto const c = trial.run(*this->stream);
  trial.for_each_sum([&](std::int64_t i, std::int64_t j, double sum, double /*magnitude*/) {
    EXPECT_EQ(c[static_cast<std::size_t>(i * what.n + j)], store<Out>(static_cast<float>(sum)));
  });
}

// Twice the same product is twice the sum.
TYPED_TEST(MatmulOnGpu, AddsToWhatIsThereInFp32) {
  using T = typename TypeParam::T;
  if constexpr (std::is_same_v<typename TypeParam::Out, float>) {
    for (Case const& what : {Case{19, 23, 300, Transpose::no, Transpose::yes, false, 0},
                             Case{64, 96, 128, Transpose::yes, Transpose::no, false, 0, 0, 0, 8}}) {
      Trial<T, float> const trial{what, whole_number};
      auto const c = trial.run(*this->stream, 2);
      trial.for_each_sum([&](std::int64_t i, std::int64_t j, double sum, double /*magnitude*/) {
        EXPECT_EQ(c[static_cast<std::size_t>(i * what.n + j)], static_cast<float>(2 * sum));
      });
    }
  } else {
    Trial<T, T> const trial{{1, 2, 3, Transpose::no, Transpose::no, false, 0}, whole_number};
    EXPECT_THROW((void)trial.run(*this->stream, 2), PreconditionError);
  }
}

TYPED_TEST(MatmulOnGpu, RoundsOnceOrTwiceWithABias) {
  using Out = typename TypeParam::Out;
  Case const what{19, 24, 300, Transpose::no, Transpose::no, true, 0};
  Trial<typename TypeParam::T, Out> const trial{what, whole_number};
  auto const c = trial.run(*this->stream);
  trial.for_each_sum([&](std::int64_t i, std::int64_t j, double sum, double /*magnitude*/) {
    auto const bias = static_cast<float>(trial.bias_at(j));
    auto const exact = static_cast<float>(sum);
    EXPECT_THAT(
        c[static_cast<std::size_t>(i * what.n + j)],
        testing::AnyOf(store<Out>(exact + bias), store<Out>(load(store<Out>(exact)) + bias)));
  });
}

TYPED_TEST(MatmulOnGpu, RepeatsItsBitsOnAnyStream) {
  Case const what{200, 300, 1500, Transpose::yes, Transpose::no, true, 0};
  Trial<typename TypeParam::T, typename TypeParam::Out> const trial{what, any_number};
  auto const first = trial.run(*this->stream);
  EXPECT_EQ(first, trial.run(*this->stream));
  EXPECT_EQ(first, trial.run(*this->device->make_calling_stream("another")));
}

TYPED_TEST(MatmulOnGpu, AnEmptySumIsTheBiasAndAnEmptyResultIsLeftAlone) {
  using Out = typename TypeParam::Out;
  using T = typename TypeParam::T;
  Trial<T, Out> const empty{{2, 3, 0, Transpose::no, Transpose::no, false, 0}, any_number};
  EXPECT_EQ(empty.run(*this->stream), std::vector<Out>(6));
  Trial<T, Out> const apart{{2, 3, 0, Transpose::no, Transpose::no, false, 0, 1, 2, 3}, any_number};
  EXPECT_EQ(apart.run(*this->stream), std::vector<Out>(6));
  Trial<T, Out> const bias{{1, 3, 0, Transpose::no, Transpose::no, true, 0}, any_number};
  EXPECT_EQ(bias.run(*this->stream), bias.bias);
  matmul<T, Out>(*this->stream, {nullptr, nullptr, nullptr, 0, 3, 2});
  matmul<T, Out>(*this->stream, {nullptr, nullptr, nullptr, 3, 0, 2});
  this->stream->synchronize();
}

using BlasLtOnGpu = MatmulOnGpu<Types<float, float>>;

TEST_F(BlasLtOnGpu, NamesTheProductThatItDoesNotKnow) {
  using offstage::cuda::Element;
  auto const address = this->stream->scratch().data();
  offstage::cuda::Product const product{.in = Element::f32,
                                        .out = Element::bf16,
                                        .a = address,
                                        .b = address,
                                        .c = address,
                                        .m = 8,
                                        .n = 16,
                                        .k = 32,
                                        .transpose_b = true,
                                        .a_stride = 32,
                                        .b_stride = 32,
                                        .c_stride = 16};
  try {
    (void)this->stream->blas().multiply(product, static_cast<CUstream_st*>(this->stream->native()));
    FAIL() << "must throw";
  } catch (offstage::cuda::CudaError const& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("f32 (8, 32) x (32, 16)^T to bf16"));
  }
}

TEST_F(BlasLtOnGpu, RefusesDoublesNegativeSizesAndPitchesOfLessThanARow) {
  EXPECT_THROW((matmul<double, double>)(*this->stream, {nullptr, nullptr, nullptr, 1, 1, 1}),
               PreconditionError);
  EXPECT_THROW((matmul<float, float>)(*this->stream, {nullptr, nullptr, nullptr, 1, -1, 1}),
               PreconditionError);
  Matmul<float> too_close{nullptr, nullptr, nullptr, 2, 3, 4};
  too_close.a_pitch = 3;
  EXPECT_THROW(matmul(*this->stream, too_close), PreconditionError);
}

}  // namespace
}  // namespace offstage::kernels
