#pragma once

#include <memory>
#include <string>

#include "base/dtype.hpp"
#include "base/units.hpp"
#include "platform/mpi/communicator.hpp"
#include "state/initialize.hpp"

namespace offstage::convert {

/// Parameters to start a model from: a Hugging Face directory, a checkpoint (step-...), or a
/// directory of checkpoints, whose newest complete one is taken. `key` ("train.init-from") is named in
/// errors. Errors: DataError if the path is none of these.
[[nodiscard]] std::unique_ptr<state::ParameterReader> open_parameters(std::string const& path,
                                                                      std::string const& key);

/// Writes the model of a Hugging Face directory as checkpoint `to`/step-000000000 with zero moments,
/// from which `checkpoint.dir=to` goes on.
/// Collective. Memory: three pieces of 4 MiB parameters per rank and the library's buffers, whatever
/// the model's size. Errors: mpi::AgreedError; UsageError if `to` holds checkpoints already.
void import_model(std::string const& from, std::string const& to, mpi::Communicator const& comm);

/// Writes the parameters of a checkpoint (or the newest complete one of a directory) as a Hugging Face
/// directory. Collective. Memory: as import_model. Errors: mpi::AgreedError.
void export_model(std::string const& from, std::string const& to, DType dtype, Bytes shard_bytes,
                  mpi::Communicator const& comm);

}  // namespace offstage::convert
