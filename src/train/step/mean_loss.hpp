#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "data/dataset.hpp"
#include "platform/mpi/communicator.hpp"
#include "train/step/source_losses.hpp"

namespace offstage::train {

/// The functions by which a rank computes the loss of micro-batches.
struct LossCalls {
  std::function<double(data::TokenBatch const&)> evaluate;  ///< as model::Transformer::evaluate
  /// Called instead of evaluate if there is no micro-batch for this rank.
  std::function<void()> idle;
  /// Called before the first round, and in each round that another one follows.
  std::function<void()> expect;
  /// Returns false, on all ranks, if the mean is not wanted any more; null: it is. Collective.
  /// Called in each round that another one follows.
  std::function<bool()> still_wanted{};
};

/// Looks for a target that counts in `windows` windows, those of mean_loss, and reads no further
/// than to the first. `name` is the data in the error: "data.valid=m.bin". Errors: DataError if
/// there is none.
void require_target(data::Dataset const& data, std::int64_t windows, std::string const& name);

/// The mean loss over the targets of `windows` windows, the first ones of each source (see
/// data::spread_windows), in order, in micro-batches of `batch`. The last one of each source may
/// have rows that do not count. Micro-batch g is computed by rank g mod R, and sums are in order of
/// g: no bit depends on the number of ranks. Collective. Returns nothing if it was ended by
/// LossCalls::still_wanted.
[[nodiscard]] std::optional<MeanLosses> mean_loss(mpi::Communicator const& comm,
                                                  data::Dataset const& data, std::int64_t windows,
                                                  std::int64_t batch, LossCalls const& calls);

}  // namespace offstage::train
