#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/slice.hpp"
#include "base/units.hpp"

namespace offstage::mpi {

class MpiError : public Error {
 public:
  MpiError(std::string const& call, int code);
};
/// Errors: MpiError if the call returned another code than MPI_SUCCESS.
void check(int code, char const* call);

using offstage::Slice;

/// Pairs of ranks whose bytes are under way at a time in all_to_all: enough to hide latency, few
/// enough for the buffers of a network with thousands of ranks.
constexpr int most_pairs = 8;
/// Counts of messages beyond 2 GiB are in this unit.
constexpr Bytes page_bytes = 4 * KiB;
/// Parts of an exchange up to here are small: a message of them takes as long as its latency.
constexpr Bytes small_part = 16 * KiB;

/// Owns a duplicate or a split of a communicator; move-only.
///
/// Collective: every member is collective and blocking but rank(), size(), get() and reset(); all
///             ranks call the same ones in the same order.
/// Threads:    one thread per process.
/// Sizes:      bytes, with no limit of 2 GiB: larger messages travel in pieces.
/// Errors:     MpiError.
class Communicator {
 public:
  Communicator() noexcept = default;
  /// Owns the handle from now on.
  explicit Communicator(MPI_Comm handle);
  /// A duplicate of MPI_COMM_WORLD.
  [[nodiscard]] static Communicator world();
  /// This rank alone.
  [[nodiscard]] static Communicator self();
  /// The same ranks; messages of one never meet those of the other.
  [[nodiscard]] Communicator duplicate() const;
  /// Ranks that share memory with this one: a node.
  [[nodiscard]] Communicator split_by_node() const;
  ~Communicator() { reset(); }

  Communicator(Communicator const&) = delete;
  Communicator& operator=(Communicator const&) = delete;
  Communicator(Communicator&& other) noexcept
      : handle_{std::exchange(other.handle_, MPI_COMM_NULL)},
        rank_{other.rank_},
        size_{other.size_} {}
  Communicator& operator=(Communicator&& other) noexcept {
    Communicator taken{std::move(other)};
    std::swap(handle_, taken.handle_);
    std::swap(rank_, taken.rank_);
    std::swap(size_, taken.size_);
    return *this;
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] MPI_Comm get() const noexcept { return handle_; }

  void barrier() const;
  void broadcast(std::span<std::byte> bytes, int root) const;
  [[nodiscard]] std::string broadcast(std::string text, int root) const;

  /// Rank r contributes the r-th of size() equal parts of `buffer`, which is filled in already;
  /// afterwards every rank has all parts. Beyond 2 GiB a part is a multiple of page_bytes.
  void all_gather(std::span<std::byte> buffer) const;
  /// The same of parts that are not equal, 2 GiB in all at most: rank r has parts[r]. They lie in
  /// rank order without overlap.
  void all_gather(std::span<std::byte> buffer, std::span<Slice const> parts) const;
  /// Rank r receives at `root` into parts[r] of `buffer`; `mine` is this rank's part. `buffer` is
  /// used at the root alone.
  void gather(std::span<std::byte const> mine, std::span<std::byte> buffer,
              std::span<Slice const> parts, int root) const;
  /// Every rank's text, in rank order, on all ranks; or at rank 0 alone, and none on others.
  [[nodiscard]] std::vector<std::string> all_gather_texts(std::string const& mine) const;
  [[nodiscard]] std::vector<std::string> gather_texts(std::string const& mine) const;
  /// Sends the bytes send_parts[r] of `send` to rank r and receives from it into receive_parts[r]
  /// of `receive`. Parts may be empty. Pairwise, with most_pairs pairs of ranks in flight.
  void all_to_all(std::span<std::byte const> send, std::span<Slice const> send_parts,
                  std::span<std::byte> receive, std::span<Slice const> receive_parts) const;

  /// The same. `largest`: the size of the largest part of any rank, which all of them know. Parts
  /// up to small_part travel through other ranks, joined to O(log R) messages, in the place of R -
  /// 1. Source: Bruck et al., Efficient algorithms for all-to-all communications, 1997.
  /// Memory: up to small_part, that of 2 R parts on the host, beside buffers there.
  void all_to_all(std::span<std::byte const> send, std::span<Slice const> send_parts,
                  std::span<std::byte> receive, std::span<Slice const> receive_parts,
                  Bytes largest) const;

  /// One value of each rank, in rank order.
  template <class T>
  [[nodiscard]] std::vector<T> all_gather_value(T const& value) const {
    std::vector<T> all(static_cast<std::size_t>(size()));
    all[static_cast<std::size_t>(rank())] = value;
    all_gather(std::as_writable_bytes(std::span{all}));
    return all;
  }
  /// Brings the values of all ranks together at rank 0, in a binomial tree: merge(mine, others)
  /// adds to what a run of ranks has what the run of ranks right behind it has. A rank receives
  /// O(log R) messages and sends one. The merged values at rank 0; empty elsewhere.
  template <class T, class Merge>
  [[nodiscard]] std::vector<T> fold(std::vector<T> mine, Merge const& merge) const {
    for (int reach = 1; reach < size(); reach *= 2) {
      if ((rank() & reach) != 0) {
        send(std::as_bytes(std::span{mine}), rank() - reach);
        return {};
      }
      if (rank() + reach < size()) {
        auto const bytes = receive(rank() + reach);
        std::vector<T> others(bytes.size() / sizeof(T));
        std::memcpy(others.data(), bytes.data(), bytes.size());
        merge(mine, std::span<T const>{others});
      }
    }
    return mine;
  }
  template <class T>
  [[nodiscard]] T broadcast_value(T value, int root) const {
    broadcast(std::as_writable_bytes(std::span{&value, 1}), root);
    return value;
  }
  [[nodiscard]] std::int64_t sum(std::int64_t value) const;
  [[nodiscard]] std::int64_t maximum(std::int64_t value) const;
  [[nodiscard]] std::int64_t minimum(std::int64_t value) const;
  [[nodiscard]] std::int64_t minimum(int value) const { return minimum(std::int64_t{value}); }
  [[nodiscard]] double maximum(double value) const;
  [[nodiscard]] double minimum(double value) const;

  void reset() noexcept;

 private:
  /// Blocks of `size` bytes; block i goes from this rank to the one i behind it, from which block i
  /// comes.
  void exchange_blocks(std::span<std::byte> blocks, std::size_t size) const;
  /// One message of less than 2 GiB.
  void send(std::span<std::byte const> bytes, int to) const;
  [[nodiscard]] std::vector<std::byte> receive(int from) const;

  MPI_Comm handle_{MPI_COMM_NULL};
  int rank_{};
  int size_{1};
};

/// An error that every rank of a communicator knows of: all of them throw it together, so the
/// process may end in good order and one rank reports it.
class AgreedError : public Error {
 public:
  AgreedError(ExitCode code, std::string const& message, int failed_rank, std::string host = {},
              int error_number = 0)
      : Error{code, message},
        failed_rank_{failed_rank},
        host_{std::move(host)},
        error_number_{error_number} {}
  /// The lowest rank on which it happened.
  [[nodiscard]] int failed_rank() const noexcept { return failed_rank_; }
  /// The name of its node; empty: not told.
  [[nodiscard]] std::string const& host() const noexcept { return host_; }
  /// IoError::error_number of the lowest rank; 0 if any rank had an error without one, which is
  /// final.
  [[nodiscard]] int error_number() const noexcept { return error_number_; }

 private:
  int failed_rank_;
  std::string host_;
  int error_number_;
};

/// The name of this rank's node, as MPI knows it.
[[nodiscard]] std::string processor_name();
/// Runs `work` on every rank; `work` itself must not communicate. If it throws anywhere, every rank
/// throws AgreedError with the code and message of the lowest rank that failed.
void agree(Communicator const& comm, std::function<void()> const& work);

}  // namespace offstage::mpi
