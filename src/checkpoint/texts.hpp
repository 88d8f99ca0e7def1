#pragma once

#include <string>
#include <vector>

#include "platform/mpi/communicator.hpp"

namespace offstage::checkpoint {

/// Returns every rank's text at rank 0, and none on other ranks. Collective.
[[nodiscard]] std::vector<std::string> gather_texts(mpi::Communicator const& comm,
                                                    std::string const& mine);
/// Sends the texts of rank 0, one for each rank, to every rank. Collective.
void tell_texts(mpi::Communicator const& comm, std::vector<std::string>& texts);

}  // namespace offstage::checkpoint
