#include "parameters/node_memory.hpp"

#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>

#include "base/chunk.hpp"
#include "base/error.hpp"
#include "base/units.hpp"

namespace offstage::parameters {
namespace {

constexpr char const* what = "the working copy of the parameters (parameters.home=node)";
constexpr char const* remedy = "set parameters.home=host";

void require_small_pages(Bytes element_bytes) {
  Bytes const chunk = chunk_elements * element_bytes;
  if (chunk % memory::system_page_bytes() != 0) {
    throw UsageError{fmt::format(
        "parameters.home=node shares memory in pieces of {}, but pages of this system have {}; {}",
        format_bytes(chunk), format_bytes(memory::system_page_bytes()), remedy)};
  }
}

/// The file of this node's ranks, which has no name any more. Collective over `comm`.
memory::SharedFile make_file(mpi::Communicator const& comm, mpi::Communicator const& node) {
  memory::SharedFile file;
  bool const first = node.rank() == 0;
  mpi::agree(comm, [&] {
    if (first) {
      file = memory::SharedFile::create(remedy);
    }
  });
  std::string const name = node.broadcast(file.name(), 0);
  mpi::agree(comm, [&] {
    if (!first) {
      file = memory::SharedFile::open(name, remedy);
    }
  });
  file.remove_name();
  return file;
}

}  // namespace

Bytes NodeMemory::room(mpi::Communicator const& comm, mpi::Communicator const& node,
                       Bytes element_bytes) {
  try {
    mpi::agree(comm, [&] { require_small_pages(element_bytes); });
    static_cast<void>(make_file(comm, node));
  } catch (mpi::AgreedError const&) {
    return 0;
  }
  return comm.minimum(memory::SharedFile::room());
}

Bytes NodeMemory::page_table_bytes(std::int64_t elements, Bytes element_bytes) {
  constexpr Bytes entry = 8;
  return ceil_div(elements * element_bytes, memory::system_page_bytes()) * entry;
}

NodeMemory::NodeMemory(state::ShardMap const& map, mpi::Communicator const& comm,
                       mpi::Communicator node, Bytes element_bytes)
    : comm_{comm},
      node_{std::move(node)},
      parts_{map, comm.all_gather_value(node_.broadcast_value(comm.rank(), 0)), comm.rank(),
             element_bytes} {
  mpi::agree(comm, [&] { require_small_pages(element_bytes); });
  auto const file = make_file(comm_, node_);
  mpi::agree(comm, [&] {
    if (node_.rank() == 0) {
      memory::SharedFile::require_room(parts_.bytes(), what, remedy);
    }
  });
  mpi::agree(comm, [&] { file.allocate(parts_.written(), parts_.bytes(), what, remedy); });
  mpi::agree(comm, [&] {
    whole_ = file.map(std::array{Slice{0, parts_.bytes()}});
    shard_ = file.map(parts_.shard());
  });
}

void NodeMemory::exchange(int layer) {
  if (parts_.nodes() > 1) {
    comm_.all_to_all(whole(), parts_.sent(layer), whole(), parts_.received(layer));
  }
  if (node_.size() > 1) {
    node_.barrier();
  }
}

std::span<std::byte> NodeMemory::layer(int layer) const {
  Slice const place = parts_.layer(layer);
  return whole().subspan(static_cast<std::size_t>(place.offset),
                         static_cast<std::size_t>(place.size));
}

Bytes NodeMemory::counted_again() const noexcept {
  Bytes const mapped = std::ssize(whole()) + std::ssize(shard());
  return node_.rank() == 0 ? mapped - std::ssize(whole()) : mapped;
}

}  // namespace offstage::parameters
