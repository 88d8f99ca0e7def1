#include "train/memory/sums.hpp"

#include <fmt/format.h>

#include "base/dtype.hpp"
#include "update/gradients/accumulator.hpp"
#include "update/gradients/block_gradients.hpp"
#include "update/gradients/sum_blocks.hpp"

namespace offstage::train {

std::int64_t micro_batches(config::TrainConfig const& train) {
  return train.global_batch / train.micro_batch;
}

std::int64_t sum_block(config::RunConfig const& config) {
  std::int64_t const block = config.numerics.sum_block;
  return block > 1 && block < micro_batches(config.train) ? block : 0;
}

bool sums_whole_blocks(config::RunConfig const& config) {
  return config.sharding == parameters::Sharding::zero1 && sum_block(config) > 0;
}

update::BlockRounds dealt(config::RunConfig const& config, int ranks) {
  return {.micro_batches = micro_batches(config.train),
          .ranks = ranks,
          .block = sums_whole_blocks(config) ? sum_block(config) : 1};
}

std::string describe_step(config::RunConfig const& config, int ranks) {
  auto const& train = config.train;
  auto const counted = [](std::int64_t count, char const* what) {
    return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
  };
  auto step =
      fmt::format("{}, {}, {}{}", counted(train.global_batch, "sequence"),
                  counted(train.global_batch * train.sequence, "token"), micro_batches(train),
                  micro_batches(train) == 1 ? " micro-batch" : " micro-batches");
  if (ranks == 1) {
    return step;
  }
  auto const rounds = dealt(config, ranks);
  std::int64_t const most = rounds.count();
  std::int64_t const least = rounds.least();
  if (most == least) {
    return fmt::format("{}, {} on each rank", step, most);
  }
  std::int64_t const below = least * ranks * train.micro_batch;
  return fmt::format("{}, {} to {} on a rank{}", step, least, most,
                     rounds.block == 1 && least > 0
                         ? fmt::format("; train.global-batch={} or {} would give all as many",
                                       below, below + ranks * train.micro_batch)
                         : "");
}

bool accumulates_fp32(config::RunConfig const& config) {
  // A single micro-batch is no sum, so that 16 bits lose nothing.
  return config.numerics.dtype == DType::fp32 ||
         (config.numerics.accumulate_fp32 && micro_batches(config.train) > 1);
}

Bytes accumulated_bytes(config::RunConfig const& config) {
  return accumulates_fp32(config) ? Bytes{sizeof(float)} : config.numerics.element_bytes();
}

Bytes gradient_bytes(config::RunConfig const& config) {
  return config.flushes_fp32() ? static_cast<Bytes>(sizeof(float)) : accumulated_bytes(config);
}

int planes_of_sums(config::RunConfig const& config) {
  return update::SumBlocks{sums_whole_blocks(config) ? 0 : sum_block(config)}.planes();
}

Bytes extent_sum_bytes(config::RunConfig const& config) {
  bool const between_rounds = config.train.together > 1;
  return accumulated_bytes(config) * (between_rounds ? 1 : planes_of_sums(config));
}

Bytes layer_sum_bytes(config::RunConfig const& config) {
  bool const between_rounds = config.train.together > 1;
  return between_rounds ? accumulated_bytes(config) * planes_of_sums(config) : 0;
}

Bytes gradient_host_bytes(config::RunConfig const& config, state::ShardMap const& map, int rank,
                          state::Route route) {
  bool const in_fp32 = sums_whole_blocks(config) && accumulates_fp32(config);
  return with_type(in_fp32 ? DType::fp32 : config.numerics.dtype, [&]<class Sum>(Sum) {
    return update::GradientAccumulator<Sum>::exchange_bytes(map, rank, route,
                                                            layer_sum_bytes(config));
  });
}

Bytes gradient_device_bytes(config::RunConfig const& config, state::ShardMap const& map, int rank,
                            state::Route route) {
  bool const in_layers = config.train.together > 1;
  return with_type(config.numerics.dtype, [&]<class T>(T) {
    if (!sums_whole_blocks(config)) {
      return update::GradientAccumulator<T>::device_bytes(map, rank, route);
    }
    return accumulates_fp32(config)
               ? update::BlockGradients<T, float>::device_bytes(map, in_layers) +
                     update::GradientAccumulator<float>::device_bytes(map, rank, route)
               : update::BlockGradients<T, T>::device_bytes(map, in_layers) +
                     update::GradientAccumulator<T>::device_bytes(map, rank, route);
  });
}

std::string describe_sums(config::RunConfig const& config) {
  std::int64_t const block = sum_block(config);
  if (block == 0) {
    return "";
  }
  return fmt::format(
      "{} blocks of {} micro-batches (numerics.sum-block={}){}",
      ceil_div(micro_batches(config.train), block), block, block,
      sums_whole_blocks(config) ? ", each by one rank, whole (parameters.sharding=zero1)" : "");
}

}  // namespace offstage::train
