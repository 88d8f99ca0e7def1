#pragma once

#include <memory>

#include "config/run_config.hpp"
#include "platform/mpi/communicator.hpp"
#include "state/initialize.hpp"

namespace offstage::train {

/// The weights with which a run begins at step 0: those of train.init-from, with the tokens that
/// model.vocab adds to theirs; null: the seed's. Rank 0 says so. Collective.
/// Errors: mpi::AgreedError: train.init-from cannot be read, or is no such model.
[[nodiscard]] std::unique_ptr<state::ParameterReader> first_weights(config::RunConfig const& config,
                                                                    mpi::Communicator const& comm);

}  // namespace offstage::train
