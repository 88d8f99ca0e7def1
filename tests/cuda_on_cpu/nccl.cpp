/// Stands in for libnccl, as a library that is loaded: ranks of one machine, pipes in place of
/// links, work queued on the streams of runtime.cpp. NCCL_ON_CPU_FAULT=1: something went wrong in
/// the background. NCCL_ON_CPU_MEMORY: bytes of the device that the first call takes.
#include <nccl.h>
#include <stdlib.h>

#include <array>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/units.hpp"
#include "cuda_on_cpu/runtime.hpp"
#include "state/rank_pipes.hpp"

using offstage::RankPipes;

namespace {

/// What is queued holds it.
struct Ranks {
  Ranks(std::string const& directory, int own_rank, int count)
      : pipes{directory, own_rank, count}, rank{own_rank}, size{count} {}
  RankPipes pipes;
  int rank;
  int size;
  std::mutex mutex;  ///< guards all below
  std::condition_variable changed;
  int queued = 0;
};

/// What a connected communicator has of the device's memory.
class Memory {
 public:
  explicit Memory(offstage::Bytes size) : size_{size} { offstage::cuda_on_cpu::take(size_); }
  ~Memory() { offstage::cuda_on_cpu::take(-size_); }
  Memory(Memory const&) = delete;
  Memory& operator=(Memory const&) = delete;

 private:
  offstage::Bytes size_;
};

/// Calls that are made as one.
struct Group {
  std::shared_ptr<Ranks> ranks;
  cudaStream_t stream{};
  std::vector<RankPipes::Out> outs;
  std::vector<RankPipes::In> ins;
  int depth = 0;
};
thread_local Group group;

void queue_group() {
  auto const ranks = std::exchange(group.ranks, nullptr);
  if (!ranks) {
    return;
  }
  {
    std::scoped_lock const lock{ranks->mutex};
    ++ranks->queued;
  }
  offstage::cuda_on_cpu::enqueue(group.stream, [ranks, outs = std::exchange(group.outs, {}),
                                                ins = std::exchange(group.ins, {})] {
    ranks->pipes.exchange(outs, ins);
    std::scoped_lock const lock{ranks->mutex};
    --ranks->queued;
    ranks->changed.notify_all();
  });
}

}  // namespace

struct ncclComm {
  std::shared_ptr<Ranks> ranks;
  std::optional<Memory> memory{};
};

namespace {

/// All calls of a group are of one communicator and one stream, as those of the project are.
template <class Call>
ncclResult_t add(ncclComm_t comm, cudaStream_t stream, Call const& call) {
  if ((group.ranks && group.ranks != comm->ranks) || (group.ranks && group.stream != stream)) {
    return ncclInvalidUsage;
  }
  if (char const* const size = getenv("NCCL_ON_CPU_MEMORY"); size != nullptr && !comm->memory) {
    comm->memory.emplace(std::atoll(size));
  }
  group.ranks = comm->ranks;
  group.stream = stream;
  call(*comm->ranks);
  if (group.depth == 0) {
    queue_group();
  }
  return ncclSuccess;
}
std::span<std::byte const> bytes_of(void const* data, std::size_t count) {
  return {static_cast<std::byte const*>(data), count};
}
std::span<std::byte> bytes_of(void* data, std::size_t count) {
  return {static_cast<std::byte*>(data), count};
}
bool is_bytes(ncclDataType_t type) {
  return type == ncclInt8 || type == ncclUint8;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  std::string path = (std::filesystem::temp_directory_path() / "nccl-XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr || path.size() >= sizeof id->internal) {
    return ncclSystemError;
  }
  std::memcpy(id->internal, path.data(), path.size());
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  auto ranks = std::make_shared<Ranks>(id.internal, rank, size);
  std::array<std::byte, 1> const here{};
  std::vector<std::byte> there(static_cast<std::size_t>(size));
  std::vector<RankPipes::Out> outs;
  std::vector<RankPipes::In> ins;
  for (int other = 0; other < size; ++other) {
    if (other != rank) {
      outs.push_back({other, here});
      ins.push_back({other, std::span{there}.subspan(static_cast<std::size_t>(other), 1)});
    }
  }
  ranks->pipes.exchange(std::move(outs), std::move(ins));
  if (rank == 0) {
    std::filesystem::remove_all(id.internal);  // all have what they need open
  }
  *comm = new ncclComm{std::move(ranks)};
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  std::unique_lock lock{comm->ranks->mutex};
  comm->ranks->changed.wait(lock, [&] { return comm->ranks->queued == 0; });
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->ranks->pipes.cancel();
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t /*comm*/, ncclResult_t* state) {
  *state = getenv("NCCL_ON_CPU_FAULT") != nullptr ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}
char const* ncclGetErrorString(ncclResult_t code) {
  return code == ncclRemoteError ? "remote process exited or there was a network error"
                                 : "an error of nccl.cpp";
}
char const* ncclGetLastError(ncclComm_t /*comm*/) {
  return "";
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--group.depth == 0) {
    queue_group();
  }
  return ncclSuccess;
}
ncclResult_t ncclSend(void const* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return is_bytes(type) ? add(comm, stream,
                              [&](Ranks const&) {
                                group.outs.push_back({peer, bytes_of(data, count)});
                              })
                        : ncclInvalidArgument;
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return is_bytes(type) ? add(comm, stream,
                              [&](Ranks const&) {
                                group.ins.push_back({peer, bytes_of(data, count)});
                              })
                        : ncclInvalidArgument;
}
/// In place alone.
ncclResult_t ncclAllGather(void const* send, void* receive, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  auto const at = [&](int rank) {
    return static_cast<std::byte*>(receive) + static_cast<std::size_t>(rank) * count;
  };
  if (!is_bytes(type) || send != at(comm->ranks->rank)) {
    return ncclInvalidArgument;
  }
  return add(comm, stream, [&](Ranks const& ranks) {
    for (int other = 0; other < ranks.size; ++other) {
      if (other != ranks.rank) {
        group.outs.push_back({other, bytes_of(send, count)});
        group.ins.push_back({other, bytes_of(static_cast<void*>(at(other)), count)});
      }
    }
  });
}

}  // extern "C"
