#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "platform/mpi/communicator.hpp"
#include "temporary_directory.hpp"

namespace offstage::train {

/// A directory that all ranks see. Rank 0 makes it, and removes it when all are done. Collective.
class SharedDirectory {
 public:
  explicit SharedDirectory(mpi::Communicator const& comm) : comm_{comm} {
    if (comm.rank() == 0) {
      made_.emplace();
    }
    path_ = comm.broadcast(made_ ? made_->path().string() : std::string{}, 0);
  }
  ~SharedDirectory() { comm_.barrier(); }
  SharedDirectory(SharedDirectory const&) = delete;
  SharedDirectory& operator=(SharedDirectory const&) = delete;

  [[nodiscard]] std::string in(std::string const& name) const { return path_ + "/" + name; }
  /// Makes a directory inside. Collective.
  std::string make(std::string const& name) const {
    if (made_) {
      std::filesystem::create_directories(in(name));
    }
    comm_.barrier();
    return in(name);
  }

 private:
  mpi::Communicator const& comm_;
  std::optional<TemporaryDirectory> made_;
  std::string path_;
};

}  // namespace offstage::train
