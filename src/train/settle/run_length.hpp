#pragma once

#include <cstdint>

#include "config/run_config.hpp"

namespace offstage::train {

/// The steps of a run of train.epochs epochs of so many windows, of which `done` steps have seen
/// `tokens` tokens. The last step is the one in which the last of these windows is seen, and
/// `done` at least. Without a change of train.global-batch or train.sequence it does not depend on
/// `done`. Pure.
[[nodiscard]] std::int64_t steps_of_epochs(config::TrainConfig const& train, std::int64_t windows,
                                           std::int64_t done, std::int64_t tokens);

/// Settles train.steps of a run whose length is given in epochs, and leaves another one as it is.
/// It comes when data.train is open.
/// Errors: UsageError: so many steps do not go with other keys.
void settle_length(config::RunConfig& config, std::int64_t windows);

}  // namespace offstage::train
