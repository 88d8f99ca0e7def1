#include "train/run/first_weights.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "convert/convert.hpp"
#include "state/grown_vocabulary.hpp"
#include "state/model_shape.hpp"
#include "train/saves/continuation.hpp"

namespace offstage::train {
namespace {

/// The parameters at `path`, and a line about the tokens that `vocab` adds to theirs.
std::unique_ptr<state::ParameterReader> open_weights(std::string const& path, std::int64_t vocab,
                                                     bool leads) {
  auto reader = convert::open_parameters(path, "train.init-from");
  auto const added = vocab - reader->shape().vocab;
  if (added <= 0) {
    return reader;
  }
  if (leads) {
    log::dated("{} tokens are added to the vocabulary of {}: they begin as the mean of all others",
               added, reader->shape().vocab);
  }
  return std::make_unique<state::GrownVocabulary>(std::move(reader), vocab);
}

}  // namespace

std::unique_ptr<state::ParameterReader> first_weights(config::RunConfig const& config,
                                                      mpi::Communicator const& comm) {
  std::string const& from = config.train.init_from;
  bool const leads = comm.rank() == 0;
  std::string const resolved =
      from.empty() ? "" : convert::resolve_parameters(from, "train.init-from", comm);
  if (leads) {
    log::dated("starting at step 0 with seed {}{}", config.train.seed,
               from.empty() ? "" : fmt::format(" from the weights in {}", resolved));
  }
  if (auto const advice = advice_on_decay(config.optimizer); leads && !advice.empty()) {
    log::warning("{}", advice);
  }
  if (from.empty()) {
    return nullptr;
  }
  std::unique_ptr<state::ParameterReader> weights;
  mpi::agree(comm, [&] {
    weights = open_weights(resolved, config.model.vocab, leads);
    if (!same_parameters(weights->shape(), config.model)) {
      throw UsageError{fmt::format(
          "train.init-from={}: its model is not that of the model.* keys; leave them out", from)};
    }
  });
  if (auto const line = weights->left_out(); leads && !line.empty()) {
    log::dated("{}", line);
  }
  if (auto const advice = advice_on_tuning(config.settings); leads && !advice.empty()) {
    log::warning("{}", advice);
  }
  return weights;
}

}  // namespace offstage::train
