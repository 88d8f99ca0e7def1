#include "kernels/linear/matmul.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <new>
#include <type_traits>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/team.hpp"
#include "device/device.hpp"
#include "kernels/host/bf16_unit.hpp"
#include "limits.hpp"
#include "normal_values.hpp"

namespace offstage::kernels {
namespace {

template <class T>
std::vector<T> random_matrix(std::int64_t count, std::uint64_t stream) {
  return normal_values<T>(1, stream, count);
}

template <class T>
std::vector<T> whole_numbers(std::int64_t count, std::uint64_t stream) {
  return normal_values<T>(3, stream, count, [](float number) { return std::round(16 * number); });
}

/// Random rows, `stride` apart, with NaN between them.
template <class T>
std::vector<T> random_rows(std::int64_t rows, std::int64_t length, std::int64_t stride,
                           std::uint64_t stream) {
  auto values = random_matrix<T>(rows * stride, stream);
  for (std::int64_t i = 0; i < rows * stride; ++i) {
    if (i % stride >= length) {
      values[static_cast<std::size_t>(i)] = store<T>(std::numeric_limits<float>::quiet_NaN());
    }
  }
  return values;
}

/// Products in a process whose memory ends, with more room each time; 0 if some were refused and
/// one was not.
template <class T>
int multiply_as_memory_ends() {
  constexpr std::int64_t m = 129, n = 65, k = 71;
  auto const a = random_matrix<T>(m * k, 1);
  auto const b = random_matrix<T>(k * n, 2);
  std::vector<T> c(static_cast<std::size_t>(m * n));
  set_team_size(2);
  int refused = 0;
  for (Bytes room = 0; room <= 256 * MiB; room += 512 * KiB) {
    AddressSpace const space{room};
    try {
      host::matmul(Matmul<T>{a.data(), b.data(), c.data(), m, n, k});
      return refused > 0 ? 0 : 1;
    } catch (Error const& error) {
      if (error.code() != ExitCode::other) {
        return 2;
      }
      ++refused;
    } catch (std::bad_alloc const&) {
      ++refused;
    }
  }
  return 3;
}

TEST(Matmul, IsRefusedWhereMemoryEnds) {
  if (address_space_is_the_sanitizers) {
    GTEST_SKIP() << "sanitizers map terabytes";
  }
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process that has not multiplied yet
  EXPECT_EXIT(std::_Exit(multiply_as_memory_ends<float>()), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(std::_Exit(multiply_as_memory_ends<bfloat16>()), ::testing::ExitedWithCode(0), "");
}

struct Case {
  std::int64_t m, n, k;
  Transpose transpose_a, transpose_b;
  /// Elements behind each row of A; behind one of B is 1 more, of C 2 more. 0: rows are dense.
  std::int64_t pad = 0;
};

std::vector<Case> small_cases() {
  std::vector<Case> cases;
  for (auto const a : {Transpose::no, Transpose::yes}) {
    for (auto const b : {Transpose::no, Transpose::yes}) {
      cases.insert(cases.end(), {{1, 1, 1, a, b},
                                 {1, 7, 5, a, b},
                                 {7, 1, 5, a, b},
                                 {6, 5, 1, a, b},
                                 {3, 17, 33, a, b},
                                 {64, 96, 128, a, b},
                                 {129, 65, 71, a, b},
                                 {1, 1, 1, a, b, 3},
                                 {1, 7, 5, a, b, 1},
                                 {7, 1, 5, a, b, 2},
                                 {6, 5, 1, a, b, 1},
                                 {64, 96, 128, a, b, 16},
                                 {129, 65, 71, a, b, 7}});
    }
  }
  return cases;
}

/// Host products of float16 go through tiles of 512 x 1024 x 1024 at most.
std::vector<Case> cases_beyond_a_tile() {
  std::vector<Case> cases;
  for (auto const a : {Transpose::no, Transpose::yes}) {
    for (auto const b : {Transpose::no, Transpose::yes}) {
      cases.insert(cases.end(), {{515, 1029, 1, a, b},
                                 {515, 1, 1027, a, b},
                                 {1, 1029, 1027, a, b, 5},
                                 {5, 1025, 7, a, b},  // the last tile is a column
                                 {5, 1025, 7, a, b, 5}});
    }
  }
  return cases;
}

/// Each entry against a plain sum in double, within `tolerance` of the entry's sum of magnitudes,
/// and half of the smallest float16.
template <class T, class Out>
void expect_product(Matmul<T, Out> const& p, double tolerance) {
  constexpr double smallest = std::is_same_v<Out, float16> ? 0x1p-25 : 0.0;
  for (std::int64_t i = 0; i < p.m; ++i) {
    for (std::int64_t j = 0; j < p.n; ++j) {
      double sum = 0;
      double magnitude = 0;
      for (std::int64_t q = 0; q < p.k; ++q) {
        double const a = load(p.transpose_a == Transpose::yes ? p.a[q * p.a_stride() + i]
                                                              : p.a[i * p.a_stride() + q]);
        double const b = load(p.transpose_b == Transpose::yes ? p.b[j * p.b_stride() + q]
                                                              : p.b[q * p.b_stride() + j]);
        sum += a * b;
        magnitude += std::abs(a * b);
      }
      ASSERT_NEAR(load(p.c[i * p.c_stride() + j]), sum, tolerance * magnitude + smallest)
          << "at (" << i << ", " << j << ") of " << p.m << " x " << p.n << " x " << p.k;
    }
  }
}

template <class T, class Out, class Multiply>
void expect_products(std::vector<Case> const& cases, Multiply multiply) {
  double const tolerance = std::is_same_v<Out, bfloat16>  ? 0x1p-8
                           : std::is_same_v<Out, float16> ? 0x1p-10
                           : std::is_same_v<T, double>    ? 1e-14
                                                          : 2e-6;
  auto const guard = store<Out>(77.0F);
  for (auto const& [m, n, k, transpose_a, transpose_b, pad] : cases) {
    Matmul<T, Out> product{nullptr, nullptr, nullptr, m, n, k, transpose_a, transpose_b};
    if (pad > 0) {
      product.a_pitch = product.a_row() + pad;
      product.b_pitch = product.b_row() + pad + 1;
      product.c_pitch = n + pad + 2;
    }
    auto const a = random_rows<T>(m * k / product.a_row(), product.a_row(), product.a_stride(), 1);
    auto const b = random_rows<T>(k * n / product.b_row(), product.b_row(), product.b_stride(), 2);
    std::vector<Out> c(static_cast<std::size_t>(m * product.c_stride()), guard);
    product.a = a.data();
    product.b = b.data();
    product.c = c.data();
    multiply(product);
    expect_product(product, tolerance);
    for (std::int64_t i = 0; i < std::ssize(c); ++i) {
      if (i % product.c_stride() >= n) {
        ASSERT_EQ(c[static_cast<std::size_t>(i)], guard)
            << "written behind row " << i / product.c_stride();
      }
    }
  }
}

TEST(Matmul, TheReferenceMultipliesTwoByTwoAsOneDoesByHand) {
  float const a[] = {1, 2, 3, 4};
  float const b[] = {5, 6, 7, 8};
  float c[4];
  ref::matmul<float, float>({a, b, c, 2, 2, 2});
  EXPECT_EQ((std::vector<float>{c, c + 4}), (std::vector<float>{19, 22, 43, 50}));
  ref::matmul<float, float>({a, b, c, 2, 2, 2, Transpose::yes, Transpose::no});
  EXPECT_EQ((std::vector<float>{c, c + 4}), (std::vector<float>{26, 30, 38, 44}));
  ref::matmul<float, float>({a, b, c, 2, 2, 2, Transpose::no, Transpose::yes});
  EXPECT_EQ((std::vector<float>{c, c + 4}), (std::vector<float>{17, 23, 39, 53}));
}

TEST(Matmul, TheReferenceTakesEveryTransposeAndType) {
  expect_products<float, float>(small_cases(), [](auto const& p) { ref::matmul(p); });
  expect_products<double, double>(small_cases(), [](auto const& p) { ref::matmul(p); });
  expect_products<bfloat16, bfloat16>(small_cases(), [](auto const& p) { ref::matmul(p); });
  expect_products<bfloat16, float>(small_cases(), [](auto const& p) { ref::matmul(p); });
  expect_products<float16, float>(small_cases(), [](auto const& p) { ref::matmul(p); });
  expect_products<float16, float16>(small_cases(), [](auto const& p) { ref::matmul(p); });
}

TEST(Matmul, TheHostTakesEveryTransposeAndType) {
  expect_products<float, float>(small_cases(), [](auto const& p) { host::matmul(p); });
  expect_products<bfloat16, bfloat16>(small_cases(), [](auto const& p) { host::matmul(p); });
  expect_products<bfloat16, float>(small_cases(), [](auto const& p) { host::matmul(p); });
  expect_products<float16, float>(small_cases(), [](auto const& p) { host::matmul(p); });
  expect_products<float16, float16>(small_cases(), [](auto const& p) { host::matmul(p); });
}

// Decoding multiplies one row: long rows, and more columns than a thread sums at a time.
TEST(Matmul, ARowHasTheSameBitsInATeam) {
  constexpr std::int64_t n = 5003, k = 131;
  auto const a = random_matrix<bfloat16>(k, 1);
  auto const b = random_matrix<bfloat16>(n * k, 2);
  auto const threads = team_size();
  auto const product_in = [&](int team, Transpose transpose_b) {
    set_team_size(team);
    std::vector<float> c(n);
    Matmul<bfloat16, float> const product{a.data(), b.data(), c.data(),      1,
                                          n,        k,        Transpose::no, transpose_b};
    host::matmul(product);
    expect_product(product, 2e-6);
    return c;
  };
  for (auto const transpose_b : {Transpose::no, Transpose::yes}) {
    auto const alone = product_in(1, transpose_b);
    for (int const team : {2, 3, 7}) {
      EXPECT_EQ(product_in(team, transpose_b), alone) << team;
    }
  }
  set_team_size(threads);
}

TEST(Matmul, TilesOfAWidenedProductJoin) {
  expect_products<float16, float>(cases_beyond_a_tile(), [](auto const& p) { host::matmul(p); });
  expect_products<float16, float16>(cases_beyond_a_tile(), [](auto const& p) { host::matmul(p); });
}

TEST(Matmul, AStreamOfTheHostBackendTakesEveryType) {
  auto const device = device::make_host_device(0);
  auto const stream = device->make_calling_stream("test");
  auto const multiply = [&](auto const& p) {
    matmul(*stream, p);
    stream->synchronize();
  };
  expect_products<float, float>(small_cases(), multiply);
  expect_products<double, double>(small_cases(), multiply);
  expect_products<bfloat16, bfloat16>(small_cases(), multiply);
  expect_products<bfloat16, float>(small_cases(), multiply);
  expect_products<float16, float>(small_cases(), multiply);
  expect_products<float16, float16>(small_cases(), multiply);
}

/// Sums of whole numbers below 2^24 are exact in FP32, so reference and host must agree in every
/// bit and a 16-bit result must be rounded once, to nearest even.
template <class T>
void expect_sums_in_fp32_rounded_once() {
  constexpr std::int64_t m = 19, n = 23, k = 300;
  auto const a = whole_numbers<T>(m * k, 1);
  auto const b = whole_numbers<T>(k * n, 2);
  std::vector<float> exact(m * n), sums(m * n);
  std::vector<T> rounded(m * n);
  ref::matmul<T, float>({a.data(), b.data(), exact.data(), m, n, k});
  host::matmul<T, float>({a.data(), b.data(), sums.data(), m, n, k});
  host::matmul<T, T>({a.data(), b.data(), rounded.data(), m, n, k});
  for (std::size_t i = 0; i < exact.size(); ++i) {
    EXPECT_EQ(sums[i], exact[i]);
    EXPECT_EQ(rounded[i], store<T>(exact[i]));
  }
}

TEST(Matmul, BfloatSumsAreKeptInFp32AndRoundedOnce) {
  expect_sums_in_fp32_rounded_once<bfloat16>();
}

TEST(Matmul, Float16SumsAreKeptInFp32AndRoundedOnce) {
  expect_sums_in_fp32_rounded_once<float16>();
}

/// Of whole numbers, so that the order of the sum does not matter; `old` lies in C before.
template <class T>
void expect_to_add_exactly(void (*multiply)(Matmul<T, float> const&)) {
  // Widened operands have more than one tile in k.
  for (auto const& [m, n, k] :
       {std::array{19, 23, 2100}, std::array{1, 5, 1}, std::array{2, 3, 0}}) {
    auto const a = whole_numbers<T>(k * m, 1);
    auto const b = whole_numbers<T>(k * n, 2);
    std::int64_t const pitch = n + 3;
    std::vector<float> product(static_cast<std::size_t>(m * pitch), 0.0F);
    std::vector<float> sum(product.size());
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] = static_cast<float>(1000 + i);
    }
    Matmul<T, float> call{a.data(), b.data(), product.data(), m, n, k, Transpose::yes};
    call.c_pitch = pitch;
    ref::matmul(call);
    call.c = sum.data();
    call.add = true;
    multiply(call);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      EXPECT_EQ(sum[i], static_cast<float>(1000 + i) + product[i]) << "at " << i << ", k = " << k;
    }
  }
}

TEST(Matmul, AddsToWhatIsThereInFp32) {
  expect_to_add_exactly(ref::matmul<bfloat16, float>);
  expect_to_add_exactly(ref::matmul<float, float>);
  expect_to_add_exactly(host::matmul<float, float>);
  expect_to_add_exactly(host::matmul<bfloat16, float>);
  expect_to_add_exactly(host::matmul<float16, float>);
}

TEST(Matmul, AddsNeitherToSixteenBitsNorABiasBeside) {
  std::vector<bfloat16> const x(1);
  std::vector<bfloat16> y(1);
  std::vector<float> z(1);
  Matmul<bfloat16> narrow{x.data(), x.data(), y.data(), 1, 1, 1};
  narrow.add = true;
  EXPECT_THROW(host::matmul(narrow), PreconditionError);
  Matmul<bfloat16, float> with_bias{x.data(), x.data(), z.data(), 1, 1, 1};
  with_bias.add = true;
  with_bias.bias = z.data();
  EXPECT_THROW(host::matmul(with_bias), PreconditionError);
}

TEST(Matmul, ASumBeyondTheRangeOfFloat16IsInfiniteAndOneThatComesBackIsNot) {
  auto const half = [](float value) { return to_fp16(value); };
  std::vector<float16> const a{half(300), half(300), half(300), half(-300)};
  std::vector<float16> const b{half(300), half(300)};
  for (auto const& multiply : {ref::matmul<float16, float16>, host::matmul<float16, float16>}) {
    std::vector<float16> c(2);
    multiply({a.data(), b.data(), c.data(), 2, 1, 2});
    EXPECT_EQ(c, (std::vector<float16>{{0x7C00}, {0}}));
  }
}

TEST(Matmul, HostBitsRepeat) {
  constexpr std::int64_t m = 200, n = 300, k = 150;
  auto const a = random_matrix<bfloat16>(m * k, 1);
  auto const b = random_matrix<bfloat16>(k * n, 2);
  std::vector<float> first(m * n), second(m * n);
  host::matmul<bfloat16, float>({a.data(), b.data(), first.data(), m, n, k});
  host::matmul<bfloat16, float>({a.data(), b.data(), second.data(), m, n, k});
  EXPECT_EQ(first, second);
}

template <class T, class Out>
void expect_zeros_for_empty_sums(void (*multiply)(Matmul<T, Out> const&)) {
  std::vector<Out> c(6, store<Out>(1.0F));
  multiply({nullptr, nullptr, c.data(), 2, 3, 0});
  EXPECT_EQ(c, std::vector<Out>(6));
  c.assign(6, store<Out>(1.0F));
  T const some[6] = {};
  multiply({nullptr, some, c.data(), 0, 3, 2});
  multiply({some, nullptr, c.data(), 3, 0, 2});
  EXPECT_EQ(c, std::vector<Out>(6, store<Out>(1.0F)));
  auto const behind = c[2];
  multiply({.a = nullptr, .b = nullptr, .c = c.data(), .m = 2, .n = 2, .k = 0, .c_pitch = 3});
  EXPECT_EQ(c, (std::vector<Out>{{}, {}, behind, {}, {}, behind}));
}

TEST(Matmul, AnEmptySumIsZeroAndAnEmptyResultIsLeftAlone) {
  expect_zeros_for_empty_sums(ref::matmul<double, double>);
  expect_zeros_for_empty_sums(ref::matmul<bfloat16, float>);
  expect_zeros_for_empty_sums(host::matmul<float, float>);
  expect_zeros_for_empty_sums(host::matmul<bfloat16, bfloat16>);
  expect_zeros_for_empty_sums(host::matmul<bfloat16, float>);
  expect_zeros_for_empty_sums(host::matmul<float16, float16>);
}

/// The bias comes after the product's own rounding, in its own pass.
template <class T, class Out>
void expect_bias_as_of_its_own(void (*multiply)(Matmul<T, Out> const&)) {
  for (std::int64_t const k : {0, 1, 70}) {
    constexpr std::int64_t m = 5, n = 33;
    auto const a = random_matrix<T>(m * k, 1);
    auto const b = random_matrix<T>(k * n, 2);
    auto const bias = random_matrix<Out>(n, 3);
    std::vector<Out> together(m * n), apart(m * n);
    Matmul<T, Out> product{a.data(), b.data(), apart.data(), m, n, k};
    multiply(product);
    ref::bias_forward<Out>({.y = apart, .bias = bias, .rows = m, .width = n});
    product.c = together.data();
    product.bias = bias.data();
    multiply(product);
    EXPECT_EQ(together, apart) << "k = " << k;
  }
}

TEST(Matmul, ABiasHasTheBitsOfAPassOfItsOwn) {
  expect_bias_as_of_its_own(ref::matmul<double, double>);
  expect_bias_as_of_its_own(ref::matmul<bfloat16, bfloat16>);
  expect_bias_as_of_its_own(ref::matmul<float16, float>);
  expect_bias_as_of_its_own(host::matmul<float, float>);
  expect_bias_as_of_its_own(host::matmul<bfloat16, bfloat16>);
  expect_bias_as_of_its_own(host::matmul<float16, float16>);
  expect_bias_as_of_its_own(host::matmul<bfloat16, float>);
}

TEST(Matmul, SumsInMemoryOfTheirOwnAreAllOfCOrNone) {
  auto const gradient = [](auto type, std::int64_t rows) {
    using T = decltype(type);
    return host::sum_bytes(Matmul<T>{.a = nullptr,
                                     .b = nullptr,
                                     .c = nullptr,
                                     .m = rows,
                                     .n = 64,
                                     .k = 32,
                                     .transpose_a = Transpose::yes});
  };
  EXPECT_EQ(gradient(float{}, 50257), 0);
  EXPECT_EQ(gradient(float16{}, 50257), 0);
  EXPECT_EQ(gradient(bfloat16{}, 0), 0);
  auto const odd = gradient(bfloat16{}, 50257);  // none on CPUs without bf16
  EXPECT_TRUE(odd == 0 || odd == 4 * 50257 * 64) << odd;
}

TEST(Matmul, TilesInWhichOperandsAreWidenedAreOfThreeMatrices) {
  auto const tiles = [](auto type, std::int64_t rows) {
    using T = decltype(type);
    return host::widened_bytes(
        Matmul<T>{.a = nullptr, .b = nullptr, .c = nullptr, .m = rows, .n = 64, .k = 32});
  };
  EXPECT_EQ(tiles(float{}, 100), 0);
  EXPECT_EQ(tiles(float16{}, 100), 4 * (100 * 32 + 32 * 64 + 100 * 64));
  EXPECT_EQ(tiles(float16{}, 50257), 4 * (512 * 32 + 32 * 64 + 512 * 64));
  EXPECT_EQ(tiles(bfloat16{}, 100), best_bf16_unit() == Bf16Unit::none ? tiles(float16{}, 100) : 0);
}

TEST(Matmul, NegativeSizesAreRefused) {
  float c[1];
  for (auto const& [m, n, k] : {std::array{-1, 1, 1}, std::array{1, -1, 1}, std::array{1, 1, -1}}) {
    Matmul<float> const product{c, c, c, m, n, k};
    EXPECT_THROW(ref::matmul(product), PreconditionError);
    EXPECT_THROW(host::matmul(product), PreconditionError);
  }
}

TEST(Matmul, APitchOfLessThanARowAndABiasBetweenRowsApartAreRefused) {
  float some[32] = {};
  auto const device = device::make_host_device(0);
  auto const stream = device->make_calling_stream("test");
  auto const refuse = [&](Matmul<float> const& product) {
    EXPECT_THROW(ref::matmul(product), PreconditionError);
    EXPECT_THROW(host::matmul(product), PreconditionError);
    EXPECT_THROW(matmul(*stream, product), PreconditionError);
  };
  Matmul<float> const good{some, some + 8, some + 16, 2, 3, 4};
  auto spoilt = good;
  spoilt.a_pitch = 3;
  refuse(spoilt);
  spoilt.transpose_a = Transpose::yes;  // rows of 2
  EXPECT_NO_THROW(host::matmul(spoilt));
  spoilt.a_pitch = -2;
  refuse(spoilt);
  spoilt = good;
  spoilt.b_pitch = 2;
  refuse(spoilt);
  spoilt.b_pitch = 3;
  spoilt.transpose_b = Transpose::yes;  // rows of 4
  refuse(spoilt);
  spoilt = good;
  spoilt.c_pitch = 2;
  refuse(spoilt);
  spoilt.c_pitch = 4;
  EXPECT_NO_THROW(host::matmul(spoilt));
  spoilt.bias = some;
  refuse(spoilt);
  spoilt.c_pitch = 3;
  EXPECT_NO_THROW(host::matmul(spoilt));
}

}  // namespace
}  // namespace offstage::kernels
