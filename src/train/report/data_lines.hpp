#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/run_config.hpp"
#include "data/dataset.hpp"

namespace offstage::train {

/// A line for each file that a run trains on: format, type of its tokens, tokens, documents where
/// they are known, and how often train.steps show it. Pure.
[[nodiscard]] std::vector<std::string> describe_training_files(
    std::vector<data::FileFacts> const& files, config::TrainConfig const& train);

/// The same of files that a run validates on. A validation takes `windows` of all of them together.
[[nodiscard]] std::vector<std::string> describe_validation_files(
    std::vector<data::FileFacts> const& files, std::int64_t windows);

/// Both, for the header. Warns (log) of files that there is a doubt about. `valid`: null: there is
/// none.
[[nodiscard]] std::vector<std::string> describe_data(data::Dataset const& train,
                                                     data::Dataset const* valid,
                                                     config::TrainConfig const& config);

/// "data.train=a.bin: every second of its u16 is 0, ...", of each file that there is a doubt about.
[[nodiscard]] std::vector<std::string> doubts_about(std::vector<data::FileFacts> const& files,
                                                    std::string const& key);

/// Windows that one validation takes of `all`: train.valid-batches micro-batches of them, or all.
[[nodiscard]] std::int64_t windows_per_validation(config::TrainConfig const& train,
                                                  std::int64_t all);

}  // namespace offstage::train
