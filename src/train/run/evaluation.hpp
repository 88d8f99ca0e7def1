#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "base/units.hpp"
#include "config/run_config.hpp"
#include "data/dataset.hpp"
#include "data/mixture.hpp"
#include "platform/mpi/communicator.hpp"
#include "train/step/mean_loss.hpp"

namespace offstage::train {

/// The options of `offstage evaluate`.
struct EvaluationTask {
  std::string from;                ///< what convert::open_parameters reads
  std::vector<data::Source> data;  ///< file after file
  data::DatasetOptions options;    ///< vocab and sequence 0: the model's
  std::int64_t micro_batch{};      ///< sequences that a rank takes at once; 0: usual_micro_tokens
  std::int64_t most_windows{};     ///< 0: all
  DType dtype{};                   ///< of parameters and activations
  config::DeviceConfig device;
  int threads{};  ///< per rank; 0: its share of the cores
};

struct Evaluation {
  MeanLoss mean;
  std::int64_t windows{}, sequence{}, micro_batch{};
  std::vector<data::FileFacts> files;
};

/// The longest sequence that `offstage evaluate` takes where nobody says one.
constexpr std::int64_t usual_sequence = 1024;

/// Tokens of a micro-batch where nobody says its sequences: products of some size, and activations
/// that fit beside any model. It does not depend on the number of ranks, as the loss's bits do not.
constexpr std::int64_t usual_micro_tokens = 4096;

/// The mean loss of a model on data. Every rank holds a part of the parameters and brings layer by
/// layer, as in a run.
/// Collective. Memory: of all ranks' devices the parameters once in the type, and of each the
///         activations of a micro-batch.
/// Errors: mpi::AgreedError: those of convert::open_parameters, data::Dataset and make_run_device;
///         UsageError for a sequence beyond the model's.
[[nodiscard]] Evaluation evaluate(EvaluationTask const& task, mpi::Communicator const& comm);

}  // namespace offstage::train
