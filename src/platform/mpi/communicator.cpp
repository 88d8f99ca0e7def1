#include "platform/mpi/communicator.hpp"

#include <algorithm>
#include <array>
#include <climits>
#include <exception>
#include <utility>

#include "base/failure.hpp"
#include "base/watch.hpp"

namespace offstage::mpi {
namespace {

// One message; longer ones travel in pieces. Below INT_MAX, and a multiple of the page size.
constexpr Bytes piece_bytes = GiB;

void check(int code, char const* call) {
  if (code != MPI_SUCCESS) {
    throw MpiError{call, code};
  }
}

std::string error_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length{};
  MPI_Error_string(code, text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

/// What is left of a slice in round `round` of pieces of `step` bytes.
Slice piece_of(Slice const& whole, Bytes round, Bytes step) {
  Bytes const begin = std::min(whole.size, round * step);
  return {whole.offset + begin, std::min(whole.size - begin, step)};
}

struct CountsAndOffsets {
  std::vector<int> counts;
  std::vector<int> offsets;
};

/// True if all slices of all ranks can be named with int counts and offsets.
bool fits_int(std::span<Slice const> parts) {
  return std::ranges::all_of(parts, [](Slice const& s) { return s.offset + s.size <= INT_MAX; });
}

CountsAndOffsets as_int(std::span<Slice const> parts) {
  CountsAndOffsets result;
  for (Slice const& part : parts) {
    result.counts.push_back(static_cast<int>(part.size));
    result.offsets.push_back(static_cast<int>(part.offset));
  }
  return result;
}

}  // namespace

MpiError::MpiError(std::string const& call, int code)
    : Error{ExitCode::other, call + " failed: " + error_text(code)} {}

Communicator::Communicator(MPI_Comm handle) : handle_{handle} {
  check(MPI_Comm_rank(handle_, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(handle_, &size_), "MPI_Comm_size");
}

Communicator Communicator::world() {
  MPI_Comm copy{};
  check(MPI_Comm_dup(MPI_COMM_WORLD, &copy), "MPI_Comm_dup");
  return Communicator{copy};
}

Communicator Communicator::self() {
  MPI_Comm copy{};
  check(MPI_Comm_dup(MPI_COMM_SELF, &copy), "MPI_Comm_dup");
  check(MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return Communicator{copy};
}

Communicator Communicator::duplicate() const {
  Waiting const waiting{"the duplicate of a communicator"};
  MPI_Comm copy{};
  check(MPI_Comm_dup(handle_, &copy), "MPI_Comm_dup");
  return Communicator{copy};
}

Communicator Communicator::split_by_node() const {
  WaitingForRanks const waiting{"the split by node"};
  MPI_Comm node{};
  check(MPI_Comm_split_type(handle_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node),
        "MPI_Comm_split_type");
  return Communicator{node};
}

void Communicator::reset() noexcept {
  if (handle_ != MPI_COMM_NULL) {
    int finalized{};
    MPI_Finalized(&finalized);
    if (finalized == 0) {
      MPI_Comm_free(&handle_);
    }
    handle_ = MPI_COMM_NULL;
  }
}

void Communicator::barrier() const {
  WaitingForRanks const waiting{"barrier"};
  check(MPI_Barrier(handle_), "MPI_Barrier");
}

void Communicator::broadcast(std::span<std::byte> bytes, int root) const {
  WaitingForRanks const waiting{"broadcast from rank", root};
  auto const size = static_cast<Bytes>(bytes.size());
  for (Bytes begin = 0; begin < size; begin += piece_bytes) {
    auto const count = static_cast<int>(std::min(piece_bytes, size - begin));
    check(MPI_Bcast(bytes.data() + begin, count, MPI_BYTE, root, handle_), "MPI_Bcast");
  }
}

std::string Communicator::broadcast(std::string text, int root) const {
  text.resize(broadcast_value(text.size(), root));
  broadcast(std::as_writable_bytes(std::span{text}), root);
  return text;
}

void Communicator::all_gather(std::span<std::byte> buffer, std::span<Slice const> parts) const {
  require(parts.size() == static_cast<std::size_t>(size_), "all_gather: one part per rank");
  if (size_ == 1) {
    made_progress();
    return;
  }
  WaitingForRanks const waiting{"all_gather"};
  if (fits_int(parts)) {
    auto const [counts, offsets] = as_int(parts);
    check(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, buffer.data(), counts.data(),
                         offsets.data(), MPI_BYTE, handle_),
          "MPI_Allgatherv");
    return;
  }
  for (int root = 0; root < size_; ++root) {
    Slice const& part = parts[static_cast<std::size_t>(root)];
    broadcast(
        buffer.subspan(static_cast<std::size_t>(part.offset), static_cast<std::size_t>(part.size)),
        root);
  }
}

void Communicator::gather(std::span<std::byte const> mine, std::span<std::byte> buffer,
                          std::span<Slice const> parts, int root) const {
  require(parts.size() == static_cast<std::size_t>(size_), "gather: one part per rank");
  WaitingForRanks const waiting{"gather to rank", root};
  // Pairwise, in pieces: the root needs no int offsets and no second buffer.
  constexpr int tag = 1;
  if (rank_ != root) {
    for (Bytes begin = 0; begin < static_cast<Bytes>(mine.size()); begin += piece_bytes) {
      auto const count =
          static_cast<int>(std::min(piece_bytes, static_cast<Bytes>(mine.size()) - begin));
      check(MPI_Send(mine.data() + begin, count, MPI_BYTE, root, tag, handle_), "MPI_Send");
    }
    return;
  }
  for (int source = 0; source < size_; ++source) {
    Slice const& part = parts[static_cast<std::size_t>(source)];
    std::byte* const target = buffer.data() + part.offset;
    if (source == root) {
      std::copy(mine.begin(), mine.end(), target);
      continue;
    }
    for (Bytes begin = 0; begin < part.size; begin += piece_bytes) {
      auto const count = static_cast<int>(std::min(piece_bytes, part.size - begin));
      check(MPI_Recv(target + begin, count, MPI_BYTE, source, tag, handle_, MPI_STATUS_IGNORE),
            "MPI_Recv");
    }
  }
}

void Communicator::all_to_all(std::span<std::byte const> send, std::span<Slice const> send_parts,
                              std::span<std::byte> receive,
                              std::span<Slice const> receive_parts) const {
  auto const ranks = static_cast<std::size_t>(size_);
  require(send_parts.size() == ranks && receive_parts.size() == ranks,
          "all_to_all: one part per rank");
  // Pairwise exchange in R rounds; each pair moves its bytes in pieces. A rank sends to rank +
  // round and receives from rank - round, so both sides of every pair meet in the same round.
  constexpr int tag = 2;
  for (int round = 0; round < size_; ++round) {
    int const to = (rank_ + round) % size_;
    int const from = (rank_ - round + size_) % size_;
    Slice const& out = send_parts[static_cast<std::size_t>(to)];
    Slice const& in = receive_parts[static_cast<std::size_t>(from)];
    if (to == rank_) {
      std::copy_n(send.data() + out.offset, out.size, receive.data() + in.offset);
      continue;
    }
    WaitingForRanks const waiting{"all_to_all with rank", from};
    std::vector<MPI_Request> requests;
    Bytes const pieces = ceil_div(std::max(out.size, in.size), piece_bytes);
    for (Bytes p = 0; p < pieces; ++p) {
      Slice const in_piece = piece_of(in, p, piece_bytes);
      if (in_piece.size > 0) {
        check(MPI_Irecv(receive.data() + in_piece.offset, static_cast<int>(in_piece.size), MPI_BYTE,
                        from, tag, handle_, &requests.emplace_back()),
              "MPI_Irecv");
      }
      Slice const out_piece = piece_of(out, p, piece_bytes);
      if (out_piece.size > 0) {
        check(MPI_Isend(send.data() + out_piece.offset, static_cast<int>(out_piece.size), MPI_BYTE,
                        to, tag, handle_, &requests.emplace_back()),
              "MPI_Isend");
      }
    }
    check(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE),
          "MPI_Waitall");
  }
}

namespace {

template <class T>
T reduce(T value, MPI_Datatype type, MPI_Op operation, MPI_Comm comm) {
  WaitingForRanks const waiting{"all_reduce"};
  T result{};
  check(MPI_Allreduce(&value, &result, 1, type, operation, comm), "MPI_Allreduce");
  return result;
}

}  // namespace

std::int64_t Communicator::sum(std::int64_t value) const {
  return reduce(value, MPI_INT64_T, MPI_SUM, handle_);
}
std::int64_t Communicator::maximum(std::int64_t value) const {
  return reduce(value, MPI_INT64_T, MPI_MAX, handle_);
}
std::int64_t Communicator::minimum(std::int64_t value) const {
  return reduce(value, MPI_INT64_T, MPI_MIN, handle_);
}
double Communicator::maximum(double value) const {
  return reduce(value, MPI_DOUBLE, MPI_MAX, handle_);
}

void agree(Communicator const& comm, std::function<void()> const& work) {
  std::string message;
  auto code = ExitCode::done;
  try {
    work();
  } catch (...) {
    Failure failure = failure_of(std::current_exception());
    message = std::move(failure.text);
    code = failure.code;
  }
  bool const failed = code != ExitCode::done;
  auto const lowest = static_cast<int>(comm.minimum(failed ? comm.rank() : INT_MAX));
  if (lowest == INT_MAX) {
    return;
  }
  code = static_cast<ExitCode>(comm.broadcast_value(static_cast<int>(code), lowest));
  throw AgreedError{code, comm.broadcast(std::move(message), lowest), lowest};
}

}  // namespace offstage::mpi
