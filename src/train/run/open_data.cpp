#include "train/run/open_data.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.hpp"

namespace offstage::train {
namespace {

/// The first token of each file, counted over all files, and the end of the last.
std::vector<std::int64_t> firsts_of(std::span<data::TokenFile const* const> files) {
  std::vector<std::int64_t> firsts{0};
  for (data::TokenFile const* file : files) {
    firsts.push_back(firsts.back() + file->tokens());
  }
  return firsts;
}

bool is_same_on_all(std::vector<std::int64_t> const& values, mpi::Communicator const& comm) {
  auto const mine = fmt::format("{}", fmt::join(values, " "));
  return comm.minimum(std::int64_t{comm.broadcast(mine, 0) == mine}) == 1;
}

/// Documents, counted over all files, that follow a separator in the tokens [begin, end).
std::vector<std::int64_t> begins_in(std::span<data::TokenFile const* const> files,
                                    std::vector<std::int64_t> const& firsts, std::int32_t separator,
                                    std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> begins;
  for (std::size_t i = 0; i < files.size(); ++i) {
    auto const from = std::max(begin, firsts[i]);
    auto const to = std::min(end, firsts[i + 1]);
    if (from < to) {
      for (auto const document :
           data::begins_behind(*files[i], separator, from - firsts[i], to - firsts[i])) {
        begins.push_back(firsts[i] + document);
      }
    }
  }
  return begins;
}

/// Opens the files on all ranks. What rank 0 can open is good: another node lacks it.
data::OpenedSources open_sources(std::vector<data::Source> const& sources,
                                 data::DatasetOptions const& options,
                                 mpi::Communicator const& comm) try {
  std::optional<data::OpenedSources> opened;
  mpi::agree(comm, [&] { opened.emplace(sources, options); });
  return *std::move(opened);
} catch (mpi::AgreedError const& error) {
  if (error.failed_rank() == 0 || error.code() != ExitCode::data) {
    throw;
  }
  throw mpi::AgreedError{
      ExitCode::io,
      fmt::format("{}; the first rank's node has it: name data on storage that all nodes share",
                  error.what()),
      error.failed_rank(), error.host()};
}

}  // namespace

std::vector<std::vector<std::int64_t>> shared_scan(std::span<data::TokenFile const* const> files,
                                                   std::int32_t separator,
                                                   mpi::Communicator const& comm) {
  std::vector<std::vector<std::int64_t>> documents(files.size(), {0});
  auto const firsts = firsts_of(files);
  if (!is_same_on_all(firsts, comm)) {
    mpi::agree(comm, [&] {
      for (std::size_t i = 0; i < files.size(); ++i) {
        documents[i] = data::documents_by_separator(*files[i], separator);
      }
    });
    return documents;
  }
  if (firsts.back() == 0) {
    return documents;
  }
  auto const part_end = [&](int rank) { return firsts.back() / comm.size() * rank; };
  std::vector<std::int64_t> mine;
  mpi::agree(comm, [&] {
    bool const is_last = comm.rank() + 1 == comm.size();
    mine = begins_in(files, firsts, separator, part_end(comm.rank()),
                     is_last ? firsts.back() : part_end(comm.rank() + 1));
  });
  std::size_t file = 0;
  for (int rank = 0; rank < comm.size(); ++rank) {
    auto const count = comm.broadcast_value(std::ssize(mine), rank);
    std::vector<std::int64_t> theirs =
        rank == comm.rank() ? std::exchange(mine, {})
                            : std::vector<std::int64_t>(static_cast<std::size_t>(count));
    comm.broadcast(std::as_writable_bytes(std::span{theirs}), rank);
    for (std::int64_t const begin : theirs) {
      while (begin >= firsts[file + 1]) {
        ++file;
      }
      documents[file].push_back(begin - firsts[file]);
    }
  }
  return documents;
}

std::unique_ptr<data::Dataset> open_data(std::vector<data::Source> const& sources,
                                         data::DatasetOptions const& options,
                                         mpi::Communicator const& comm) {
  auto opened = open_sources(sources, options, comm);
  auto const files = opened.unscanned();
  auto documents = shared_scan(files, options.separator.value_or(0), comm);
  std::unique_ptr<data::Dataset> dataset;
  mpi::agree(comm, [&] {
    opened.take_documents(std::move(documents));
    dataset = std::make_unique<data::Dataset>(std::move(opened));
  });
  return dataset;
}

}  // namespace offstage::train
