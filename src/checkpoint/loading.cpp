#include "checkpoint/loading.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <filesystem>
#include <span>
#include <utility>

#include "base/at_end.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "checkpoint/convert_moments.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/master.hpp"
#include "checkpoint/patience.hpp"
#include "checkpoint/reader.hpp"
#include "platform/memory/huge_buffer.hpp"

namespace offstage::checkpoint {
namespace {

namespace fs = std::filesystem;

// Chunks that are converted at a time: 12 MiB of p, m and v in FP32.
constexpr std::int64_t chunks_at_a_time = 256;

/// Reads a subgroup in the checkpoint's layout batch by batch.
void convert(Reader& reader, state::Subgroup const& subgroup, StateLayout const& layout,
             std::span<std::byte> state, SplitParameters const* split) {
  memory::HugeBuffer const buffer{
      reader.layout().bytes(std::min(chunks_at_a_time * chunk_elements, subgroup.size))};
  for (state::Piece const& piece : subgroup.pieces) {
    for (std::int64_t done = 0; done < piece.chunks.count; done += chunks_at_a_time) {
      std::int64_t const count = std::min(chunks_at_a_time, piece.chunks.count - done);
      std::int64_t const elements = count * chunk_elements;
      state::Piece const batch{piece.layer, {piece.chunks.first + done, count}, 0};
      auto const bytes =
          buffer.bytes().first(static_cast<std::size_t>(reader.layout().bytes(elements)));
      reader.read({&batch, 1}, bytes);
      convert_moments({reader.layout(), bytes, elements}, {layout, state, subgroup.size},
                      piece.offset + done * chunk_elements);
      if (split != nullptr) {
        split->split(subgroup, state, piece.offset + done * chunk_elements,
                     buffer.as<float const>().first(static_cast<std::size_t>(elements)));
      }
    }
  }
}

StateLayout const& layout_of(Destination const& to) {
  return to.split != nullptr ? to.split->layout : to.run.state.layout;
}

tiers::Lease take(state::Subgroup const& subgroup, Destination const& to) {
  tiers::Lease lease = to.tiers.create(subgroup.index);
  require(std::ssize(lease.bytes()) == layout_of(to).bytes(subgroup.size),
          "checkpoint: an extent holds the planes of its subgroup");
  return lease;
}

/// Hands the parameters, whole and verified, to OnSubgroup.
void hand_on(state::Subgroup const& subgroup, Destination const& to, tiers::Lease& lease) {
  if (to.split == nullptr) {
    to.on_subgroup(subgroup, {reinterpret_cast<float const*>(lease.mutable_bytes().data()),
                              static_cast<std::size_t>(subgroup.size)});
  }
}

/// Makes an extent current that was read as a whole and verified.
void take_over(state::Subgroup const& subgroup, Destination const& to, tiers::Lease& lease) {
  layout_of(to).clear_padding(lease.mutable_bytes(), subgroup.size);
  lease.commit();
}

/// Loads a checkpoint of another layout: reads and converts one subgroup after another.
void load_converted(Reader& reader, Destination const& to) {
  for (state::Subgroup const& subgroup : to.subgroups) {
    tiers::Lease lease = take(subgroup, to);
    read_patiently(
        [&] { convert(reader, subgroup, layout_of(to), lease.mutable_bytes(), to.split); });
    hand_on(subgroup, to, lease);
    take_over(subgroup, to, lease);
  }
}

/// Loads a checkpoint of the same layout: while a subgroup is verified, copied and written to its
/// tier, the next one is read.
void load_ahead(Reader& reader, Destination const& to) {
  auto const& subgroups = to.subgroups;
  std::deque<tiers::Lease> leases;
  AtEnd const abandoned{[&reader] { reader.abandon(); }};  // before the leases end
  auto const begin = [&](state::Subgroup const& subgroup) {
    leases.push_back(take(subgroup, to));
    reader.begin(subgroup.pieces, leases.back().mutable_bytes());
    if (&subgroup == &subgroups.back()) {
      reader.begun_all();
    }
  };
  for (std::size_t i = 0; i < subgroups.size(); ++i) {
    if (leases.empty()) {
      begin(subgroups[i]);
    }
    if (i + 1 < subgroups.size() &&
        to.tiers.fits_beside(subgroups[i].index, subgroups[i + 1].index)) {
      begin(subgroups[i + 1]);
    }
    // The parameters go to the working copy while the planes after them are read.
    read_patiently([&] { reader.await_parameters(); });
    hand_on(subgroups[i], to, leases.front());
    read_patiently([&] { reader.finish(); });
    take_over(subgroups[i], to, leases.front());
    leases.pop_front();
  }
}

struct Loaded {
  Meta meta;
  std::uint64_t checksum;  ///< checksum_of_contents
  std::shared_ptr<ReadAhead> ending;
};

/// Loads a rank's part. Errors: DataError if the checkpoint is damaged, Refused if no older one
/// should be tried either, IoError if it could not be read.
Loaded load(std::string const& path, Master master, Destination const& to,
            mpi::Communicator const& comm) {
  std::uint64_t const checksum = checksum_of_contents(master);
  require_same_model(path, master.meta.model, to.run.model);
  require_same_optimizer(path, master.meta.state, to.run.state);
  Reader reader{path, std::move(master)};
  // Every file belongs to the checkpoint, also that of a rank that owned nothing.
  for (int rank = comm.rank(); !to.has_parts && rank < reader.map().ranks(); rank += comm.size()) {
    read_patiently([&] { (void)reader.manifest(rank); });
  }
  if (reader.layout() == layout_of(to)) {
    load_ahead(reader, to);
  } else {
    load_converted(reader, to);
  }
  return {reader.meta(), checksum, reader.take_ending()};
}

}  // namespace

Outcome try_load(std::string const& path, Destination const& to, mpi::Communicator const& comm) {
  Outcome outcome;
  bool refused = false;
  std::uint64_t checksum = 0;
  auto const attempt = [&](auto const& work) {
    mpi::agree(comm, [&] {
      try {
        work();
      } catch (Refused const& error) {
        outcome.problem = error.what();
        refused = true;
      } catch (DataError const& error) {
        outcome.problem = error.what();
      }
    });
  };
  // Rank 0 reads the master for all ranks, unless nodes have files of their own, which may differ.
  auto const read = [&] { return read_patiently([&] { return read_master(path); }); };
  std::string bytes;
  attempt([&] {
    if (comm.rank() == 0 && !to.has_parts) {
      bytes = pack_master(read(), path);
    }
  });
  bytes = comm.broadcast(std::move(bytes), 0);
  attempt([&] {
    if (to.has_parts || !bytes.empty()) {
      Loaded loaded = load(path, to.has_parts ? read() : unpack_master(bytes, path), to, comm);
      outcome.meta = std::move(loaded.meta);
      outcome.ending = std::move(loaded.ending);
      checksum = loaded.checksum;
    }
  });
  mpi::agree(comm, [&] {
    if (refused) {
      throw DataError{outcome.problem};
    }
  });
  try {
    mpi::agree(comm, [&] {
      if (!outcome.meta) {
        throw DataError{outcome.problem};
      }
    });
  } catch (mpi::AgreedError const& error) {
    return {std::nullopt, error.what()};
  }
  auto const number = static_cast<std::int64_t>(checksum);
  if (comm.minimum(number) != comm.maximum(number)) {
    return {std::nullopt, path + ": its parts on different nodes are of different saves"};
  }
  return outcome;
}

std::vector<std::string> candidates(std::string const& directory,
                                    std::vector<std::string> const& without,
                                    mpi::Communicator const& comm) {
  std::string names;
  mpi::agree(comm, [&] {
    if (comm.rank() != 0) {
      return;
    }
    auto const directories = read_patiently([&] { return step_directories(directory); });
    for (auto it = directories.rbegin(); it != directories.rend(); ++it) {
      std::string const name = fs::path{it->path}.filename().string();
      if (std::ranges::find(without, name) != without.end()) {
        continue;
      }
      if (read_patiently([&] { return has_master(it->path); })) {
        names += name + "\n";
      } else {
        log::warning("checkpoint {} passed over: its save did not finish", it->path);
      }
    }
  });
  names = comm.broadcast(std::move(names), 0);
  std::vector<std::string> split;
  for (std::size_t begin = 0; begin < names.size();) {
    std::size_t const end = names.find('\n', begin);
    split.push_back(names.substr(begin, end - begin));
    begin = end + 1;
  }
  return split;
}

}  // namespace offstage::checkpoint
