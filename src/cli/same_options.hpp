#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::cli {

// Each rank reads its options by itself: its file may have been changed meanwhile, or be another
// one on its node.

/// The options of a rank as a text for other ranks, with the program's version and commit.
[[nodiscard]] std::string text_for_ranks(std::vector<config::Setting> const& settings);

/// A sentence about the first key whose value here is another one than in `other`, rank 0's
/// text_for_ranks; empty if none is. The directories of tiers.path, data.train, data.valid and
/// run.threads may have other values, as nodes differ, but not another number of them, or none.
/// Pure.
[[nodiscard]] std::string difference_from(std::string_view other,
                                          std::vector<config::Setting> const& settings);

/// Errors: UsageError, as AgreedError, if a rank's options differ from rank 0's. Collective.
void require_same_options(std::vector<config::Setting> const& settings,
                          mpi::Communicator const& comm);

}  // namespace offstage::cli
