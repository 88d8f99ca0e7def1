#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/dtype.hpp"
#include "base/units.hpp"
#include "checkpoint/listing.hpp"
#include "platform/mpi/communicator.hpp"
#include "state/initialize.hpp"

namespace offstage::convert {

/// The run in a path RUN/best that names no file; empty: it is no such path.
[[nodiscard]] std::string run_of_best(std::string const& path);

/// Which model a path means, as a path that means the same later: a Hugging Face directory or a
/// checkpoint (step-...) as it is; of a directory of checkpoints, or of a run directory with one,
/// the newest complete checkpoint; of RUN/best the one with the best validation. `key`
/// ("train.init-from") is named in errors.
/// Errors: DataError if the path is none of these or has no complete checkpoint.
[[nodiscard]] std::string resolve_parameters(std::string const& path, std::string const& key,
                                             checkpoint::Warn warn = checkpoint::Warn::yes);
/// Rank 0's answer for all, whatever a run saves meanwhile. Collective. Errors: mpi::AgreedError.
[[nodiscard]] std::string resolve_parameters(std::string const& path, std::string const& key,
                                             mpi::Communicator const& comm);

/// The checkpoint that checkpoint.resume means: of RUN/best, of a run or of a directory of
/// checkpoints as above; any other path as it is, whatever lies there. Errors: DataError, as above.
[[nodiscard]] std::string resolve_checkpoint(std::string const& path, checkpoint::Warn warn);

/// Parameters to start a model from; `path` is resolved first. Errors: as resolve_parameters, and
/// those of huggingface::ModelDirectory.
[[nodiscard]] std::unique_ptr<state::ParameterReader> open_parameters(
    std::string const& path, std::string const& key, checkpoint::Warn warn = checkpoint::Warn::yes);

/// Facts about a model that was written.
struct Converted {
  std::string path;           ///< the checkpoint or the Hugging Face directory
  std::string source;         ///< the one that was read
  std::int64_t parameters{};  ///< parameters of the model, padding left out
  Bytes bytes{};              ///< all ranks'
  std::string advice;         ///< a line for the user; empty: none
};

/// Writes the model of a Hugging Face directory as checkpoint `to`/step-000000000 with zero
/// moments, from which `checkpoint.dir=to` goes on. It names the program by its `commit`. A failure
/// leaves nothing behind.
/// Collective. Memory: three pieces of 4 MiB parameters per rank and the library's buffers,
/// whatever the model's size. Errors: mpi::AgreedError; UsageError if `to` is a checkpoint or holds
/// some.
Converted import_model(std::string const& from, std::string const& to,
                       mpi::Communicator const& comm, std::string const& commit = "unknown");

/// Whose tokenizer, ids of tokens and generation_config an export takes over.
struct Like {
  std::string directory;  ///< --like; empty: nobody's
  /// --eos: the text of the token that ends a text, in place of its.
  std::optional<std::string> eos;
};

/// The parameters that an export takes.
struct ExportSource {
  std::string from;  ///< --from, for open_parameters
  /// --average: the mean of so many of its newest complete checkpoints, if it is more than 1.
  std::int64_t average = 1;
};

/// Writes the parameters of whatever open_parameters reads, or their mean over several checkpoints,
/// as a Hugging Face directory; its files do not depend on the ranks that read and wrote them. A
/// failure leaves no model behind. Collective. Memory: a piece of 4 MiB parameters per rank and the
/// library's buffers; that of AveragedParameters.
/// Errors: mpi::AgreedError; UsageError if `to` holds a model already, DataError for a number
/// beyond the range of `dtype` and for fewer checkpoints, those of huggingface::read_companions.
Converted export_model(ExportSource const& wanted, std::string const& to, DType dtype,
                       Bytes shard_bytes, Like const& like, mpi::Communicator const& comm);

}  // namespace offstage::convert
