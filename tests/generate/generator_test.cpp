#include "generate/generator.hpp"

#include <gmock/gmock.h>

#include <vector>

#include "base/error.hpp"

namespace offstage::generate {
namespace {

using ::testing::ElementsAre;
using Tokens = std::vector<std::int32_t>;

constexpr std::size_t vocab = 10;

/// A model of a vocabulary of ten in which the sum of the context's tokens says what follows; keeps
/// the contexts that it was shown.
struct SumModel {
  std::vector<Tokens> seen;
  std::vector<float> logits = std::vector<float>(vocab);

  std::span<float const> operator()(std::span<std::int32_t const> tokens) {
    seen.emplace_back(tokens.begin(), tokens.end());
    std::size_t sum = 0;
    for (std::int32_t const token : tokens) {
      sum += static_cast<std::size_t>(token);
    }
    logits.assign(vocab, 0.0F);
    logits[sum % vocab] = 5.0F;
    return logits;
  }
};

struct Outcome {
  Tokens tokens;
  int full = 0;
  std::vector<Tokens> seen;
};

Outcome outcome_of(Task const& task, std::int32_t last = -1) {
  Outcome outcome;
  SumModel model;
  generate(
      task, [&](std::span<std::int32_t const> tokens) { return model(tokens); },
      [&](std::int32_t token) {
        outcome.tokens.push_back(token);
        return token != last;
      },
      [&] { ++outcome.full; });
  outcome.seen = model.seen;
  return outcome;
}

TEST(Generator, ContinuesThePromptWithWhatTheModelSays) {
  auto const found = outcome_of({.prompt = {1, 2}, .tokens = 4, .window = 100, .vocab = 10});
  EXPECT_THAT(found.tokens, ElementsAre(3, 6, 2, 4));
  EXPECT_THAT(found.seen.back(), ElementsAre(1, 2, 3, 6, 2));
  EXPECT_EQ(found.full, 0);
}

TEST(Generator, DropsTheOlderHalfWhenTheWindowIsFullAndSaysSoOnce) {
  auto const found = outcome_of({.prompt = {1, 1, 1}, .tokens = 6, .window = 4, .vocab = 10});
  EXPECT_THAT(found.seen, ElementsAre(Tokens{1, 1, 1}, Tokens{1, 1, 1, 3}, Tokens{3, 6},
                                      Tokens{3, 6, 9}, Tokens{3, 6, 9, 8}, Tokens{8, 6}));
  EXPECT_EQ(found.full, 1);
}

TEST(Generator, ShortensAPromptBeyondTheWindow) {
  auto const found = outcome_of({.prompt = {9, 9, 9, 1, 2}, .tokens = 1, .window = 4, .vocab = 10});
  EXPECT_THAT(found.seen, ElementsAre(Tokens{1, 2}));
  EXPECT_EQ(found.full, 1);
}

TEST(Generator, WorksInAWindowOfOne) {
  auto const found = outcome_of({.prompt = {4}, .tokens = 3, .window = 1, .vocab = 10});
  EXPECT_THAT(found.tokens, ElementsAre(4, 4, 4));
  EXPECT_THAT(found.seen, ElementsAre(Tokens{4}, Tokens{4}, Tokens{4}));
}

TEST(Generator, StopsAtTheEndOfTheDocument) {
  auto const found =
      outcome_of({.prompt = {1, 2}, .tokens = 100, .window = 100, .vocab = 10, .ends = {5, 2}});
  EXPECT_THAT(found.tokens, ElementsAre(3, 6));
}

TEST(Generator, StopsWhereItIsTold) {
  auto const found = outcome_of({.prompt = {1, 2}, .tokens = 100, .window = 100, .vocab = 10}, 6);
  EXPECT_THAT(found.tokens, ElementsAre(3, 6));
}

TEST(Generator, ChoosesNoTokenThatTheTokenizerDoesNotHave) {
  auto const found = outcome_of({.prompt = {8}, .tokens = 1, .window = 9, .vocab = 5});
  EXPECT_THAT(found.tokens, ElementsAre(0));
}

TEST(Generator, SamplesTheSameForTheSameSeed) {
  Task task{.prompt = {1},
            .tokens = 50,
            .window = 8,
            .vocab = 10,
            .ends = {},
            .sampling = {.temperature = 3.0, .seed = 4}};
  auto const once = outcome_of(task).tokens;
  EXPECT_EQ(outcome_of(task).tokens, once);
  task.sampling.seed = 5;
  EXPECT_NE(outcome_of(task).tokens, once);
}

TEST(Generator, NeedsAPrompt) {
  EXPECT_THROW((void)outcome_of({.prompt = {}, .tokens = 1, .window = 1, .vocab = 1}),
               PreconditionError);
}

}  // namespace
}  // namespace offstage::generate
