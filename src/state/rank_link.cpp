#include "state/rank_link.hpp"

#include <exception>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace offstage::state {
namespace {

/// Copies the bytes that a rank sends to itself.
void copy_own(device::Stream& stream, int rank, std::span<std::byte const> send,
              std::span<Slice const> send_parts, std::span<std::byte> receive,
              std::span<Slice const> receive_parts) {
  Slice const& out = send_parts[static_cast<std::size_t>(rank)];
  Slice const& in = receive_parts[static_cast<std::size_t>(rank)];
  require(out.size == in.size, "RankLink: what a rank sends itself it receives");
  stream.copy(receive.data() + in.offset, send.data() + out.offset, out.size,
              device::Copy::device_to_device);
}

class MpiLink final : public RankLink {
 public:
  using RankLink::RankLink;

  void all_gather(device::Stream& stream, std::span<std::byte> buffer) override {
    stream.synchronize();
    comm().all_gather(buffer);
  }
  void all_to_all(device::Stream& stream, std::span<std::byte const> send,
                  std::span<Slice const> send_parts, std::span<std::byte> receive,
                  std::span<Slice const> receive_parts) override {
    if (route() != Route::direct) {
      stream.synchronize();
      comm().all_to_all(send, send_parts, receive, receive_parts);
      return;
    }
    // MPI moves bytes between ranks. Within this rank MPI would copy them by host code.
    copy_own(stream, rank(), send, send_parts, receive, receive_parts);
    stream.synchronize();
    std::vector<Slice> to_others{send_parts.begin(), send_parts.end()};
    std::vector<Slice> from_others{receive_parts.begin(), receive_parts.end()};
    to_others[static_cast<std::size_t>(rank())].size = 0;
    from_others[static_cast<std::size_t>(rank())].size = 0;
    comm().all_to_all(send, to_others, receive, from_others);
  }
};

class NcclLink final : public RankLink {
 public:
  NcclLink(mpi::Communicator const& comm, std::unique_ptr<nccl::Library> library,
           device::Stream& stream)
      : RankLink{comm, Route::direct},
        library_{std::move(library)},
        errors_{std::uncaught_exceptions()} {
    nccl::UniqueId id{};
    mpi::agree(comm, [&] {
      if (rank() == 0) {
        id = library_->make_id();
      }
    });
    id = comm.broadcast_value(id, 0);
    static_cast<void>(stream.native());  // makes the stream's GPU the current one
    ranks_ = library_->connect(id, rank(), size());
  }
  ~NcclLink() override { end(); }
  NcclLink(NcclLink const&) = delete;
  NcclLink& operator=(NcclLink const&) = delete;

  void all_gather(device::Stream& stream, std::span<std::byte> buffer) override {
    follow(stream);
    ranks_->all_gather(stream.native(), buffer);
    last_ = stream.record();
  }
  void all_to_all(device::Stream& stream, std::span<std::byte const> send,
                  std::span<Slice const> send_parts, std::span<std::byte> receive,
                  std::span<Slice const> receive_parts) override {
    copy_own(stream, rank(), send, send_parts, receive, receive_parts);
    follow(stream);
    ranks_->all_to_all(stream.native(), send, send_parts, receive, receive_parts);
    last_ = stream.record();
  }
  void end() noexcept override {
    if (ranks_) {
      ranks_->end(std::uncaught_exceptions() > errors_);
      ranks_.reset();
    }
  }

 private:
  /// Operations follow each other in the same order on all ranks. If two ran at once, each might
  /// have resources for which the other waits.
  void follow(device::Stream& stream) {
    require(ranks_ != nullptr, "RankLink: it has ended");
    if (last_) {
      stream.wait(*last_);
    }
  }

  std::unique_ptr<nccl::Library> library_;
  std::unique_ptr<nccl::Communicator> ranks_;
  std::shared_ptr<device::Event> last_;  ///< behind the last operation; null: there was none
  int errors_;
};

}  // namespace

std::unique_ptr<RankLink> make_mpi_link(mpi::Communicator const& comm, Route route) {
  return std::make_unique<MpiLink>(comm, route);
}

std::unique_ptr<RankLink> make_nccl_link(mpi::Communicator const& comm,
                                         std::unique_ptr<nccl::Library> library,
                                         device::Stream& stream) {
  return std::make_unique<NcclLink>(comm, std::move(library), stream);
}

}  // namespace offstage::state
