#include "train/step/step_numbers.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <vector>

#include "model/transformer.hpp"

namespace offstage::train {
namespace {

/// Added to the norm, so that a norm of zero does no harm.
constexpr double clip_epsilon = 1e-6;

}  // namespace

double targets_per_counted(config::TrainConfig const& train, std::int64_t micro_batches,
                           std::int64_t counted) {
  std::int64_t const targets = micro_batches * train.micro_batch * train.sequence;
  return static_cast<double>(targets) / static_cast<double>(counted);
}

std::vector<double> all_in_order(mpi::Communicator const& comm, std::span<double const> mine,
                                 update::BlockRounds const& dealt) {
  auto const ranks = static_cast<std::size_t>(comm.size());
  auto const rounds = static_cast<std::size_t>(dealt.count());
  std::vector<double> all(ranks * rounds);
  auto const first = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(comm.rank()) * rounds);
  std::ranges::copy(mine, all.begin() + first);
  comm.all_gather(std::as_writable_bytes(std::span{all}));
  std::vector<double> ordered;
  for (std::int64_t g = 0; g < dealt.micro_batches; ++g) {
    ordered.push_back(all[static_cast<std::size_t>(dealt.rank_of(g)) * rounds +
                          static_cast<std::size_t>(dealt.place_of(g))]);
  }
  return ordered;
}

double mean_in_order(mpi::Communicator const& comm, std::span<double const> mine,
                     update::BlockRounds const& dealt) {
  auto const all = all_in_order(comm, mine, dealt);
  return std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(dealt.micro_batches);
}

double model_flops(config::RunConfig const& config) {
  auto const micro_batches = config.train.global_batch / config.train.micro_batch;
  return static_cast<double>(micro_batches) *
         model::product_flops(config.model, {.batch = config.train.micro_batch,
                                             .sequence = config.train.sequence,
                                             .attended = config.data.attended});
}

double clip_factor(config::OptimizerConfig const& optimizer, double grad_norm) {
  double const limit = optimizer.clip;
  return limit > 0.0 ? std::min(1.0, limit / (grad_norm + clip_epsilon)) : 1.0;
}

double most_squares(config::OptimizerConfig const& optimizer, double gradient_scale) {
  double const most = std::numeric_limits<double>::max();
  if (optimizer.clip <= 0.0) {
    return most;
  }
  double const norm = std::max(0.0, optimizer.clip - clip_epsilon) / gradient_scale;
  return std::min(most, norm * norm);
}

kernels::OptimizerStep optimizer_step(config::OptimizerConfig const& optimizer,
                                      double learning_rate, std::int64_t step,
                                      double gradient_scale, std::uint64_t seed) {
  return {.optimizer = optimizer.kind,
          .learning_rate = learning_rate,
          .beta1 = optimizer.beta1,
          .beta2 = optimizer.beta2,
          .momentum = optimizer.momentum,
          .epsilon = optimizer.eps,
          .weight_decay = optimizer.weight_decay,
          .gradient_scale = gradient_scale,
          .step = step,
          .seed = seed};
}

}  // namespace offstage::train
