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
  std::string from;                ///< name for convert::open_parameters
  std::vector<data::Source> data;  ///< data, file after file
  data::DatasetOptions options;    ///< vocab and sequence 0: the model's
  std::int64_t micro_batch{};      ///< sequences that a rank takes at once; 0: usual_micro_tokens
  std::int64_t most_windows{};     ///< 0: all
  DType dtype{};                   ///< type of parameters and activations
  config::DeviceConfig device;
  int threads{};  ///< per rank; 0: its part of the cores
};

struct Evaluation {
  std::string from;  ///< path of the model: of a run, that of the checkpoint
  MeanLosses mean;
  std::int64_t windows{}, sequence{}, micro_batch{};
  std::vector<data::FileFacts> files;
  std::vector<std::string> short_files;  ///< Dataset::short_files
};

/// The longest sequence that `offstage evaluate` takes if none is given.
constexpr std::int64_t usual_sequence = 1024;

/// Tokens of a micro-batch whose sequences are not given. So products have some size, and
/// activations fit beside any model. It does not depend on the number of ranks, so that the loss's
/// bits do not.
constexpr std::int64_t usual_micro_tokens = 4096;

/// The mean loss of a model on data. Every rank has a part of the parameters and brings layer by
/// layer, as in a run. Collective.
/// Memory: the devices of all ranks together have the parameters once in the type, and each has the
///         activations of a micro-batch.
/// Errors: mpi::AgreedError: those of convert::open_parameters, data::Dataset and make_run_device;
///         UsageError for a sequence beyond the model's; DataError if no target counts or the loss
///         is not finite.
[[nodiscard]] Evaluation evaluate(EvaluationTask const& task, mpi::Communicator const& comm);

}  // namespace offstage::train
