#include "platform/mpi/pending_sums.hpp"

#include <utility>

namespace offstage::mpi {
PendingSums::PendingSums(Communicator const& comm, std::vector<std::int64_t> mine)
    : memory_{std::make_unique<Memory>()} {
  memory_->sums.resize(mine.size());
  memory_->mine = std::move(mine);
  check(MPI_Iallreduce(memory_->mine.data(), memory_->sums.data(),
                       static_cast<int>(memory_->mine.size()), MPI_INT64_T, MPI_SUM, comm.get(),
                       &request_),
        "MPI_Iallreduce");
}

PendingSums::~PendingSums() {
  if (request_ != MPI_REQUEST_NULL) {
    (void)memory_.release();  // MPI may still read or write it
  }
}

bool PendingSums::has_ended() {
  int ended{};
  check(MPI_Test(&request_, &ended, MPI_STATUS_IGNORE), "MPI_Test");
  return ended != 0;
}

}  // namespace offstage::mpi
