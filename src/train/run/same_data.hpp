#pragma once

#include <string>
#include <vector>

#include "config/run_config.hpp"
#include "data/dataset.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::train {

// Each rank opens the data by itself: a copy on a node may be another one than on the first. A run
// that goes on may find other data in the same files.

/// The contents of the files of `key`, for checkpoints beside the keys: "data.train contents" with
/// "16000 tokens, 9f05...", whatever the files' names, formats, windows and weights are. Pure.
[[nodiscard]] config::Setting contents_of(std::string const& key,
                                          std::vector<data::FileFacts> const& files);

/// A sentence about the first file that differs from rank 0's, whose lines_for_ranks are `other`;
/// empty if none does. Pure.
[[nodiscard]] std::string difference_from(std::string const& other,
                                          std::vector<data::FileFacts> const& files);
/// A line for each file, with all that decides which samples it gives.
[[nodiscard]] std::string lines_for_ranks(std::vector<data::FileFacts> const& files);

/// The facts of the data of each rank. The first rank of each node reads the samples for all of its
/// node, which sees the same files; FileFacts::doubt is on these ranks alone. Errors: those of
/// Dataset::files, as AgreedError. Collective.
[[nodiscard]] std::vector<data::FileFacts> files_of(data::Dataset const& data,
                                                    mpi::Communicator const& comm);

/// Errors: DataError, as AgreedError, if a rank's files of `key` have other tokens, windows or
///         shares than rank 0's. Of tokens a sample is compared. Collective.
void require_same_data(std::string const& key, std::vector<data::FileFacts> const& files,
                       mpi::Communicator const& comm);

}  // namespace offstage::train
