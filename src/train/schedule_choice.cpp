#include "train/schedule_choice.hpp"

#include "base/dtype.hpp"
#include "model/dims.hpp"

namespace offstage::train {
namespace {

using Rule = activations::Policy::Rule;

/// Whether nothing stays that a vertical schedule computes again.
bool suits(activations::Policy const& policy) {
  return policy.rule != Rule::keep &&
         (policy.rule != Rule::swap || policy.share == 0.0 || policy.share == 1.0);
}

/// `config` with a vertical schedule.
template <class T>
RunConfig vertical(RunConfig config, state::ShardMap const& map, int rank,
                   ActivationRoom const& room) {
  auto const all = config.train.global_batch / config.train.micro_batch;
  config.train.together = static_cast<int>((all + map.ranks() - 1) / map.ranks());
  config.train.activations = settle_activations<T>(config, map, rank, room, {}).policy;
  if (config.train.activations.rule == Rule::swap) {
    config.train.activations.share = 0.0;  // blocks' inputs alone
  }
  return config;
}

}  // namespace

template <class T>
ScheduleBytes schedule_bytes(RunConfig const& config, state::ShardMap const& map) {
  constexpr int passes = 2;  // forward and backward
  constexpr int moves = 5;   // an input leaves once and comes twice, a gradient leaves and comes
  auto const micro_batches = static_cast<Bytes>(config.train.together);
  auto const dims = run_dims(config);
  Bytes parameters = 0;
  for (state::LayerLayout const& layer : map.layers()) {
    parameters += layer.padded_elements() * static_cast<Bytes>(sizeof(T));
  }
  ScheduleBytes bytes{.horizontal = micro_batches * passes * parameters,
                      .vertical = passes * parameters};
  if (config.train.activations.rule == Rule::swap) {
    Bytes const tensor = dims.rows() * dims.C * static_cast<Bytes>(sizeof(T));
    Bytes const table =
        config.model.tied_head ? dims.V * dims.C * static_cast<Bytes>(sizeof(T)) : 0;
    bytes.vertical += micro_batches * (moves * (config.model.layers + 1) * tensor + passes * table);
  }
  return bytes;
}

template <class T>
void settle_schedule(RunConfig& config, state::ShardMap const& map, int rank,
                     ActivationRoom const& room) {
  auto const schedule = config.train.schedule;
  bool const possible =
      schedule == LayerSchedule::vertical ||
      (schedule == LayerSchedule::automatic && config.parameter_home != parameters::Home::device &&
       suits(config.train.activations));
  if (possible) {
    auto const tried = vertical<T>(config, map, rank, room);
    auto const bytes = schedule_bytes<T>(tried, map);
    if (schedule == LayerSchedule::vertical || bytes.vertical < bytes.horizontal) {
      config.train = tried.train;
    }
  }
}

#define OFFSTAGE_INSTANTIATE(T)                                                       \
  template ScheduleBytes schedule_bytes<T>(RunConfig const&, state::ShardMap const&); \
  template void settle_schedule<T>(RunConfig&, state::ShardMap const&, int, ActivationRoom const&);
OFFSTAGE_INSTANTIATE(float)
OFFSTAGE_INSTANTIATE(bfloat16)
OFFSTAGE_INSTANTIATE(float16)
#undef OFFSTAGE_INSTANTIATE

}  // namespace offstage::train
