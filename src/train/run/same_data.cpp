#include "train/run/same_data.hpp"

#include <fmt/format.h>

#include "base/error.hpp"

namespace offstage::train {

void require_same_data(data::Dataset const& dataset, std::string const& key,
                       mpi::Communicator const& comm) {
  auto const first = comm.broadcast_value(dataset.windows(), 0);
  mpi::agree(comm, [&] {
    if (dataset.windows() != first) {
      throw DataError{
          fmt::format("{}: has {} windows here, and {} on rank 0; give all nodes the same files",
                      key, dataset.windows(), first)};
    }
  });
}

}  // namespace offstage::train
