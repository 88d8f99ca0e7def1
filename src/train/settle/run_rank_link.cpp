#include "train/settle/run_rank_link.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/slice.hpp"
#include "platform/cpu/affinity.hpp"
#include "platform/cuda/gpus.hpp"
#include "platform/mpi/session.hpp"
#include "platform/nccl/library.hpp"

namespace offstage::train {
namespace {

/// Two ranks that compute on one GPU, or on slices of one by MIG, in words; empty if there are
/// none. NCCL goes by the node and the place on its bus, and so does this.
std::string find_sharers(mpi::Communicator const& comm, topology::VisibleGpu const& gpu) {
  auto const node = comm.split_by_node();
  auto const all = comm.all_gather_texts(
      fmt::format("{} of the node of rank {}", gpu.bus, node.minimum(std::int64_t{comm.rank()})));
  std::map<std::string, std::size_t> first_with;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    auto const [first, is_new] = first_with.emplace(all[rank], rank);
    if (!is_new) {
      return fmt::format("ranks {} and {} share a GPU, which NCCL refuses", first->second, rank);
    }
  }
  return {};
}

/// Loads NCCL on all ranks. Null if any rank lacks it, with the reason of the lowest such rank.
std::unique_ptr<nccl::Library> load_everywhere(mpi::Communicator const& comm, std::string& reason) {
  std::unique_ptr<nccl::Library> library;
  try {
    library = nccl::load_library();
  } catch (nccl::NcclError const& error) {
    reason = error.what();
  }
  auto const lowest = static_cast<int>(comm.minimum(library ? INT_MAX : comm.rank()));
  if (lowest == INT_MAX) {
    return library;
  }
  reason = comm.broadcast(reason, lowest);
  if (lowest > 0) {
    reason += fmt::format(" (rank {})", lowest);
  }
  return nullptr;
}

RankLinkChoice through_mpi(config::CommBackend asked, RankLinkFacts const& facts) {
  using state::Route;
  std::string const why =
      asked == config::CommBackend::mpi ? "comm.backend=mpi" : "no NCCL: " + facts.about_nccl;
  if (!facts.gpus) {
    return {.route = facts.host_visible ? Route::in_place : Route::staged,
            .text = fmt::format("MPI{}, as the device is emulated",
                                facts.host_visible ? "" : ", through host memory")};
  }
  if (facts.mpi_is_aware && facts.needs.take_direct(0, facts.device_memory)) {
    return {.route = Route::direct,
            .text = fmt::format("CUDA-aware MPI, from GPU to GPU ({})", why)};
  }
  return {
      .route = Route::staged,
      .text = fmt::format("MPI, through pinned host memory, as {} ({})",
                          facts.mpi_is_aware ? "the device has no room for slices from other ranks"
                                             : "this MPI is not CUDA-aware",
                          why)};
}

/// Makes the first call of each kind, in which NCCL connects ranks and takes memory for that.
/// `buffer` has two bytes for each rank.
void first_calls(state::RankLink& link, device::Stream& stream, std::span<std::byte> buffer) {
  std::vector<Slice> parts;
  for (int rank = 0; rank < link.size(); ++rank) {
    parts.push_back({rank, 1});
  }
  auto const ranks = parts.size();
  link.all_gather(stream, buffer.first(ranks));
  link.all_to_all(stream, buffer.first(ranks), parts, buffer.subspan(ranks), parts);
  stream.synchronize();
}

/// Memory beside that of the first calls: buffers that NCCL may take only with a first large
/// message.
constexpr Bytes later_bytes = 512 * MiB;

/// Takes device memory out of use. Errors: UsageError, which names what helps.
void set_aside(device::Device& device, Bytes size) {
  Bytes const free = device.capacity() - device.used();
  if (size > free) {
    throw UsageError{fmt::format(
        "out of device memory: NCCL's buffers need {}, but only {} of {} are free; raise "
        "device.memory, or set comm.backend=mpi, which needs none",
        format_bytes(size), format_bytes(free), format_bytes(device.capacity()))};
  }
  device.set_aside(size, "NCCL");
}

std::unique_ptr<state::RankLink> connect_by_nccl(mpi::Communicator const& comm,
                                                 std::unique_ptr<nccl::Library> library,
                                                 device::Device& device,
                                                 topology::VisibleGpu const& gpu, Bytes expected) {
  std::unique_ptr<device::Stream> stream;
  device::Buffer buffer;
  Bytes taken = 0;
  mpi::agree(comm, [&] {
    stream = device.make_stream("ranks");
    buffer = device.allocate(2 * comm.size(), "a first word between ranks");
    taken = cuda::memory_of(gpu.ordinal).free;
  });
  auto link = state::make_nccl_link(comm, std::move(library), *stream);
  first_calls(*link, *stream, buffer.as<std::byte>());
  mpi::agree(comm, [&] { taken -= cuda::memory_of(gpu.ordinal).free; });
  taken = std::max<Bytes>(0, comm.maximum(taken));  // others may have given memory back
  if (taken > expected && comm.rank() == 0) {
    log::warning(
        "NCCL has taken {} of a GPU's memory, where {} were expected; with "
        "NCCL_MAX_P2P_NCHANNELS=8 in the environment it takes less, with comm.backend=mpi none",
        format_bytes(taken), format_bytes(expected));
  }
  Bytes const reserved =
      taken > expected ? taken + later_bytes : std::min(taken + later_bytes, expected);
  link->set_device_bytes(reserved);
  mpi::agree(comm, [&] { set_aside(device, reserved); });
  return link;
}

bool has_room(RankLinkFacts const& facts) {
  return facts.needs.take_direct(nccl::device_bytes(facts.ranks, facts.ranks_per_node),
                                 facts.device_memory);
}

RankLinkChoice through_mpi_for_want_of_room(RankLinkFacts facts) {
  std::string const beside =
      facts.needs.direct > 0 ? fmt::format(" and {} of the model and of slices from other ranks",
                                           format_bytes(facts.needs.direct))
                             : "";
  facts.about_nccl =
      fmt::format("its buffers, some {},{} are more than the {} of the device",
                  format_bytes(nccl::device_bytes(facts.ranks, facts.ranks_per_node)), beside,
                  format_bytes(facts.device_memory));
  auto choice = through_mpi(config::CommBackend::automatic, facts);
  choice.warning = fmt::format(
      "layers go between ranks by MPI, not by NCCL: {}; raise device.memory, or set "
      "comm.backend=mpi",
      facts.about_nccl);
  return choice;
}

}  // namespace

RankLinkChoice choose_rank_link(config::CommBackend asked, RankLinkFacts const& facts) {
  if (asked == config::CommBackend::nccl && !facts.gpus) {
    throw UsageError{
        "comm.backend=nccl passes layers from GPU to GPU, but the device is host memory "
        "(device.kind=host, or auto without GPUs); set device.kind=cuda, or comm.backend=auto"};
  }
  if (facts.ranks == 1) {
    return {.route = facts.host_visible ? state::Route::in_place : state::Route::staged};
  }
  if (asked == config::CommBackend::nccl && !facts.nccl) {
    throw UsageError{fmt::format(
        "comm.backend=nccl, but {}; correct that, or set comm.backend=auto", facts.about_nccl)};
  }
  if (asked == config::CommBackend::mpi || !facts.gpus || !facts.nccl) {
    return through_mpi(asked, facts);
  }
  if (asked == config::CommBackend::automatic && !has_room(facts)) {
    return through_mpi_for_want_of_room(facts);
  }
  std::string_view const why = asked == config::CommBackend::nccl ? "comm.backend=nccl"
                               : facts.assumed
                                   ? "if each rank has a GPU of its own and every node libnccl.so.2"
                                   : "each rank has a GPU of its own";
  return {.nccl = true,
          .route = state::Route::direct,
          .text = fmt::format("{}, from GPU to GPU ({})", facts.about_nccl, why),
          .device_bytes = nccl::device_bytes(facts.ranks, facts.ranks_per_node)};
}

RankLinkChoice plan_rank_link(config::RunConfig const& config, int ranks, int ranks_per_node) {
  auto const& device = config.device;
  bool const gpus = device.kind != config::DeviceKind::host && !device.emulation.any();
  bool const link = device.emulation.host_to_device > 0.0 || device.emulation.device_to_host > 0.0;
  bool const shared = device.share_gpu && ranks_per_node > 1;
  bool const can_nccl = nccl::is_built_in() && !shared;
  RankLinkFacts facts{
      .ranks = ranks,
      .ranks_per_node = ranks_per_node,
      .gpus = gpus,
      .host_visible = !gpus && !link,
      .nccl = can_nccl,
      .about_nccl = shared ? "ranks share GPUs (device.share-gpu), which NCCL refuses"
                    : nccl::is_built_in() ? "NCCL"
                                          : "offstage was built without NCCL",
      .assumed = true,
      .device_memory = device.memory,
      .needs = gpus && ranks > 1 && device.memory > 0 ? rank_link_needs(config, ranks)
                                                      : RankLinkNeeds{}};
  // The question takes some tenths of a second, so it is asked only where the answer matters.
  bool const by_mpi =
      config.comm_backend == config::CommBackend::mpi || !can_nccl || !has_room(facts);
  facts.mpi_is_aware = ranks > 1 && gpus && by_mpi && mpi::is_built_for_device_memory();
  return choose_rank_link(config.comm_backend, facts);
}

RunRankLink make_run_rank_link(config::CommBackend asked, mpi::Communicator const& comm,
                               device::Device& device,
                               std::optional<topology::VisibleGpu> const& gpu,
                               RankLinkNeeds const& needs) {
  RankLinkFacts facts{.ranks = comm.size(),
                      .ranks_per_node = static_cast<int>(
                          comm.maximum(static_cast<std::int64_t>(comm.split_by_node().size()))),
                      .gpus = device.kind() == device::Kind::cuda,
                      .host_visible = device.host_visible(),
                      .mpi_is_aware = comm.minimum(mpi::takes_device_memory() ? 1 : 0) > 0,
                      .device_memory = comm.minimum(device.capacity()),
                      .needs = needs};
  std::unique_ptr<nccl::Library> library;
  if (facts.ranks > 1 && facts.gpus && asked != config::CommBackend::mpi) {
    require(gpu.has_value(), "make_run_rank_link: a rank on GPUs has one");
    facts.about_nccl = find_sharers(comm, *gpu);
    if (facts.about_nccl.empty()) {
      library = load_everywhere(comm, facts.about_nccl);
    }
    if (library) {
      facts.nccl = true;
      facts.about_nccl = "NCCL " + library->version();
    }
  }
  RankLinkChoice choice;
  mpi::agree(comm, [&] { choice = choose_rank_link(asked, facts); });
  if (!choice.warning.empty() && comm.rank() == 0) {
    log::warning("{}", choice.warning);
  }
  if (!choice.nccl) {
    return {state::make_mpi_link(comm, choice.route), std::move(choice.text)};
  }
  return {connect_by_nccl(comm, std::move(library), device, *gpu, choice.device_bytes),
          std::move(choice.text)};
}

}  // namespace offstage::train
