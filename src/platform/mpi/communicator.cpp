#include "platform/mpi/communicator.hpp"

#include <algorithm>
#include <array>
#include <climits>
#include <deque>
#include <exception>
#include <utility>

#include "base/failure.hpp"
#include "base/watch.hpp"

namespace offstage::mpi {
namespace {

// One message; longer ones travel in pieces. Below INT_MAX, and a multiple of the page size.
constexpr Bytes piece_bytes = GiB;

std::string error_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length{};
  MPI_Error_string(code, text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

/// Bytes [round * piece_bytes, ...) of a slice, at most piece_bytes.
Slice piece_of(Slice const& whole, Bytes round) {
  Bytes const begin = std::min(whole.size, round * piece_bytes);
  return {whole.offset + begin, std::min(whole.size - begin, piece_bytes)};
}

/// Slices of these sizes, each after the one before.
std::vector<Slice> in_a_row(std::vector<Bytes> const& sizes) {
  std::vector<Slice> slices;
  Bytes offset = 0;
  for (Bytes const size : sizes) {
    slices.push_back({offset, size});
    offset += size;
  }
  return slices;
}

std::vector<std::string> cut(std::string const& all, std::vector<Slice> const& slices) {
  std::vector<std::string> texts;
  texts.reserve(slices.size());
  for (Slice const& slice : slices) {
    texts.push_back(
        all.substr(static_cast<std::size_t>(slice.offset), static_cast<std::size_t>(slice.size)));
  }
  return texts;
}

std::size_t size_of(std::vector<Slice> const& slices) {
  return static_cast<std::size_t>(slices.back().offset + slices.back().size);
}

constexpr int gather_tag = 1;
constexpr int exchange_tag = 2;
constexpr int fold_tag = 3;

/// Pages as one element, so that int counts reach 8 TiB.
class Pages {
 public:
  Pages() {
    check(MPI_Type_contiguous(static_cast<int>(page_bytes), MPI_BYTE, &type_),
          "MPI_Type_contiguous");
    check(MPI_Type_commit(&type_), "MPI_Type_commit");
  }
  ~Pages() { MPI_Type_free(&type_); }
  Pages(Pages const&) = delete;
  Pages& operator=(Pages const&) = delete;
  [[nodiscard]] MPI_Datatype get() const noexcept { return type_; }

 private:
  MPI_Datatype type_{MPI_DATATYPE_NULL};
};

/// The messages of an exchange: of the pairs that began last, as many as may be under way.
class PairsInFlight {
 public:
  explicit PairsInFlight(MPI_Comm comm) : comm_{comm} {}

  /// Begins to move bytes to one rank and from another, once there is room for it.
  void begin(int to, std::span<std::byte const> out, int from, std::span<std::byte> in) {
    if (pairs_.size() == static_cast<std::size_t>(most_pairs)) {
      wait_oldest();
    }
    auto& pair = pairs_.emplace_back(Pair{from, {}});
    Slice const whole_in{0, std::ssize(in)};
    Slice const whole_out{0, std::ssize(out)};
    Bytes const pieces = ceil_div(std::max(whole_in.size, whole_out.size), piece_bytes);
    for (Bytes p = 0; p < pieces; ++p) {
      if (Slice const piece = piece_of(whole_in, p); piece.size > 0) {
        check(MPI_Irecv(in.data() + piece.offset, static_cast<int>(piece.size), MPI_BYTE, from,
                        exchange_tag, comm_, &pair.requests.emplace_back()),
              "MPI_Irecv");
      }
      if (Slice const piece = piece_of(whole_out, p); piece.size > 0) {
        check(MPI_Isend(out.data() + piece.offset, static_cast<int>(piece.size), MPI_BYTE, to,
                        exchange_tag, comm_, &pair.requests.emplace_back()),
              "MPI_Isend");
      }
    }
  }
  void wait_all() {
    while (!pairs_.empty()) {
      wait_oldest();
    }
  }

 private:
  struct Pair {
    int from{};
    std::vector<MPI_Request> requests;
  };
  void wait_oldest() {
    Pair pair = std::move(pairs_.front());
    pairs_.pop_front();
    WaitingForRanks const waiting{"all_to_all with rank", pair.from};
    check(MPI_Waitall(static_cast<int>(pair.requests.size()), pair.requests.data(),
                      MPI_STATUSES_IGNORE),
          "MPI_Waitall");
  }

  MPI_Comm comm_;
  std::deque<Pair> pairs_;
};

template <class Byte>
std::span<Byte> part_of(std::span<Byte> bytes, Slice const& part) {
  return bytes.subspan(static_cast<std::size_t>(part.offset), static_cast<std::size_t>(part.size));
}

}  // namespace

MpiError::MpiError(std::string const& call, int code)
    : Error{ExitCode::other, call + " failed: " + error_text(code)} {}

void check(int code, char const* call) {
  if (code != MPI_SUCCESS) {
    throw MpiError{call, code};
  }
}

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

std::vector<std::string> Communicator::all_gather_texts(std::string const& mine) const {
  auto const parts = in_a_row(all_gather_value(static_cast<Bytes>(mine.size())));
  std::string all(size_of(parts), '\0');
  std::ranges::copy(mine, all.begin() + parts[static_cast<std::size_t>(rank_)].offset);
  all_gather(std::as_writable_bytes(std::span{all}), parts);
  return cut(all, parts);
}

std::vector<std::string> Communicator::gather_texts(std::string const& mine) const {
  auto const parts = in_a_row(all_gather_value(static_cast<Bytes>(mine.size())));
  std::string all(rank_ == 0 ? size_of(parts) : 0, '\0');
  gather(std::as_bytes(std::span{mine}), std::as_writable_bytes(std::span{all}), parts, 0);
  return rank_ == 0 ? cut(all, parts) : std::vector<std::string>{};
}

void Communicator::all_gather(std::span<std::byte> buffer) const {
  Bytes const all = std::ssize(buffer);
  require(all % size_ == 0, "all_gather: equal parts");
  if (size_ == 1) {
    made_progress();
    return;
  }
  WaitingForRanks const waiting{"all_gather"};
  Bytes const part = all / size_;
  auto const gather = [&](Bytes count, MPI_Datatype type) {
    check(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, buffer.data(), static_cast<int>(count),
                        type, handle_),
          "MPI_Allgather");
  };
  if (all <= INT_MAX) {
    gather(part, MPI_BYTE);
    return;
  }
  require(part % page_bytes == 0 && part / page_bytes <= INT_MAX,
          "all_gather: parts of whole pages beyond 2 GiB");
  gather(part / page_bytes, Pages{}.get());
}

void Communicator::all_gather(std::span<std::byte> buffer, std::span<Slice const> parts) const {
  require(parts.size() == static_cast<std::size_t>(size_), "all_gather: one part per rank");
  require(buffer.size() <= INT_MAX, "all_gather: unequal parts of 2 GiB in all at most");
  if (size_ == 1) {
    made_progress();
    return;
  }
  WaitingForRanks const waiting{"all_gather"};
  std::vector<int> counts;
  std::vector<int> offsets;
  for (Slice const& part : parts) {
    counts.push_back(static_cast<int>(part.size));
    offsets.push_back(static_cast<int>(part.offset));
  }
  check(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, buffer.data(), counts.data(),
                       offsets.data(), MPI_BYTE, handle_),
        "MPI_Allgatherv");
}

void Communicator::send(std::span<std::byte const> bytes, int to) const {
  WaitingForRanks const waiting{"sending to rank", to};
  require(bytes.size() <= INT_MAX, "send: one message is less than 2 GiB");
  check(MPI_Send(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, to, fold_tag, handle_),
        "MPI_Send");
}

std::vector<std::byte> Communicator::receive(int from) const {
  WaitingForRanks const waiting{"a message of rank", from};
  MPI_Status status{};
  check(MPI_Probe(from, fold_tag, handle_, &status), "MPI_Probe");
  int size{};
  check(MPI_Get_count(&status, MPI_BYTE, &size), "MPI_Get_count");
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  check(MPI_Recv(bytes.data(), size, MPI_BYTE, from, fold_tag, handle_, MPI_STATUS_IGNORE),
        "MPI_Recv");
  return bytes;
}

void Communicator::gather(std::span<std::byte const> mine, std::span<std::byte> buffer,
                          std::span<Slice const> parts, int root) const {
  require(parts.size() == static_cast<std::size_t>(size_), "gather: one part per rank");
  WaitingForRanks const waiting{"gather to rank", root};
  // Pairwise, in pieces: the root needs no int offsets and no second buffer.
  if (rank_ != root) {
    for (Bytes begin = 0; begin < static_cast<Bytes>(mine.size()); begin += piece_bytes) {
      auto const count =
          static_cast<int>(std::min(piece_bytes, static_cast<Bytes>(mine.size()) - begin));
      check(MPI_Send(mine.data() + begin, count, MPI_BYTE, root, gather_tag, handle_), "MPI_Send");
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
      check(
          MPI_Recv(target + begin, count, MPI_BYTE, source, gather_tag, handle_, MPI_STATUS_IGNORE),
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
  // A rank sends to rank + round and receives from rank - round, so all pairs of a round are apart.
  PairsInFlight pairs{handle_};
  for (int round = 0; round < size_; ++round) {
    int const to = (rank_ + round) % size_;
    int const from = (rank_ - round + size_) % size_;
    auto const out = part_of(send, send_parts[static_cast<std::size_t>(to)]);
    auto const in = part_of(receive, receive_parts[static_cast<std::size_t>(from)]);
    if (to == rank_) {
      std::ranges::copy(out, in.begin());
    } else if (!out.empty() || !in.empty()) {
      pairs.begin(to, out, from, in);
    }
  }
  pairs.wait_all();
}

void Communicator::all_to_all(std::span<std::byte const> send, std::span<Slice const> send_parts,
                              std::span<std::byte> receive, std::span<Slice const> receive_parts,
                              Bytes largest) const {
  if (largest > small_part || size_ <= 2) {
    all_to_all(send, send_parts, receive, receive_parts);
    return;
  }
  auto const ranks = static_cast<std::size_t>(size_);
  require(send_parts.size() == ranks && receive_parts.size() == ranks,
          "all_to_all: one part per rank");
  auto const size = static_cast<std::size_t>(largest);
  std::vector<std::byte> blocks(ranks * size);
  auto const block = [&](int i) {
    return std::span{blocks}.subspan(static_cast<std::size_t>(i) * size, size);
  };
  for (int i = 0; i < size_; ++i) {
    Slice const& part = send_parts[static_cast<std::size_t>((rank_ + i) % size_)];
    require(part.size <= largest, "all_to_all: a part that is larger than the largest");
    std::ranges::copy(part_of(send, part), block(i).begin());
  }
  exchange_blocks(blocks, size);
  for (int i = 0; i < size_; ++i) {
    Slice const& part = receive_parts[static_cast<std::size_t>((rank_ - i + size_) % size_)];
    require(part.size <= largest, "all_to_all: a part that is larger than the largest");
    std::ranges::copy(block(i).first(static_cast<std::size_t>(part.size)),
                      part_of(receive, part).begin());
  }
}

// In step k all blocks whose number has bit k go k ranks on, together: a block that starts with
// number i has gone i ranks when all steps are done.
void Communicator::exchange_blocks(std::span<std::byte> blocks, std::size_t size) const {
  std::vector<std::byte> out;
  std::vector<std::byte> in;
  for (int reach = 1; reach < size_; reach *= 2) {
    out.clear();
    for (int i = reach; i < size_; i = (i + 1) | reach) {
      auto const block = blocks.subspan(static_cast<std::size_t>(i) * size, size);
      out.insert(out.end(), block.begin(), block.end());
    }
    in.resize(out.size());
    PairsInFlight pairs{handle_};
    pairs.begin((rank_ + reach) % size_, out, (rank_ - reach + size_) % size_, in);
    pairs.wait_all();
    auto next = in.begin();
    for (int i = reach; i < size_; i = (i + 1) | reach) {
      auto const end = next + static_cast<std::ptrdiff_t>(size);
      std::copy(next, end, blocks.subspan(static_cast<std::size_t>(i) * size).begin());
      next = end;
    }
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
double Communicator::minimum(double value) const {
  return reduce(value, MPI_DOUBLE, MPI_MIN, handle_);
}

std::string processor_name() {
  std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
  int length = 0;
  check(MPI_Get_processor_name(name.data(), &length), "MPI_Get_processor_name");
  return {name.data(), static_cast<std::size_t>(length)};
}

void agree(Communicator const& comm, std::function<void()> const& work) {
  std::string message;
  auto code = ExitCode::done;
  int error_number = 0;
  try {
    work();
  } catch (...) {
    Failure failure = failure_of(std::current_exception());
    message = std::move(failure.text);
    code = failure.code;
    error_number = failure.error_number;
  }
  bool const failed = code != ExitCode::done;
  auto const lowest = static_cast<int>(comm.minimum(failed ? comm.rank() : INT_MAX));
  if (lowest == INT_MAX) {
    return;
  }
  code = static_cast<ExitCode>(comm.broadcast_value(static_cast<int>(code), lowest));
  message = comm.broadcast(std::move(message), lowest);
  bool const is_final = comm.maximum(std::int64_t{failed && error_number == 0}) == 1;
  error_number = is_final ? 0 : comm.broadcast_value(error_number, lowest);
  throw AgreedError{code, message, lowest, comm.broadcast(processor_name(), lowest), error_number};
}

}  // namespace offstage::mpi
