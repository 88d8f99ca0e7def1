#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
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

using offstage::Slice;

/// Owns a duplicate or a split of a communicator; move-only.
///
/// Collective: every member but rank() and size() is collective and blocking; all ranks call the
///             same ones in the same order.
/// Threads:    one thread per process.
/// Sizes:      bytes, with no limit of 2 GiB: larger messages travel in pieces.
/// Errors:     MpiError.
class Communicator {
 public:
  Communicator() noexcept = default;
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

  /// Rank r contributes the bytes at parts[r] of `buffer`; afterwards every rank has all parts. The
  /// parts lie in rank order without overlap; this rank's own part is filled in already.
  void all_gather(std::span<std::byte> buffer, std::span<Slice const> parts) const;
  /// Rank r receives at `root` into parts[r] of `buffer`; `mine` is this rank's part. `buffer` is
  /// used at the root alone.
  void gather(std::span<std::byte const> mine, std::span<std::byte> buffer,
              std::span<Slice const> parts, int root) const;
  /// Sends the bytes send_parts[r] of `send` to rank r and receives from it into receive_parts[r]
  /// of `receive`. Parts may be empty.
  void all_to_all(std::span<std::byte const> send, std::span<Slice const> send_parts,
                  std::span<std::byte> receive, std::span<Slice const> receive_parts) const;

  /// One value of each rank, in rank order.
  template <class T>
  [[nodiscard]] std::vector<T> all_gather_value(T const& value) const {
    std::vector<T> all(static_cast<std::size_t>(size()));
    std::vector<Slice> parts(all.size());
    for (std::size_t r = 0; r < parts.size(); ++r) {
      parts[r] = {static_cast<Bytes>(r * sizeof(T)), static_cast<Bytes>(sizeof(T))};
    }
    all[static_cast<std::size_t>(rank())] = value;
    all_gather(std::as_writable_bytes(std::span{all}), parts);
    return all;
  }
  template <class T>
  [[nodiscard]] T broadcast_value(T value, int root) const {
    broadcast(std::as_writable_bytes(std::span{&value, 1}), root);
    return value;
  }
  [[nodiscard]] std::int64_t sum(std::int64_t value) const;
  [[nodiscard]] std::int64_t maximum(std::int64_t value) const;
  [[nodiscard]] std::int64_t minimum(std::int64_t value) const;
  [[nodiscard]] double maximum(double value) const;

  void reset() noexcept;

 private:
  explicit Communicator(MPI_Comm handle);
  MPI_Comm handle_{MPI_COMM_NULL};
  int rank_{};
  int size_{1};
};

/// An error that every rank of a communicator knows of: all of them throw it together, so the
/// process may end in good order and one rank reports it.
class AgreedError : public Error {
 public:
  AgreedError(ExitCode code, std::string const& message, int failed_rank)
      : Error{code, message}, failed_rank_{failed_rank} {}
  /// The lowest rank on which it happened.
  [[nodiscard]] int failed_rank() const noexcept { return failed_rank_; }

 private:
  int failed_rank_;
};

/// Runs `work` on every rank; `work` itself must not communicate. If it throws anywhere, every rank
/// throws AgreedError with the code and message of the lowest rank that failed.
void agree(Communicator const& comm, std::function<void()> const& work);

}  // namespace offstage::mpi
