#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "platform/mpi/communicator.hpp"
#include "platform/scratch_directory.hpp"
#include "state/rank_link.hpp"
#include "state/rank_pipes.hpp"

namespace offstage::state {

/// A link on the route `direct` whose work is queued on the stream, as NCCL's is, by pipes in its
/// place: what its user does not order goes wrong. For the emulated device.
class QueuedLink final : public RankLink {
 public:
  explicit QueuedLink(mpi::Communicator const& comm) : RankLink{comm, Route::direct} {
    if (rank() == 0) {
      directory_.emplace();
    }
    pipes_ = std::make_unique<RankPipes>(
        comm.broadcast(directory_ ? directory_->path() : std::string{}, 0), rank(), size());
    comm.barrier();
  }

  void all_gather(device::Stream& stream, std::span<std::byte> buffer) override {
    std::vector<RankPipes::Out> outs;
    std::vector<RankPipes::In> ins;
    Bytes const part = std::ssize(buffer) / size();
    auto const own = part_of(buffer, {rank() * part, part});
    for (int other = 0; other < size(); ++other) {
      if (other != rank()) {
        outs.push_back({other, own});
        ins.push_back({other, part_of(buffer, {other * part, part})});
      }
    }
    queue(stream, std::move(outs), std::move(ins));
  }
  void all_to_all(device::Stream& stream, std::span<std::byte const> send,
                  std::span<Slice const> send_parts, std::span<std::byte> receive,
                  std::span<Slice const> receive_parts) override {
    std::vector<RankPipes::Out> outs;
    std::vector<RankPipes::In> ins;
    for (int other = 0; other < size(); ++other) {
      auto const at = static_cast<std::size_t>(other);
      if (other != rank()) {
        outs.push_back({other, part_of(send, send_parts[at])});
        ins.push_back({other, part_of(receive, receive_parts[at])});
      }
    }
    stream.copy(receive.data() + receive_parts[index()].offset,
                send.data() + send_parts[index()].offset, send_parts[index()].size,
                device::Copy::device_to_device);
    queue(stream, std::move(outs), std::move(ins));
  }

 private:
  [[nodiscard]] std::size_t index() const { return static_cast<std::size_t>(rank()); }
  template <class Byte>
  static std::span<Byte> part_of(std::span<Byte> bytes, Slice const& part) {
    return bytes.subspan(static_cast<std::size_t>(part.offset),
                         static_cast<std::size_t>(part.size));
  }
  void queue(device::Stream& stream, std::vector<RankPipes::Out> outs,
             std::vector<RankPipes::In> ins) {
    if (last_) {
      stream.wait(*last_);
    }
    stream.enqueue(
        [this, outs = std::move(outs), ins = std::move(ins)] { pipes_->exchange(outs, ins); });
    last_ = stream.record();
  }

  std::optional<ScratchDirectory> directory_;  ///< rank 0's
  std::unique_ptr<RankPipes> pipes_;
  std::shared_ptr<device::Event> last_;
};

/// Links by which layers on an emulated device get to other ranks.
enum class LinkKind {
  usual,   ///< in place or staged, as the device is
  direct,  ///< as by CUDA-aware MPI: blocks, and takes device memory
  queued,  ///< as by NCCL
};
constexpr LinkKind every_link[] = {LinkKind::usual, LinkKind::direct, LinkKind::queued};

/// One rank has the usual link, and so has a device that is host_visible.
inline std::unique_ptr<RankLink> make_link(LinkKind kind, mpi::Communicator const& comm,
                                           bool host_visible) {
  if (host_visible || comm.size() == 1 || kind == LinkKind::usual) {
    return make_mpi_link(comm, host_visible ? Route::in_place : Route::staged);
  }
  if (kind == LinkKind::direct) {
    return make_mpi_link(comm, Route::direct);
  }
  return std::make_unique<QueuedLink>(comm);
}

}  // namespace offstage::state
