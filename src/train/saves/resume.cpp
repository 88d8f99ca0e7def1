#include "train/saves/resume.hpp"

#include <filesystem>

#include "base/regular_file.hpp"
#include "checkpoint/directory.hpp"
#include "convert/convert.hpp"

namespace offstage::train {

std::string settle_resume(std::string const& resume, mpi::Communicator const& comm) {
  std::string settled = resume;
  mpi::agree(comm, [&] {
    if (comm.rank() == 0 && !convert::run_of_best(resume).empty()) {
      settled = convert::resolve_parameters(resume, "checkpoint.resume");
    }
  });
  return comm.broadcast(std::move(settled), 0);
}

bool begins_at_own_checkpoint(config::CheckpointConfig const& checkpoint) {
  if (checkpoint.resume == "auto") {
    return true;
  }
  std::filesystem::path const step{checkpoint::canonical(checkpoint.resume)};
  return lead_to_one(step.parent_path().string(), checkpoint.dir);
}

}  // namespace offstage::train
