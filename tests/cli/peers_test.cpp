// Keys and defaults as users of other tools mean them.
#include <gmock/gmock.h>

#include <tuple>

#include "options_fixture.hpp"

namespace offstage::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Peers = OptionsFixture;

TEST_F(Peers, WordsThatMeanAnotherThingElsewhereAreExplained) {
  // nanoGPT's is a micro-batch; Megatron's horizon is no length of a fall.
  EXPECT_THAT(error({"--train.batch_size=8"}),
              AllOf(HasSubstr("train.global-batch is the sequences of a step"),
                    HasSubstr("train.micro-batch")));
  EXPECT_THAT(error({"--optimizer.lr-decay-iters=8"}), HasSubstr("up to train.steps"));
}

TEST_F(Peers, DecayInTheGradientIsNoneUnlessItIsGiven) {
  for (auto const& [kind, decay, beta2] :
       {std::tuple{"adamw", 0.1, 0.95}, {"lion", 0.1, 0.99}, {"adam", 0.0, 0.95}}) {
    auto const optimizer = parse({"--optimizer.kind=" + std::string{kind}}).optimizer;
    EXPECT_EQ(optimizer.weight_decay, decay) << kind;
    EXPECT_EQ(optimizer.beta2, beta2) << kind;
  }
  for (char const* kind : {"sgd", "adagrad", "rmsprop"}) {
    EXPECT_EQ(parse({"--optimizer.kind=" + std::string{kind}}).optimizer.weight_decay, 0.0) << kind;
  }
  EXPECT_EQ(parse({"--optimizer.kind=rmsprop"}).optimizer.beta2, 0.99);
  EXPECT_EQ(parse({"--optimizer.kind=adam", "--optimizer.weight-decay=0.2"}).optimizer.weight_decay,
            0.2);
}

}  // namespace
}  // namespace offstage::cli
