#pragma once

#include <string>
#include <vector>

#include "platform/mpi/communicator.hpp"

namespace offstage::checkpoint {

/// Every rank's text, at rank 0; empty elsewhere. Collective.
[[nodiscard]] std::vector<std::string> gather_texts(mpi::Communicator const& comm,
                                                    std::string const& mine);
/// Every rank gets the texts that rank 0 has, one for each rank. Collective.
void tell_texts(mpi::Communicator const& comm, std::vector<std::string>& texts);

}  // namespace offstage::checkpoint
