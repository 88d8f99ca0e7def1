#pragma once

#include <string>

#include "data/dataset.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::train {

/// Checks that all ranks have as many windows: a node may lack files that a pattern matches on
/// another one. Collective.
/// Errors: mpi::AgreedError: DataError naming `key` ("data.train") and both numbers.
void require_same_data(data::Dataset const& dataset, std::string const& key,
                       mpi::Communicator const& comm);

}  // namespace offstage::train
