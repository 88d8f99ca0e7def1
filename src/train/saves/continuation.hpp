#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.hpp"
#include "train/saves/best_loss.hpp"

namespace offstage::train {

// Facts about the run that wrote a checkpoint, for the run that goes on from it. No function
// throws, and all but warning_of_start and warning_of_other_run are pure. `configuration` is
// checkpoint::Meta::configuration, lines KEY=VALUE.

/// The Meta::configuration of a run that has seen so many tokens, has these validations, and whose
/// last step had this loss.
[[nodiscard]] std::string text_of(std::vector<config::Setting> const& settings, std::int64_t tokens,
                                  BestLoss const& best = {}, std::optional<double> last_loss = {});
/// The same text with other validations.
[[nodiscard]] std::string with_best(std::string_view configuration, BestLoss const& best);
/// The loss of a checkpoint's last step; nullopt: it does not say.
[[nodiscard]] std::optional<double> last_loss_of(std::string_view configuration);

/// Tokens that the run which wrote the checkpoint has seen. If an older checkpoint does not say:
/// `samples` times its train.sequence, or times `sequence` if that is unknown.
[[nodiscard]] std::int64_t tokens_of(std::string_view configuration, std::int64_t samples,
                                     std::int64_t sequence);

/// The validations of the run that wrote the checkpoint. None if it does not say.
[[nodiscard]] BestLoss best_of(std::string_view configuration);

/// A key on which weights depend, with its values in the checkpoint and now.
struct Change {
  std::string key, then, now;
};
/// The changed keys on which weights depend, by name. Keys that the checkpoint's program did not
/// know are left out if they are at their defaults. None where `configuration` is empty, as a run
/// begins.
[[nodiscard]] std::vector<Change> learned_changes(std::string_view configuration,
                                                  std::vector<config::Setting> const& settings);

/// A table with a row for each changed key on which weights depend, with its values then and now,
/// and a line that names other changed keys, by the same rules. Empty if nothing has changed.
[[nodiscard]] std::vector<std::string> describe_changes(
    std::string_view configuration, std::vector<config::Setting> const& settings);

/// The settings with a checkpoint's model.max-sequence, if that is longer and none is given. A
/// stage with shorter sequences leaves the model made for longer ones.
[[nodiscard]] std::vector<config::Setting> with_longest_sequence(
    std::string_view configuration, std::vector<config::Setting> settings);

/// The settings of a run that goes on: train.init-from is what the run that wrote the checkpoint
/// began with, whatever it is now. It is left out if the checkpoint does not say.
[[nodiscard]] std::vector<config::Setting> with_start_of(std::string_view configuration,
                                                         std::vector<config::Setting> settings);

/// A sentence of warning if train.init-from names another start than the one of the run that wrote
/// the checkpoint: it has no effect now. Empty if not. Looks where relative paths and links lead.
[[nodiscard]] std::string warning_of_start(std::string_view configuration,
                                           std::vector<config::Setting> const& settings);

/// Returns true if the run that wrote the checkpoint validated on other data, or on other parts of
/// them, so that its losses do not compare with those to come.
[[nodiscard]] bool validates_otherwise(std::string_view configuration,
                                       std::vector<config::Setting> const& settings);

/// A sentence of advice if step `step` + 1 has a higher rate than step `step` had, `last_rate`,
/// although the warm-up is over. It says how to go on without a jump. Empty if the rate is not
/// higher.
[[nodiscard]] std::string advice_on_rate(config::OptimizerConfig const& optimizer,
                                         std::int64_t steps, std::int64_t step, double last_rate);

/// A sentence of warning if data.skip leaves out something else up to `step` than it did for the
/// checkpoint, so that the order moves. Empty if it does not.
[[nodiscard]] std::string warning_of_skips(std::string_view configuration,
                                           config::RunConfig const& config, std::int64_t step);

/// A sentence of warning if optimizer.warmup-steps has changed although the warm-up is over at
/// `step`. Empty if it has an effect.
[[nodiscard]] std::string warning_of_warmup(std::string_view configuration,
                                            config::RunConfig const& config, std::int64_t step);

/// A sentence of advice if a run from trained weights has the default learning rate, which is one
/// for random weights. Empty if optimizer.lr was given.
[[nodiscard]] std::string advice_on_tuning(std::vector<config::Setting> const& settings);

/// A sentence of advice if the decay of optimizer.kind=adam is part of the gradient, which the
/// optimizers of that name in DeepSpeed and Megatron-LM do not mean. Empty without decay.
[[nodiscard]] std::string advice_on_decay(config::OptimizerConfig const& optimizer);

/// A sentence of warning if the checkpoint is of a run whose run.dir is another one and still
/// there: two runs have one checkpoint.dir. Empty if the run was moved. Looks at the file system.
[[nodiscard]] std::string warning_of_other_run(std::string_view configuration,
                                               std::vector<config::Setting> const& settings);

/// A sentence of warning if the order of the training data is another one from here on, so that the
/// run sees again what it has seen. Empty if it goes on.
[[nodiscard]] std::string warning_of_order(std::string_view configuration,
                                           std::vector<config::Setting> const& settings);

}  // namespace offstage::train
