#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "checkpoint/manifest.hpp"
#include "platform/mpi/communicator.hpp"
#include "platform/mpi/shared_window.hpp"

namespace offstage::checkpoint {

/// Says that a save has ended because it failed on another rank of the node. That rank says why.
class FailedElsewhere : public Error {
 public:
  FailedElsewhere();
};

/// The file that the ranks of a node write together. They agree on the places in it through memory
/// that they share, without MPI, so that background threads may do it.
///
/// Order:      each rank says what it writes. The first rank of the node then makes the file, with
///             room for all, and the others wait for that. From then on each rank writes its own
///             part of the file.
/// Collective: construction and destruction.
/// Threads:    one thread of each rank at a time.
class NodeFile {
 public:
  /// `node`: the ranks of `comm` on this rank's node. `subgroups`: number of this rank's subgroups
  /// in every save.
  NodeFile(mpi::Communicator const& comm, mpi::Communicator const& node, std::int64_t subgroups);

  /// "node-0003.h5": nodes are counted by their first ranks.
  [[nodiscard]] std::string const& name() const noexcept { return name_; }

  /// One save on this rank. A rank that ends it before place() has failed, and the others fail with
  /// it.
  class Turn {
   public:
    /// `number`: the save's number, the same on all ranks and larger than that of the save before.
    Turn(NodeFile& file, std::uint32_t number) noexcept : file_{file}, number_{number} {}
    ~Turn();
    Turn(Turn const&) = delete;
    Turn& operator=(Turn const&) = delete;

    /// Makes a file of these manifests, one for each rank of the node. Sets their file_bytes, the
    /// offsets of subgroups without a file of their own, and all offsets of checksums.
    using LayOut = std::function<void(std::span<Manifest>)>;
    /// Returns when the file is there and `mine` has the values that LayOut sets. `lay_out` is
    /// called on one rank alone, and its error is that rank's. Errors: FailedElsewhere; Error once
    /// *given_up is true.
    void place(Manifest& mine, LayOut const& lay_out, std::atomic<bool> const* given_up);

   private:
    NodeFile& file_;
    std::uint32_t number_;
    bool placed_ = false;
  };

 private:
  struct Entry;
  struct Rank;
  [[nodiscard]] Rank& at(std::size_t rank) const;
  [[nodiscard]] std::span<Entry> entries(std::size_t rank) const;
  void publish(Manifest const& manifest, std::size_t rank) const;
  [[nodiscard]] Manifest manifest_of(std::size_t rank, Manifest const& like) const;

  std::string name_;
  std::size_t mine_;        ///< this rank's number in the node
  std::vector<int> ranks_;  ///< ranks of the node
  /// First entry of each rank, and the one behind the last.
  std::vector<std::int64_t> first_entry_;
  std::unique_ptr<mpi::SharedWindow> window_;
};

}  // namespace offstage::checkpoint
