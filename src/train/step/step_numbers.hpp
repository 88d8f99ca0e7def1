#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/run_config.hpp"
#include "kernels/optimizer/optimizer.hpp"
#include "platform/mpi/communicator.hpp"
#include "update/gradients/block_rounds.hpp"

namespace offstage::train {

/// The factor that makes means of losses and gradients. These are sums over counted targets,
/// divided by all targets of so many micro-batches.
[[nodiscard]] double targets_per_counted(config::TrainConfig const& train,
                                         std::int64_t micro_batches, std::int64_t counted);

/// The values of all micro-batches in order of g, on every rank. `mine` are those of the
/// micro-batches `dealt` to this rank, ascending. Collective.
[[nodiscard]] std::vector<double> all_in_order(mpi::Communicator const& comm,
                                               std::span<double const> mine,
                                               update::BlockRounds const& dealt);
/// Their mean, summed in order of g. Collective.
[[nodiscard]] double mean_in_order(mpi::Communicator const& comm, std::span<double const> mine,
                                   update::BlockRounds const& dealt);

/// Floating-point operations of the model's products in a step, forward and backward, of all ranks.
/// Recomputation does not count.
[[nodiscard]] double model_flops(config::RunConfig const& config);

/// The factor by which a mean gradient of this norm is multiplied, as in PyTorch's clip_grad_norm_;
/// 1: not clipped.
[[nodiscard]] double clip_factor(config::OptimizerConfig const& optimizer, double grad_norm);
/// The sum of squares of accumulated gradients at which clipping begins. `gradient_scale` times the
/// accumulated gradient is the mean gradient. The sum is always finite, so that an infinite sum is
/// above it. It is right up to some roundings.
[[nodiscard]] double most_squares(config::OptimizerConfig const& optimizer, double gradient_scale);

/// The numbers of an optimizer step. `seed` is the run's, for stochastic rounding.
[[nodiscard]] kernels::OptimizerStep optimizer_step(config::OptimizerConfig const& optimizer,
                                                    double learning_rate, std::int64_t step,
                                                    double gradient_scale, std::uint64_t seed);

}  // namespace offstage::train
