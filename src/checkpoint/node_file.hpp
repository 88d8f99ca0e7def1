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

/// A save that goes no further because it failed on another rank of the node, which says why.
class FailedElsewhere : public Error {
 public:
  FailedElsewhere();
};

/// The file that the ranks of a node write together, and how they agree on what stands where in it:
/// by memory that they share, without MPI, so that threads beside the run may do it.
///
/// Order:      each rank says what it writes; the first of the node then makes the file, with room
///             for all; the others wait for that. From then on each writes where nobody else does.
/// Collective: construction and destruction.
/// Threads:    one of each rank at a time.
class NodeFile {
 public:
  /// `node`: the ranks of this one's node, of those of `comm`. `subgroups`: of
  /// this rank, in every save.
  NodeFile(mpi::Communicator const& comm, mpi::Communicator const& node, std::int64_t subgroups);

  /// "node-0003.h5": nodes are counted by their first ranks.
  [[nodiscard]] std::string const& name() const noexcept { return name_; }

  /// A save on this rank. Whoever ends one before place() has failed, and the others fail with it.
  class Turn {
   public:
    /// `number`: of the save, the same on all ranks, larger than the one before.
    Turn(NodeFile& file, std::uint32_t number) noexcept : file_{file}, number_{number} {}
    ~Turn();
    Turn(Turn const&) = delete;
    Turn& operator=(Turn const&) = delete;

    /// Makes a file of these manifests, one for each rank of the node: sets their file_bytes, the
    /// offsets of subgroups without a file of their own, and all offsets of checksums.
    using LayOut = std::function<void(std::span<Manifest>)>;
    /// Returns when the file is there and `mine` has what LayOut sets. It is called on one rank
    /// alone, whose error is its own. Errors: FailedElsewhere; Error once *given_up is true.
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
  std::size_t mine_;                       ///< this rank's number in the node
  std::vector<int> ranks_;                 ///< of the node
  std::vector<std::int64_t> first_entry_;  ///< of each, and behind the last
  std::unique_ptr<mpi::SharedWindow> window_;
};

}  // namespace offstage::checkpoint
