#include "kernels/tokens/embedding.hpp"

#include "kernels/pointwise_support.hpp"

namespace offstage::kernels {
namespace {

template <class T>
struct Lookup {
  std::int64_t rows, vocab, width;
  std::vector<std::int32_t> tokens;
  std::vector<T> table, out, d_out, d_table, positions, d_positions;
  std::int64_t sequence = 0;
  std::vector<std::int32_t> position_of;

  Lookup(std::int64_t row_count, std::int64_t vocab_size, std::int64_t row_width)
      : rows{row_count},
        vocab{vocab_size},
        width{row_width},
        tokens{random_tokens(rows, vocab, 1)},
        table{random_values<T>(vocab * width, 2)},
        out(rows * width),
        d_out{random_values<T>(rows * width, 3)},
        d_table{random_values<T>(vocab * width, 4)} {}
  EmbeddingForward<T> forward() {
    return {tokens, table, out, rows, vocab, width, positions, sequence, position_of};
  }
  EmbeddingBackward<T> backward() {
    return {tokens, d_out, d_table, rows, vocab, width, d_positions, sequence, position_of};
  }
  /// From now on with a table of positions.
  void add_positions(std::int64_t length) {
    sequence = length;
    positions = random_values<T>(sequence * width, 5);
    d_positions = random_values<T>(sequence * width, 6);
  }
};

TEST(Embedding, CopiesTheRowOfEveryToken) {
  std::vector<std::int32_t> const tokens{2, 0, 2};
  std::vector<float> const table{1, 2, 3, 4, 5, 6};
  std::vector<float> by_ref(6), by_host(6);
  ref::embedding_forward<float>({tokens, table, by_ref, 3, 3, 2});
  host::embedding_forward<float>({tokens, table, by_host, 3, 3, 2});
  EXPECT_EQ(by_ref, (std::vector<float>{5, 6, 1, 2, 5, 6}));
  EXPECT_EQ(by_host, by_ref);
}

TEST(Embedding, BackwardAddsRowsToWhatTheTableHolds) {
  std::vector<std::int32_t> const tokens{2, 0, 2};
  std::vector<float> const d_out{1, 2, 3, 4, 5, 6};
  std::vector<float> by_ref{0, 0, 7, 7, 100, 100}, by_host = by_ref;
  ref::embedding_backward<float>({tokens, d_out, by_ref, 3, 3, 2});
  host::embedding_backward<float>({tokens, d_out, by_host, 3, 3, 2});
  EXPECT_EQ(by_ref, (std::vector<float>{3, 4, 7, 7, 106, 108}));
  EXPECT_EQ(by_host, by_ref);
}

// Two sequences of two tokens.
TEST(Embedding, AddsTheRowOfEveryPosition) {
  std::vector<std::int32_t> const tokens{2, 0, 2, 1};
  std::vector<float> const table{1, 2, 3}, positions{10, 20};
  std::vector<float> by_ref(4), by_host(4);
  ref::embedding_forward<float>({tokens, table, by_ref, 4, 3, 1, positions, 2});
  host::embedding_forward<float>({tokens, table, by_host, 4, 3, 1, positions, 2});
  EXPECT_EQ(by_ref, (std::vector<float>{13, 21, 13, 22}));
  EXPECT_EQ(by_host, by_ref);
}

TEST(Embedding, BackwardAddsRowsToTheirPositions) {
  std::vector<std::int32_t> const tokens{2, 0, 2, 1};
  std::vector<float> const d_out{1, 2, 3, 4};
  std::vector<float> d_table(3), by_ref{0, 100}, by_host = by_ref;
  ref::embedding_backward<float>({tokens, d_out, d_table, 4, 3, 1, by_ref, 2});
  EXPECT_EQ(d_table, (std::vector<float>{2, 4, 4}));
  d_table = {0, 0, 0};
  host::embedding_backward<float>({tokens, d_out, d_table, 4, 3, 1, by_host, 2});
  EXPECT_EQ(d_table, (std::vector<float>{2, 4, 4}));
  EXPECT_EQ(by_ref, (std::vector<float>{4, 106}));
  EXPECT_EQ(by_host, by_ref);
}

// Two documents of two tokens and of one, and another sequence.
TEST(Embedding, APositionThatIsGivenTakesThePlaceOfTheRows) {
  std::vector<std::int32_t> const tokens{2, 0, 2, 1, 1, 0}, position_of{0, 1, 0, 0, 1, 2};
  std::vector<float> const table{1, 2, 3}, positions{10, 20, 30}, d_out{1, 2, 3, 4, 5, 6};
  for (bool const on_host : {false, true}) {
    std::vector<float> out(6), d_table(3), d_positions{0, 100, 0};
    EmbeddingForward<float> const forward{tokens, table, out, 6, 3, 1, positions, 3, position_of};
    EmbeddingBackward<float> const backward{tokens, d_out,       d_table, 6,          3,
                                            1,      d_positions, 3,       position_of};
    on_host ? host::embedding_forward(forward) : ref::embedding_forward(forward);
    on_host ? host::embedding_backward(backward) : ref::embedding_backward(backward);
    EXPECT_EQ(out, (std::vector<float>{13, 21, 13, 12, 22, 31}));
    EXPECT_EQ(d_table, (std::vector<float>{8, 9, 4}));
    EXPECT_EQ(d_positions, (std::vector<float>{8, 107, 6}));
  }
}

TEST(Embedding, BackwardSumsInFp32AndRoundsOnce) {
  // In bfloat16 256 + 1 is 256; the sum of four is 260.
  std::vector<std::int32_t> const tokens(4, 0);
  std::vector<bfloat16> const d_out(4, store<bfloat16>(1.0));
  std::vector<bfloat16> d_table(1, store<bfloat16>(256.0));
  host::embedding_backward<bfloat16>({tokens, d_out, d_table, 4, 1, 1});
  EXPECT_EQ(to_float(d_table[0]), 260.0F);
}

TEST(Embedding, ASumThatLeavesTheRangeOfFloat16AndComesBackIsFinite) {
  std::vector<std::int32_t> const tokens(2, 0);
  std::vector<float16> const d_out{store<float16>(60'000.0), store<float16>(-60'000.0)};
  std::vector<float16> by_ref(1, store<float16>(60'000.0)), by_host = by_ref;
  ref::embedding_backward<float16>({tokens, d_out, by_ref, 2, 1, 1});
  host::embedding_backward<float16>({tokens, d_out, by_host, 2, 1, 1});
  EXPECT_EQ(to_float(by_ref[0]), 60'000.0F);
  EXPECT_EQ(by_host, by_ref);
}

TEST(Embedding, BackwardMatchesCentralDifferences) {
  Lookup<double> e{8, 4, 3};
  e.add_positions(4);
  auto const value = [&] {
    ref::embedding_forward(e.forward());
    return dot(e.out, e.d_out);
  };
  auto expected = central_differences(e.table, value);
  auto expected_positions = central_differences(e.positions, value);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i] += e.d_table[i];
    expected_positions[i] += e.d_positions[i];
  }
  ref::embedding_backward(e.backward());
  expect_close(e.d_table, expected, 1e-8);
  expect_close(e.d_positions, expected_positions, 1e-8);
}

template <class T>
void expect_host_like_ref(std::int64_t rows, std::int64_t vocab, std::int64_t width,
                          std::int64_t sequence = 0) {
  Lookup<T> plain{rows, vocab, width}, fast{rows, vocab, width};
  plain.add_positions(sequence);
  fast.add_positions(sequence);
  ref::embedding_forward(plain.forward());
  host::embedding_forward(fast.forward());
  EXPECT_EQ(fast.out, plain.out);
  ref::embedding_backward(plain.backward());
  host::embedding_backward(fast.backward());
  EXPECT_EQ(fast.d_table, plain.d_table);  // the order of the sum is part of the contract
  EXPECT_EQ(fast.d_positions, plain.d_positions);
}

TEST(Embedding, HostGivesTheBitsOfRef) {
  for (Shape const shape : odd_shapes) {
    for (std::int64_t const vocab : {1, 11, 500}) {
      expect_host_like_ref<float>(shape.rows, vocab, shape.width);
      expect_host_like_ref<bfloat16>(shape.rows, vocab, shape.width);
      expect_host_like_ref<float16>(shape.rows, vocab, shape.width);
      expect_host_like_ref<float>(shape.rows, vocab, shape.width, (shape.rows + 1) / 2);
      expect_host_like_ref<bfloat16>(shape.rows, vocab, shape.width, shape.rows);
      expect_host_like_ref<float16>(shape.rows, vocab, shape.width, shape.rows);
    }
  }
  expect_host_like_ref<float>(0, 3, 5);
}

TEST(Embedding, BackwardDoesNotDependOnTheNumberOfThreads) {
  auto const run = [] {
    Lookup<float> e{500, 9, 300};
    host::embedding_backward(e.backward());
    return e.d_table;
  };
  EXPECT_EQ(with_threads(1, run), with_threads(2, run));
}

TEST(Embedding, RunsOnAStream) {
  Lookup<double> exact{6, 3, 4};
  Lookup<float> fast{6, 3, 4};
  Lookup<bfloat16> coarse{6, 3, 4};
  Lookup<float16> half{6, 3, 4};
  on_stream([&](device::Stream& stream) {
    embedding_forward(stream, exact.forward());
    embedding_forward(stream, fast.forward());
    embedding_forward(stream, coarse.forward());
    embedding_forward(stream, half.forward());
    embedding_backward(stream, exact.backward());
    embedding_backward(stream, fast.backward());
    embedding_backward(stream, coarse.backward());
    embedding_backward(stream, half.backward());
  });
  EXPECT_EQ(convert<double>(fast.out), exact.out);
  expect_close(convert<double>(fast.d_table), exact.d_table, 1e-6);
  expect_close(convert<double>(coarse.d_table), exact.d_table, 1e-2);
  expect_close(convert<double>(half.d_table), exact.d_table, 1e-3);
}

TEST(Embedding, RejectsTokensOutsideTheVocabularyAndWrongLengths) {
  auto const reject = [](auto const& spoil, bool forward, bool backward) {
    Lookup<float> e{4, 3, 2};
    spoil(e);
    if (forward) {
      EXPECT_THROW(ref::embedding_forward(e.forward()), PreconditionError);
      EXPECT_THROW(host::embedding_forward(e.forward()), PreconditionError);
    }
    if (backward) {
      EXPECT_THROW(ref::embedding_backward(e.backward()), PreconditionError);
      EXPECT_THROW(host::embedding_backward(e.backward()), PreconditionError);
    }
  };
  reject([](auto& e) { e.tokens[3] = 3; }, true, true);
  reject([](auto& e) { e.tokens[0] = -1; }, true, true);
  reject([](auto& e) { e.tokens.pop_back(); }, true, true);
  reject([](auto& e) { e.table.pop_back(); }, true, false);
  reject([](auto& e) { e.out.pop_back(); }, true, false);
  reject([](auto& e) { e.d_out.pop_back(); }, false, true);
  reject([](auto& e) { e.d_table.pop_back(); }, false, true);
  reject([](auto& e) { e.positions.resize(5); }, true, false);
  reject([](auto& e) { e.d_positions.resize(5); }, false, true);
  auto const with_positions_of = [](std::vector<std::int32_t> const& places) {
    return [places](auto& e) {
      e.add_positions(2);
      e.position_of = places;
    };
  };
  reject(with_positions_of({0, 1, 0}), true, true);
  reject(with_positions_of({0, 1, 2, 0}), true, true);
  reject(with_positions_of({0, 1, -1, 0}), true, true);
}

}  // namespace
}  // namespace offstage::kernels
