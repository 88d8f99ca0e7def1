#pragma once

#include <mpi.h>

#include <cstddef>
#include <span>
#include <utility>

#include "base/units.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::mpi {

/// A message between two ranks that is under way while the caller does something else. Its memory
/// belongs to MPI until has_ended() was true: a message that is still under way must not be
/// destroyed before the process ends.
///
/// Threads: as Communicator.
/// Errors:  MpiError.
class Message {
 public:
  Message() noexcept = default;
  ~Message() = default;
  Message(Message const&) = delete;
  Message& operator=(Message const&) = delete;
  Message(Message&& other) noexcept
      : request_{std::exchange(other.request_, MPI_REQUEST_NULL)}, received_{other.received_} {}
  /// Onto one that is not under way.
  Message& operator=(Message&& other) noexcept {
    request_ = std::exchange(other.request_, MPI_REQUEST_NULL);
    received_ = other.received_;
    return *this;
  }
  /// `bytes`: at most 1 GiB.
  [[nodiscard]] static Message send(Communicator const& comm, std::span<std::byte const> bytes,
                                    int to);
  /// Receives a message of any rank; `bytes` may be longer than the message.
  [[nodiscard]] static Message receive(Communicator const& comm, std::span<std::byte> bytes);

  [[nodiscard]] bool is_under_way() const noexcept { return request_ != MPI_REQUEST_NULL; }
  /// Looks, does not wait. After it was true there is no message any more.
  [[nodiscard]] bool has_ended();
  /// Bytes that came; of the message that has ended.
  [[nodiscard]] Bytes received() const noexcept { return received_; }

 private:
  MPI_Request request_ = MPI_REQUEST_NULL;
  Bytes received_ = 0;
};

}  // namespace offstage::mpi
