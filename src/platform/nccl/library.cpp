#include "platform/nccl/library.hpp"

#ifdef OFFSTAGE_HAVE_NCCL
#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/shared_library.hpp"
#include "base/watch.hpp"
#endif

namespace offstage::nccl {
namespace {

/// Memory of a connection between two GPUs of a node, both ways: NCCL_BUFFSIZE (4 MiB) and the
/// buffers of the protocols LL128 and LL, 10 MiB at the receiver, and 2 MiB at either end.
/// Source: github.com/NVIDIA/nccl, issue 1685: allocations of 10485760 and 2097152 bytes, 3.28 GB
/// for the all-to-all of 8 H100, which is 7 peers * 32 channels * 14 MiB.
constexpr Bytes connection_bytes = 14 * MiB;
/// Connections to a neighbour: so many on the NVSwitch of 8 H100 (the same issue), 2 on PCIe
/// (src/graph/paths.cc there).
constexpr Bytes channels = 32;
/// The same on several nodes, where no peer gets more for what is sent to one than the network has
/// use for: one for each 14 GB/s of 400 Gb/s (src/graph/paths.cc).
constexpr Bytes network_channels = 4;
/// One pool serves all remote ranks. Source: issue 2363, an allocation of 536870912 bytes.
constexpr Bytes network_pool_bytes = 512 * MiB;
/// An estimate: what the communicator itself and the code of NCCL's kernels take.
constexpr Bytes fixed_bytes = 256 * MiB;

}  // namespace

// A ring for what all ranks get, and connections for what is sent to one.
Bytes device_bytes(int ranks, int ranks_per_node) noexcept {
  if (ranks <= 1) {
    return 0;
  }
  bool const one_node = ranks <= ranks_per_node;
  Bytes const peers = (one_node ? ranks : ranks_per_node) - 1;
  Bytes const to_peers = peers * (one_node ? channels : network_channels);
  return fixed_bytes + (channels + to_peers) * connection_bytes +
         (one_node ? 0 : network_pool_bytes);
}

#ifdef OFFSTAGE_HAVE_NCCL
namespace {

static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId));

struct Functions {
  explicit Functions(std::string const& file) {
    SharedLibrary const library{{&file, 1}};
    if (!library.is_open()) {
      throw NcclError{fmt::format("{} cannot be loaded: {}", file, library.reasons())};
    }
    auto const find = [&](auto& function, char const* name) {
      if (!library.find(function, name)) {
        throw NcclError{fmt::format("the library has no {}; it is too old", name)};
      }
    };
    find(get_version, "ncclGetVersion");
    find(get_unique_id, "ncclGetUniqueId");
    find(comm_init_rank, "ncclCommInitRank");
    find(comm_finalize, "ncclCommFinalize");
    find(comm_destroy, "ncclCommDestroy");
    find(comm_abort, "ncclCommAbort");
    find(get_async_error, "ncclCommGetAsyncError");
    find(get_error_string, "ncclGetErrorString");
    find(get_last_error, "ncclGetLastError");
    find(group_start, "ncclGroupStart");
    find(group_end, "ncclGroupEnd");
    find(all_gather, "ncclAllGather");
    find(send, "ncclSend");
    find(recv, "ncclRecv");
  }

  decltype(&ncclGetVersion) get_version{};
  decltype(&ncclGetUniqueId) get_unique_id{};
  decltype(&ncclCommInitRank) comm_init_rank{};
  decltype(&ncclCommFinalize) comm_finalize{};
  decltype(&ncclCommDestroy) comm_destroy{};
  decltype(&ncclCommAbort) comm_abort{};
  decltype(&ncclCommGetAsyncError) get_async_error{};
  decltype(&ncclGetErrorString) get_error_string{};
  decltype(&ncclGetLastError) get_last_error{};
  decltype(&ncclGroupStart) group_start{};
  decltype(&ncclGroupEnd) group_end{};
  decltype(&ncclAllGather) all_gather{};
  decltype(&ncclSend) send{};
  decltype(&ncclRecv) recv{};
};

void check(Functions const& nccl, ncclResult_t code, char const* call, ncclComm_t comm = nullptr) {
  if (code != ncclSuccess) {
    char const* const detail = nccl.get_last_error(comm);
    throw NcclError{fmt::format("{} failed: {}{}{}; NCCL_DEBUG=WARN in the environment says more",
                                call, nccl.get_error_string(code),
                                detail != nullptr && *detail != '\0' ? ": " : "",
                                detail != nullptr ? detail : "")};
  }
}

std::size_t count_of(Slice const& part) {
  return static_cast<std::size_t>(part.size);
}

class LoadedCommunicator final : public Communicator {
 public:
  LoadedCommunicator(Functions const& nccl, UniqueId const& id, int rank, int ranks)
      : nccl_{nccl}, rank_{rank}, ranks_{ranks} {
    ncclUniqueId copy{};
    std::memcpy(&copy, id.data(), id.size());
    Waiting const waiting{"NCCL to connect the ranks"};
    check(nccl_, nccl_.comm_init_rank(&comm_, ranks, copy, rank), "ncclCommInitRank");
  }
  ~LoadedCommunicator() override { end(true); }
  LoadedCommunicator(LoadedCommunicator const&) = delete;
  LoadedCommunicator& operator=(LoadedCommunicator const&) = delete;

  void all_gather(void* stream, std::span<std::byte> buffer) override;
  void all_to_all(void* stream, std::span<std::byte const> send, std::span<Slice const> send_parts,
                  std::span<std::byte> receive, std::span<Slice const> receive_parts) override;
  void end(bool failed) noexcept override;

 private:
  void require_health() const {
    require(comm_ != nullptr, "nccl::Communicator: it has ended");
    ncclResult_t state = ncclSuccess;
    check(nccl_, nccl_.get_async_error(comm_, &state), "ncclCommGetAsyncError", comm_);
    check(nccl_, state, "work in the background", comm_);
  }
  /// Has NCCL take all calls that `calls` makes as one. A group that was begun has to end, come
  /// what may.
  template <class Calls>
  void group(char const* what, Calls const& calls) {
    require_health();
    Waiting const waiting{what};
    check(nccl_, nccl_.group_start(), "ncclGroupStart", comm_);
    try {
      calls();
    } catch (...) {
      static_cast<void>(nccl_.group_end());
      throw;
    }
    check(nccl_, nccl_.group_end(), "ncclGroupEnd", comm_);
  }

  Functions const& nccl_;
  int rank_;
  int ranks_;
  ncclComm_t comm_{};
};

void LoadedCommunicator::all_gather(void* stream, std::span<std::byte> buffer) {
  auto const ranks = static_cast<std::size_t>(ranks_);
  require(buffer.size() % ranks == 0, "nccl::Communicator: equal parts");
  std::size_t const part = buffer.size() / ranks;
  group("NCCL to queue an all-gather", [&] {
    check(nccl_,
          nccl_.all_gather(buffer.data() + static_cast<std::size_t>(rank_) * part, buffer.data(),
                           part, ncclUint8, comm_, static_cast<cudaStream_t>(stream)),
          "ncclAllGather", comm_);
  });
}

void LoadedCommunicator::all_to_all(void* stream, std::span<std::byte const> send,
                                    std::span<Slice const> send_parts, std::span<std::byte> receive,
                                    std::span<Slice const> receive_parts) {
  auto* const queue = static_cast<cudaStream_t>(stream);
  group("NCCL to queue an all-to-all", [&] {
    for (std::size_t peer = 0; peer < send_parts.size(); ++peer) {
      if (static_cast<int>(peer) == rank_) {
        continue;
      }
      Slice const& out = send_parts[peer];
      Slice const& in = receive_parts[peer];
      if (out.size > 0) {
        check(nccl_,
              nccl_.send(send.data() + out.offset, count_of(out), ncclUint8, static_cast<int>(peer),
                         comm_, queue),
              "ncclSend", comm_);
      }
      if (in.size > 0) {
        check(nccl_,
              nccl_.recv(receive.data() + in.offset, count_of(in), ncclUint8,
                         static_cast<int>(peer), comm_, queue),
              "ncclRecv", comm_);
      }
    }
  });
}

// Errors are lost: nothing of what they would be about is used any more.
void LoadedCommunicator::end(bool failed) noexcept {
  auto* const comm = std::exchange(comm_, nullptr);
  if (comm == nullptr) {
    return;
  }
  Waiting const waiting{"NCCL to end"};
  if (failed || nccl_.comm_finalize(comm) != ncclSuccess) {
    static_cast<void>(nccl_.comm_abort(comm));
  } else {
    static_cast<void>(nccl_.comm_destroy(comm));
  }
}

class LoadedLibrary final : public Library {
 public:
  explicit LoadedLibrary(std::string const& file) : nccl_{file} {
    check(nccl_, nccl_.get_version(&version_), "ncclGetVersion");
    if (version_ / 10000 < NCCL_MAJOR) {
      throw NcclError{fmt::format("{} is version {}, but offstage was built with {}.{}", file,
                                  version(), NCCL_MAJOR, NCCL_MINOR)};
    }
  }

  [[nodiscard]] std::string version() const override {
    return fmt::format("{}.{}.{}", version_ / 10000, version_ / 100 % 100, version_ % 100);
  }
  [[nodiscard]] UniqueId make_id() const override {
    ncclUniqueId made{};
    check(nccl_, nccl_.get_unique_id(&made), "ncclGetUniqueId");
    UniqueId id{};
    std::memcpy(id.data(), &made, id.size());
    return id;
  }
  [[nodiscard]] std::unique_ptr<Communicator> connect(UniqueId const& id, int rank,
                                                      int ranks) const override {
    return std::make_unique<LoadedCommunicator>(nccl_, id, rank, ranks);
  }

 private:
  Functions nccl_;
  int version_{};
};

}  // namespace

bool is_built_in() noexcept {
  return true;
}

std::unique_ptr<Library> load_library(std::string const& file) {
  if (!file.empty()) {
    return std::make_unique<LoadedLibrary>(file);
  }
  try {
    return std::make_unique<LoadedLibrary>("libnccl.so.2");
  } catch (NcclError const&) {
    std::string const built_with = OFFSTAGE_NCCL_LIBRARY;
    if (built_with.empty()) {
      throw;
    }
    try {
      return std::make_unique<LoadedLibrary>(built_with);
    } catch (NcclError const&) {  // the other name says more to who looks for it
    }
    throw;
  }
}

#else

bool is_built_in() noexcept {
  return false;
}

std::unique_ptr<Library> load_library(std::string const& /*file*/) {
  throw NcclError{"offstage was built without it: there was no nccl.h"};
}

#endif

}  // namespace offstage::nccl
