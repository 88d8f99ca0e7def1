// The head in tiles of rows against the head in one.

#include "model/head.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "device/device.hpp"
#include "model/dims.hpp"
#include "model/slab.hpp"
#include "normal_values.hpp"
#include "state/model_shape.hpp"

namespace offstage::model {
namespace {

constexpr std::int64_t batch = 24;
constexpr std::int64_t sequence = 16;
constexpr std::int64_t vocab = 70;
constexpr std::int64_t hidden = 16;

/// Of 384 rows, with logits of so many at a time.
Dims dims_with(std::int64_t logit_rows) {
  state::ModelShape const shape{.layers = 1,
                                .hidden = hidden,
                                .heads = 2,
                                .kv_heads = 2,
                                .ffn_hidden = 32,
                                .vocab = vocab,
                                .max_sequence = sequence};
  Dims dims = dims_of(shape, {.batch = batch, .sequence = sequence});
  dims.logit_rows = logit_rows;
  return dims;
}

template <class T>
std::vector<T> random_numbers(std::int64_t count, std::uint64_t stream, double scale) {
  return normal_values<T>(1, stream, count, [scale](float number) {
    return load(to_bf16(static_cast<float>(scale * number)));
  });
}

struct Result {
  std::vector<double> loss, dx, d_matrix, d_norm;
};

template <class T>
std::vector<double> numbers(std::span<T const> values) {
  std::vector<double> result;
  for (T const value : values) {
    result.push_back(static_cast<double>(load(value)));
  }
  return result;
}

/// Forward and backward of random rows.
template <class T>
Result run_head(Dims const& dims, bool sum_apart = false) {
  auto const device = device::make_host_device(0);
  auto const stream = device->make_calling_stream("test");
  Slab measure;
  (void)lay_out_head<T>(dims, measure);
  auto const memory = device->allocate(measure.used(), "the head");
  std::ranges::fill(memory.template as<std::byte>(), std::byte{0xFF});  // NaN
  Slab slab{memory};
  auto const activations = lay_out_head<T>(dims, slab);
  std::vector<std::int32_t> targets;
  for (std::int64_t row = 0; row < dims.rows(); ++row) {
    targets.push_back(static_cast<std::int32_t>(row * 7 % vocab));
  }
  std::vector<double> loss(targets.size());
  std::vector<T> const norm(hidden, store<T>(1.0F));
  auto const matrix = random_numbers<T>(vocab * hidden, 1, 0.5);
  auto const before = random_numbers<T>(dims.rows() * hidden, 2, 1.0);
  auto scratch = random_numbers<T>(dims.rows() * hidden, 3, 1.0);
  std::vector<T> dx(scratch.size()), d_norm(norm.size());
  std::vector<Real<T>> sum(matrix.size(), Real<T>(NAN));
  std::vector<T> own(matrix.size());
  std::span<T> const d_matrix =
      sum_apart ? std::span{own} : std::span{reinterpret_cast<T*>(sum.data()), matrix.size()};
  Head<T> const head{dims, *stream, activations, {.loss = loss, .targets = targets}};
  head.forward_backward(
      {.norm = {.weight = norm, .bias = {}}, .matrix = matrix},
      {.before = before, .delta = scratch}, 1.0,
      {.dx = dx,
       .dw = {.norm = {.weight = d_norm, .bias = {}}, .matrix = d_matrix},
       .scratch = scratch,
       .sum = std::span{sum}.first(static_cast<std::size_t>(head_sum_elements<T>(dims)))});
  stream->synchronize();
  return {loss, numbers<T>(dx), numbers<T>(d_matrix), numbers<T>(d_norm)};
}

/// Each element of the gradient within `tolerance` of itself, or of `least` of the largest.
void expect_close(std::vector<double> const& got, std::vector<double> const& wanted,
                  double tolerance, double least = 0x1p-8) {
  double largest = 0;
  for (double const value : wanted) {
    largest = std::max(largest, std::abs(value));
  }
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], wanted[i], tolerance * std::max(std::abs(wanted[i]), least * largest))
        << "element " << i;
  }
}

// 48 tiles of 8 rows: sums rounded to T after each would be off by several roundings.
template <class T>
void expect_tiles_to_round_once(double rounding) {
  auto const tiles = run_head<T>(dims_with(8));
  auto const one = run_head<T>(dims_with(batch * sequence));
  expect_close(tiles.loss, one.loss, 1e-5);
  expect_close(tiles.dx, one.dx, rounding);
  expect_close(tiles.d_norm, one.d_norm, rounding);
  expect_close(tiles.d_matrix, one.d_matrix, rounding);
}

TEST(Head, InTilesRoundsTheMatrixsGradientOnce) {
  expect_tiles_to_round_once<bfloat16>(0x1p-8);
  expect_tiles_to_round_once<float16>(0x1p-10);
  expect_tiles_to_round_once<float>(1e-4);
  expect_tiles_to_round_once<double>(1e-11);
}

/// Weights and what comes in are the same numbers in every type.
template <class T>
void expect_close_to_fp64(double tolerance, std::int64_t tile = 8) {
  auto const exact = run_head<double>(dims_with(batch * sequence));
  auto const tiles = run_head<T>(dims_with(tile));
  expect_close(tiles.loss, exact.loss, tolerance, 1.0);
  expect_close(tiles.dx, exact.dx, tolerance, 1.0);
  expect_close(tiles.d_norm, exact.d_norm, tolerance, 1.0);
  expect_close(tiles.d_matrix, exact.d_matrix, tolerance, 1.0);
}

TEST(Head, InTilesIsCloseToFp64) {
  expect_close_to_fp64<double>(1e-12);
  expect_close_to_fp64<float>(1e-5);
  expect_close_to_fp64<float16>(0.02 / 8);
  expect_close_to_fp64<bfloat16>(0.02);
}

// A tile with all rows, whose logits come in parts of 360 and 24 rows.
TEST(Head, InPartsOfATileIsCloseToFp64) {
  ASSERT_EQ(dims_with(360).tile_rows(), batch * sequence);
  expect_close_to_fp64<double>(1e-12, 360);
  expect_close_to_fp64<float>(1e-5, 360);
  expect_close_to_fp64<bfloat16>(0.02, 360);
}

// A tile of one row has 128 elements, the matrix 1120: 128 of its sum go by way of the tile's
// memory, 128, 256, 512 and the last 96 straight to the first half of the sum's.
TEST(Head, RoundsTheSumWhereItLies) {
  expect_close_to_fp64<float16>(0.02 / 8, 1);
  expect_close_to_fp64<bfloat16>(0.02, 1);
}

TEST(Head, GivesTheSameBitsWhereverItSums) {
  for (std::int64_t const tile : {1, 8}) {
    auto const inside = run_head<bfloat16>(dims_with(tile));
    auto const apart = run_head<bfloat16>(dims_with(tile), true);
    EXPECT_EQ(inside.d_matrix, apart.d_matrix);
    EXPECT_EQ(inside.d_norm, apart.d_norm);
    EXPECT_EQ(inside.dx, apart.dx);
  }
}

TEST(Head, RefusesASumThatLiesOverOtherPartsOfTheMatrixOrIsOfAnotherSize) {
  auto const dims = dims_with(8);
  auto const device = device::make_host_device(0);
  auto const stream = device->make_calling_stream("test");
  Slab measure;
  (void)lay_out_head<bfloat16>(dims, measure);
  auto const memory = device->allocate(measure.used(), "the head");
  Slab slab{memory};
  Head<bfloat16> const head{dims, *stream, lay_out_head<bfloat16>(dims, slab), {}};
  std::vector<float> memory_of_sums(2 * vocab * hidden);
  constexpr std::size_t elements = vocab * hidden;
  std::span const all{memory_of_sums};
  std::span const matrix{reinterpret_cast<bfloat16*>(all.data() + 2), elements};
  auto const expect_refused = [&](std::span<float> sum) {
    EXPECT_THROW(head.forward_backward(
                     {}, {}, 1.0,
                     {.dx = {}, .dw = {.norm = {}, .matrix = matrix}, .scratch = {}, .sum = sum}),
                 PreconditionError);
  };
  expect_refused(all.first(elements));
  expect_refused(all.subspan(3, elements));
  expect_refused({});
  expect_refused(all.subspan(2, elements - 1));
}

TEST(Head, InTilesTakesMemoryForATileAlone) {
  auto const bytes = [](Dims const& dims) {
    Slab slab;
    (void)lay_out_head<bfloat16>(dims, slab);
    return slab.used();
  };
  // (rows, 70) in rows of 128 elements.
  Bytes const logits = 128 * (2 + 4);
  EXPECT_EQ(dims_with(8).tile_rows(), 8);
  EXPECT_EQ(bytes(dims_with(384)) - bytes(dims_with(8)), (384 - 8) * logits);
  EXPECT_EQ(head_sum_elements<bfloat16>(dims_with(8)), vocab * hidden);
  EXPECT_EQ(head_sum_elements<bfloat16>(dims_with(384)), 0);
  EXPECT_EQ(head_sum_elements<float>(dims_with(8)), 0);
  // A tile and the sum would be no less than all rows.
  EXPECT_EQ(dims_with(384 - 2 * hidden).tile_rows(), 384);
  EXPECT_EQ(dims_with(384 - 2 * hidden - 1).tile_rows(), 384 - 2 * hidden - 1);
}

}  // namespace
}  // namespace offstage::model
