#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/run_config.hpp"
#include "data/dataset.hpp"

namespace offstage::train {

/// A line for each file of training data: format, type of its tokens, tokens, documents if they are
/// known, and how often train.steps with this batch show it. Pure.
[[nodiscard]] std::vector<std::string> describe_training_files(
    std::vector<data::FileFacts> const& files, config::TrainConfig const& train);

/// The number of times that each file is shown until the last step, a line for each, where it is
/// another than the header's: `done` steps took `tokens` positions, as some had another
/// train.global-batch or train.sequence. Else empty. Pure.
[[nodiscard]] std::vector<std::string> correct_epochs(std::vector<data::FileFacts> const& files,
                                                      config::TrainConfig const& train,
                                                      std::int64_t done, std::int64_t tokens);

/// A line for each file of validation data. A validation takes `windows` of all files together.
[[nodiscard]] std::vector<std::string> describe_validation_files(
    std::vector<data::FileFacts> const& files, std::int64_t windows);

/// All these lines, for the header, and one for each data.skip. Logs a warning for doubtful files.
/// `valid` is null if there is no validation data. The files are those of Dataset::files, with
/// samples.
[[nodiscard]] std::vector<std::string> describe_data(
    data::Dataset const& train, std::vector<data::FileFacts> const& train_files,
    data::Dataset const* valid, std::vector<data::FileFacts> const& valid_files,
    config::RunConfig const& config);

/// A sentence for each doubtful file: "data.train=a.bin: every second of its u16 is 0, ...". One
/// for all `short_files` (Dataset::short_files). `key` may be an option, "--data".
[[nodiscard]] std::vector<std::string> doubts_about(std::vector<data::FileFacts> const& files,
                                                    std::vector<std::string> const& short_files,
                                                    std::string const& key);

/// A sentence for each file of validation data that is one of the training data's, or a copy.
[[nodiscard]] std::vector<std::string> doubts_about_both(std::vector<data::FileFacts> const& train,
                                                         std::vector<data::FileFacts> const& valid);

/// Number of windows that one validation takes of `all`: as many as train.valid-batches
/// micro-batches hold, or all.
[[nodiscard]] std::int64_t windows_per_validation(config::TrainConfig const& train,
                                                  std::int64_t all);

}  // namespace offstage::train
