#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "data/dataset.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::train {

/// Where documents begin in files that a separator divides, of each file (documents_by_separator).
/// Each rank reads its part of all tokens; if the files' sizes are not the same on all ranks, it
/// reads all of its own. Collective.
/// Memory: 8 bytes per document, and while the ranks tell each other, their parts beside.
/// Errors: mpi::AgreedError: those of TokenFile::read.
[[nodiscard]] std::vector<std::vector<std::int64_t>> shared_scan(
    std::span<data::TokenFile const* const> files, std::int32_t separator,
    mpi::Communicator const& comm);

/// Opens the same data on every rank, with one scan for separators by all of them. `options` may
/// differ in verifies_masks. Collective.
/// Errors: mpi::AgreedError: those of data::Dataset; with ExitCode::io where rank 0 can open what
///         another rank cannot.
[[nodiscard]] std::unique_ptr<data::Dataset> open_data(std::vector<data::Source> const& sources,
                                                       data::DatasetOptions const& options,
                                                       mpi::Communicator const& comm);

}  // namespace offstage::train
