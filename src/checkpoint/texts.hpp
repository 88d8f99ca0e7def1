#pragma once

#include <string>
#include <vector>

#include "platform/mpi/communicator.hpp"

namespace offstage::checkpoint {

/// Sends the texts of rank 0, one for each rank, to every rank. Collective.
void tell_texts(mpi::Communicator const& comm, std::vector<std::string>& texts);

}  // namespace offstage::checkpoint
