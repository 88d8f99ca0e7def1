#include "kernels/pointwise/rope.hpp"

#include <numbers>

#include "kernels/pointwise_support.hpp"

namespace offstage::kernels {
namespace {

template <class T>
struct Rotation {
  std::int64_t rows, sequence, heads, kv_heads, head_dim;
  std::vector<T> qkv;
  std::vector<Real<T>> cosine, sine;
  bool inverse = false;

  Rotation(std::int64_t row_count, std::int64_t head_size)
      : rows{row_count},
        sequence{(row_count + 1) / 2},
        heads{3},
        kv_heads{1},
        head_dim{head_size},
        qkv{random_values<T>(rows * 5 * head_dim, 1)} {
    std::vector<double> c(sequence * head_dim / 2), s(c.size());
    rope_tables(sequence, head_dim, 100.0, c, s);
    cosine = convert<Real<T>>(c);
    sine = convert<Real<T>>(s);
  }
  Rope<T> view() { return {qkv, cosine, sine, rows, sequence, heads, kv_heads, head_dim, inverse}; }
};

TEST(RopeTables, AngleIsPositionTimesAPowerOfTheta) {
  std::vector<double> cosine(6), sine(6);
  rope_tables(3, 4, 10'000.0, cosine, sine);
  EXPECT_EQ(cosine[0], 1.0);
  EXPECT_EQ(sine[1], 0.0);
  EXPECT_DOUBLE_EQ(cosine[4], std::cos(2.0));
  EXPECT_DOUBLE_EQ(sine[5], std::sin(2.0 * 0.01));
}

/// The frequencies of a head of six elements, from the angles of position 1.
std::vector<double> frequencies(RopeScaling const& scaling) {
  std::vector<double> cosine(6), sine(6);
  rope_tables(2, 6, 1000.0, cosine, sine, scaling);
  return {std::asin(sine[3]), std::asin(sine[4]), std::asin(sine[5])};
}

// Turns in 40 pi tokens: 20, 2 and 0.2, so that each of the three cases of the scaling has one.
TEST(RopeTables, Llama3ScalesByWavelength) {
  auto const plain = frequencies({});
  EXPECT_NEAR(plain[0], 1.0, 1e-15);
  EXPECT_NEAR(plain[1], 0.1, 1e-15);
  EXPECT_NEAR(plain[2], 0.01, 1e-15);

  auto const scaled = frequencies(Llama3Scaling{.factor = 8.0,
                                                .low_frequency = 1.0,
                                                .high_frequency = 4.0,
                                                .original_sequence = 40 * std::numbers::pi});
  EXPECT_NEAR(scaled[0], 1.0, 1e-15);
  EXPECT_NEAR(scaled[1], 0.1 * (2.0 / 3 / 8 + 1.0 / 3), 1e-15);  // a third of the way up from 1
  EXPECT_NEAR(scaled[2], 0.01 / 8, 1e-15);
}

TEST(RopeTables, LinearStretchesAllAlike) {
  auto const scaled = frequencies(LinearScaling{.factor = 4.0});
  EXPECT_NEAR(scaled[0], 0.25, 1e-15);
  EXPECT_NEAR(scaled[1], 0.025, 1e-15);
  EXPECT_NEAR(scaled[2], 0.0025, 1e-15);
}

// Four turns lie at number 6 ln(5) / (2 ln(1000)) = 0.70 of the frequencies, half a turn at 1.60:
// the ramp goes from 0 to 2.
TEST(RopeTables, YarnScalesByNumberAndMakesCosinesAndSinesLarger) {
  YarnScaling yarn{.factor = 8.0,
                   .slow = 0.5,
                   .fast = 4.0,
                   .original_sequence = 40 * std::numbers::pi,
                   .attention_factor = 1.0};
  auto const scaled = frequencies(yarn);
  EXPECT_NEAR(scaled[0], 1.0, 1e-15);
  EXPECT_NEAR(scaled[1], 0.1 * (0.5 / 8 + 0.5), 1e-15);
  EXPECT_NEAR(scaled[2], 0.01 / 8, 1e-15);

  yarn.attention_factor = 1.25;
  std::vector<double> cosine(6), sine(6);
  rope_tables(2, 6, 1000.0, cosine, sine, yarn);
  EXPECT_EQ(cosine[0], 1.25);
  EXPECT_NEAR(cosine[3], 1.25 * std::cos(1.0), 1e-15);
  EXPECT_NEAR(sine[3], 1.25 * std::sin(1.0), 1e-15);
}

// Wavelengths of 2 pi 10^0.3 lie at number 0.3 of the frequencies, those of 2 pi 10^6.5 at 6.5,
// behind the last element of the head: the ramp goes from 0 to 5, as in transformers.
TEST(RopeTables, YarnEndsTheRampAtTheLastElement) {
  double const turn = 2 * std::numbers::pi;
  auto const scaled = frequencies(YarnScaling{.factor = 8.0,
                                              .slow = std::pow(10.0, -6.5),
                                              .fast = std::pow(10.0, -0.3),
                                              .original_sequence = turn,
                                              .attention_factor = 1.0});
  EXPECT_NEAR(scaled[0], 1.0, 1e-15);
  EXPECT_NEAR(scaled[1], 0.1 * (0.2 / 8 + 0.8), 1e-15);
  EXPECT_NEAR(scaled[2], 0.01 * (0.4 / 8 + 0.6), 1e-15);
}

// Wavelengths of 2 pi 10^-1.5 would lie at number -1.5 of the frequencies, before the first: the
// ramp goes from 0 to 2.
TEST(RopeTables, YarnBeginsTheRampAtTheFirstElement) {
  auto const scaled = frequencies(YarnScaling{.factor = 8.0,
                                              .slow = std::pow(10.0, -1.5),
                                              .fast = std::pow(10.0, 1.5),
                                              .original_sequence = 2 * std::numbers::pi,
                                              .attention_factor = 1.0});
  EXPECT_NEAR(scaled[0], 1.0, 1e-15);
  EXPECT_NEAR(scaled[1], 0.1 * (0.5 / 8 + 0.5), 1e-15);
  EXPECT_NEAR(scaled[2], 0.01 / 8, 1e-15);
}

// Both ends of the ramp lie before the first element: it is a thousandth wide, as in transformers.
TEST(RopeTables, YarnWithoutARampKeepsTheFirstElementAlone) {
  auto const scaled = frequencies(YarnScaling{.factor = 8.0,
                                              .slow = std::pow(10.0, 0.5),
                                              .fast = std::pow(10.0, 1.5),
                                              .original_sequence = 2 * std::numbers::pi,
                                              .attention_factor = 1.0});
  EXPECT_NEAR(scaled[0], 1.0, 1e-15);
  EXPECT_NEAR(scaled[1], 0.1 / 8, 1e-15);
  EXPECT_NEAR(scaled[2], 0.01 / 8, 1e-15);
}

TEST(RopeTables, RejectsOddHeadsAndWrongLengths) {
  std::vector<double> six(6), four(4);
  EXPECT_THROW(rope_tables(3, 4, 1e4, six, four), PreconditionError);
  EXPECT_THROW(rope_tables(2, 3, 1e4, six, six), PreconditionError);
  EXPECT_THROW(rope_tables(3, 4, 1e4, six, six, Llama3Scaling{0.0, 1.0, 4.0, 9.0}),
               PreconditionError);
  EXPECT_THROW(rope_tables(3, 4, 1e4, six, six, Llama3Scaling{8.0, 4.0, 4.0, 9.0}),
               PreconditionError);
  EXPECT_THROW(rope_tables(3, 4, 1e4, six, six, LinearScaling{0.0}), PreconditionError);
  EXPECT_THROW(rope_tables(3, 4, 1e4, six, six, YarnScaling{8.0, 4.0, 4.0, 9.0, 1.0}),
               PreconditionError);
}

// A quarter turn: (first, second) becomes (-second, first); position 0 and the values stay.
TEST(Rope, TurnsQueriesAndKeysButNotValues) {
  std::vector<double> qkv{1, 2, 3, 4, 5, 6,  //
                          1, 2, 3, 4, 5, 6};
  std::vector<double> const cosine{1, 0}, sine{0, 1};

  ref::rope<double>({qkv, cosine, sine, 2, 2, 1, 1, 2});

  EXPECT_EQ(qkv, (std::vector<double>{1, 2, 3, 4, 5, 6, -2, 1, -4, 3, 5, 6}));
}

TEST(Rope, PairsAnElementWithTheOneHalfAHeadAway) {
  std::vector<float> qkv{1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0};
  std::vector<float> const cosine{0, 1}, sine{1, 0};  // a quarter turn, none

  host::rope<float>({qkv, cosine, sine, 1, 1, 1, 1, 4});

  EXPECT_EQ(std::vector<float>(qkv.begin(), qkv.begin() + 4), (std::vector<float>{-3, 2, 1, 4}));
}

TEST(Rope, InverseMatchesCentralDifferences) {
  Rotation<double> r{5, 6};
  auto const input = r.qkv;
  auto d = random_values(static_cast<std::int64_t>(input.size()), 2);
  auto at = input;
  auto const expected = central_differences(at, [&] {
    r.qkv = at;
    ref::rope(r.view());
    return dot(r.qkv, d);
  });

  r.qkv = d;
  r.inverse = true;
  ref::rope(r.view());

  expect_close(r.qkv, expected, 1e-8);
}

TEST(Rope, InverseUndoesTheRotation) {
  Rotation<float> r{7, 10};
  auto const input = convert<double>(r.qkv);
  host::rope(r.view());
  r.inverse = true;
  host::rope(r.view());
  expect_close(convert<double>(r.qkv), input, 1e-6);
}

template <class T>
void expect_host_rounds_as_ref(std::int64_t rows, std::int64_t head_dim, bool inverse) {
  Rotation<T> plain{rows, head_dim}, fast{rows, head_dim};
  plain.inverse = fast.inverse = inverse;
  ref::rope(plain.view());
  host::rope(fast.view());
  expect_same_rounding(fast.qkv, plain.qkv);
}

TEST(Rope, HostMatchesTheReference) {
  for (std::int64_t const head_dim : {2, 6, 64, 70}) {
    for (std::int64_t const rows : {1, 9}) {
      for (bool const inverse : {false, true}) {
        Rotation<double> exact{rows, head_dim};
        Rotation<float> fast{rows, head_dim};
        exact.inverse = fast.inverse = inverse;
        ref::rope(exact.view());
        host::rope(fast.view());
        expect_close(convert<double>(fast.qkv), exact.qkv, 1e-6);
        expect_host_rounds_as_ref<bfloat16>(rows, head_dim, inverse);
        expect_host_rounds_as_ref<float16>(rows, head_dim, inverse);
      }
    }
  }
}

TEST(Rope, RunsOnAStream) {
  Rotation<double> exact{4, 8};
  Rotation<float> fast{4, 8};
  Rotation<bfloat16> coarse{4, 8};
  Rotation<float16> half{4, 8};
  on_stream([&](device::Stream& stream) {
    rope(stream, exact.view());
    rope(stream, fast.view());
    rope(stream, coarse.view());
    rope(stream, half.view());
  });
  expect_close(convert<double>(fast.qkv), exact.qkv, 1e-6);
  expect_close(convert<double>(coarse.qkv), exact.qkv, 1e-2);
  expect_close(convert<double>(half.qkv), exact.qkv, 1e-3);
}

TEST(Rope, RejectsBadShapesAndLengths) {
  auto const reject = [](auto const& spoil) {
    Rotation<float> r{4, 6};
    spoil(r);
    EXPECT_THROW(ref::rope(r.view()), PreconditionError);
    EXPECT_THROW(host::rope(r.view()), PreconditionError);
  };
  reject([](auto& r) { r.qkv.pop_back(); });
  reject([](auto& r) { r.cosine.pop_back(); });
  reject([](auto& r) { r.sine.pop_back(); });
  reject([](auto& r) { r.head_dim = 3; });
  reject([](auto& r) { r.sequence = 0; });
}

}  // namespace
}  // namespace offstage::kernels
