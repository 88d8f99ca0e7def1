#include "platform/mpi/message.hpp"

namespace offstage::mpi {
namespace {

constexpr int tag = 4;  // 1 to 3 are those of Communicator

int length_of(std::span<std::byte const> bytes) {
  require(std::ssize(bytes) <= GiB, "Message: at most 1 GiB");
  return static_cast<int>(bytes.size());
}

}  // namespace

Message Message::send(Communicator const& comm, std::span<std::byte const> bytes, int to) {
  Message message;
  check(MPI_Isend(bytes.data(), length_of(bytes), MPI_BYTE, to, tag, comm.get(), &message.request_),
        "MPI_Isend");
  return message;
}

Message Message::receive(Communicator const& comm, std::span<std::byte> bytes) {
  Message message;
  check(MPI_Irecv(bytes.data(), length_of(bytes), MPI_BYTE, MPI_ANY_SOURCE, tag, comm.get(),
                  &message.request_),
        "MPI_Irecv");
  return message;
}

bool Message::has_ended() {
  int ended{};
  MPI_Status status{};
  check(MPI_Test(&request_, &ended, &status), "MPI_Test");
  if (ended != 0) {
    int count{};
    check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
    received_ = count == MPI_UNDEFINED ? 0 : count;
  }
  return ended != 0;
}

}  // namespace offstage::mpi
