#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/units.hpp"

namespace offstage::update {

/// How a step's micro-batches are dealt to R ranks: in blocks of `block` consecutive ones, block k
/// to rank k mod R, which runs them in order. In a round each rank runs one. So blocks of one deal
/// micro-batch g to rank g mod R. The last rounds may have idle ranks; those that are active come
/// first.
struct BlockRounds {
  std::int64_t micro_batches = 1;
  int ranks = 1;
  std::int64_t block = 1;

  struct Round {
    std::int64_t first{};  ///< micro-batch of rank 0; rank r has the one r blocks on
    int active{};          ///< ranks that have a micro-batch
    int blocks{};          ///< ranks whose block is at hand, which may be over for the last of them
    bool begins{};         ///< the round's blocks begin with it
    bool ends{};           ///< and are over with it
  };

  /// Rounds in which all ranks' blocks are run one after the other.
  [[nodiscard]] std::int64_t turns() const { return ceil_div(blocks(), std::int64_t{ranks}); }
  [[nodiscard]] std::int64_t blocks() const { return ceil_div(micro_batches, block); }
  [[nodiscard]] std::int64_t count() const { return (turns() - 1) * block + length(turns() - 1); }
  [[nodiscard]] Round round(std::int64_t number) const {
    std::int64_t const turn = number / block;
    std::int64_t const within = number % block;
    std::int64_t const first = turn * ranks * block + within;
    auto const have = [&](std::int64_t from) {
      return static_cast<int>(
          std::clamp<std::int64_t>(ceil_div(micro_batches - from, block), 0, ranks));
    };
    return {.first = first,
            .active = have(first),
            .blocks = have(first - within),
            .begins = within == 0,
            .ends = within + 1 == length(turn)};
  }
  /// The micro-batch of a rank in a round; none: it is idle.
  [[nodiscard]] std::optional<std::int64_t> micro_batch(std::int64_t number, int rank) const {
    Round const at = round(number);
    return rank < at.active ? std::optional{at.first + rank * block} : std::nullopt;
  }
  /// The fewest micro-batches that a rank runs: those of the last rank, or of the one whose block
  /// is short.
  [[nodiscard]] std::int64_t least() const {
    auto const short_by = blocks() * block - micro_batches;
    auto const shortest = rank_of(micro_batches - 1);
    auto const run_by = [&](std::int64_t rank) {
      return ceil_div(blocks() - rank, std::int64_t{ranks}) * block -
             (rank == shortest ? short_by : 0);
    };
    return std::min(run_by(ranks - 1), run_by(shortest));
  }
  [[nodiscard]] int rank_of(std::int64_t micro_batch) const {
    return static_cast<int>(micro_batch / block % ranks);
  }
  /// How many micro-batches its rank runs before it.
  [[nodiscard]] std::int64_t place_of(std::int64_t micro_batch) const {
    return micro_batch / block / ranks * block + micro_batch % block;
  }

 private:
  /// Rounds of a turn: those of rank 0's block, which is the longest.
  [[nodiscard]] std::int64_t length(std::int64_t turn) const {
    return std::min(block, micro_batches - turn * ranks * block);
  }
};

}  // namespace offstage::update
