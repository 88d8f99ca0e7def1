#include "checkpoint/node_file.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/watch.hpp"
#include "checkpoint/directory.hpp"

namespace offstage::checkpoint {
namespace {

// Interval at which a rank that waits for another looks again.
constexpr std::chrono::milliseconds look{1};

/// A save's number and its outcome, as one word.
constexpr std::uint32_t went_well(std::uint32_t number) {
  return 2 * number;
}
constexpr std::uint32_t failed(std::uint32_t number) {
  return 2 * number + 1;
}

/// Returns once a rank has reached this state of the save. Errors: FailedElsewhere; Error if given
/// up.
void await(std::atomic<std::uint32_t> const& state, std::uint32_t number,
           std::atomic<bool> const* given_up) {
  Waiting const waiting{"the other ranks of the node, to agree on a file of a checkpoint"};
  for (;;) {
    std::uint32_t const found = state.load(std::memory_order_acquire);
    if (found == went_well(number)) {
      return;
    }
    if (found == failed(number)) {
      throw FailedElsewhere{};
    }
    if (given_up != nullptr && *given_up) {
      throw Error{ExitCode::other, "the save was given up"};
    }
    std::this_thread::sleep_for(look);
  }
}

}  // namespace

/// The entry of a subgroup, in shared memory.
struct NodeFile::Entry {
  std::int64_t elements;
  std::int64_t has_own_file;
  Bytes offset;
  Bytes checksum_offset;
};

/// A rank's words to the others of its node, in shared memory; all zeros at first.
struct alignas(64) NodeFile::Rank {
  std::atomic<std::uint32_t> said;    ///< its entries are there
  std::atomic<std::uint32_t> placed;  ///< the first rank's: the places of all are there
  Bytes file_bytes;                   ///< the first rank's: bytes of the file
};

FailedElsewhere::FailedElsewhere()
    : Error{ExitCode::other, "another rank of the node could not write its part of a checkpoint"} {}

NodeFile::NodeFile(mpi::Communicator const& comm, mpi::Communicator const& node,
                   std::int64_t subgroups)
    : mine_{static_cast<std::size_t>(node.rank())},
      ranks_{node.all_gather_value(comm.rank())},
      first_entry_{0} {
  std::vector<int> firsts = comm.all_gather_value(ranks_.front());
  std::ranges::sort(firsts);
  auto const [end, last] = std::ranges::unique(firsts);
  firsts.erase(end, last);
  name_ =
      node_file_name(static_cast<int>(std::ranges::find(firsts, ranks_.front()) - firsts.begin()));
  for (std::int64_t const each : node.all_gather_value(subgroups)) {
    first_entry_.push_back(first_entry_.back() + each);
  }
  window_ = std::make_unique<mpi::SharedWindow>(
      node, std::ssize(ranks_) * static_cast<Bytes>(sizeof(Rank)) +
                first_entry_.back() * static_cast<Bytes>(sizeof(Entry)));
}

NodeFile::Rank& NodeFile::at(std::size_t rank) const {
  // Zero bytes are the initial state. Constructing the object again would undo another rank's
  // words.
  return reinterpret_cast<Rank*>(window_->bytes().data())[rank];
}

std::span<NodeFile::Entry> NodeFile::entries(std::size_t rank) const {
  auto* const all =
      reinterpret_cast<Entry*>(window_->bytes().data() + ranks_.size() * sizeof(Rank));
  return {all + first_entry_[rank], all + first_entry_[rank + 1]};
}

void NodeFile::publish(Manifest const& manifest, std::size_t rank) const {
  auto const to = entries(rank);
  require(manifest.subgroups.size() == to.size(), "NodeFile: as many subgroups as were told");
  for (std::size_t k = 0; k < to.size(); ++k) {
    StoredSubgroup const& stored = manifest.subgroups[k];
    to[k] = {stored.elements, stored.own_file ? 1 : 0, stored.offset, stored.checksum_offset};
  }
}

Manifest NodeFile::manifest_of(std::size_t rank, Manifest const& like) const {
  Manifest manifest{
      .format = like.format, .rank = ranks_[rank], .ranks = like.ranks, .file = like.file};
  for (Entry const& entry : entries(rank)) {
    StoredSubgroup stored;
    stored.elements = entry.elements;
    if (entry.has_own_file != 0) {
      stored.own_file.emplace();
    }
    manifest.subgroups.push_back(std::move(stored));
  }
  return manifest;
}

NodeFile::Turn::~Turn() {
  if (!placed_) {
    file_.at(file_.mine_).said.store(failed(number_), std::memory_order_release);
    if (file_.mine_ == 0) {
      file_.at(0).placed.store(failed(number_), std::memory_order_release);
    }
  }
}

void NodeFile::Turn::place(Manifest& mine, LayOut const& lay_out,
                           std::atomic<bool> const* given_up) {
  Rank& first = file_.at(0);
  file_.publish(mine, file_.mine_);
  file_.at(file_.mine_).said.store(went_well(number_), std::memory_order_release);
  if (file_.mine_ == 0) {
    std::vector<Manifest> all;
    for (std::size_t rank = 0; rank < file_.ranks_.size(); ++rank) {
      await(file_.at(rank).said, number_, given_up);
      all.push_back(file_.manifest_of(rank, mine));
    }
    lay_out(all);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      file_.publish(all[rank], rank);
    }
    first.file_bytes = all.front().file_bytes;
    first.placed.store(went_well(number_), std::memory_order_release);
  } else {
    await(first.placed, number_, given_up);
  }
  placed_ = true;
  mine.file_bytes = first.file_bytes;
  auto const found = file_.entries(file_.mine_);
  for (std::size_t k = 0; k < found.size(); ++k) {
    StoredSubgroup& stored = mine.subgroups[k];
    stored.checksum_offset = found[k].checksum_offset;
    if (!stored.own_file) {
      stored.offset = found[k].offset;
    }
  }
}

}  // namespace offstage::checkpoint
