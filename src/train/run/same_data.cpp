#include "train/run/same_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>

#include "base/error.hpp"
#include "base/printable.hpp"
#include "base/text.hpp"
#include "data/loss_mask.hpp"
#include "platform/cpu/affinity.hpp"

namespace offstage::train {
namespace {

/// All numbers are exact, so that equal texts are equal files.
std::string line_of(data::FileFacts const& file) {
  return fmt::format("{} tokens, {} windows, {} of the samples, checksum {:016x}", file.tokens,
                     file.windows, file.share, file.checksum);
}

}  // namespace

config::Setting contents_of(std::string const& key, std::vector<data::FileFacts> const& files) {
  std::int64_t tokens = 0;
  data::RunningChecksum checksum;
  for (data::FileFacts const& file : files) {
    tokens += file.tokens;
    checksum.add(std::as_bytes(std::span{&file.checksum, 1}));
  }
  return {.key = key + " contents",
          .value = fmt::format("{} tokens, {:016x}", tokens, checksum.value()),
          .origin = "default"};
}

std::string lines_for_ranks(std::vector<data::FileFacts> const& files) {
  std::string lines;
  for (data::FileFacts const& file : files) {
    lines += line_of(file) + '\n';
  }
  return lines;
}

std::string difference_from(std::string const& other, std::vector<data::FileFacts> const& files) {
  if (auto const count = std::ranges::count(other, '\n'); count != std::ssize(files)) {
    return fmt::format("{} files here, but {} on rank 0", files.size(), count);
  }
  std::string_view rest = other;
  for (data::FileFacts const& file : files) {
    auto const mine = line_of(file);
    if (auto const theirs = take_until('\n', rest); mine != theirs) {
      return fmt::format("{}: {} here, but {} on rank 0", printable_name(file.path), mine, theirs);
    }
  }
  return {};
}

std::vector<data::FileFacts> files_of(data::Dataset const& data, mpi::Communicator const& comm) {
  auto const node = comm.split_by_node();
  bool const reads = node.rank() == 0;
  std::vector<data::FileFacts> files;
  mpi::agree(comm,
             [&] { files = data.files(reads ? data::Samples::read : data::Samples::left_out); });
  auto const count = static_cast<std::size_t>(node.broadcast_value(std::ssize(files), 0));
  std::vector<std::uint64_t> checksums(count);
  for (std::size_t i = 0; reads && i < count; ++i) {
    checksums[i] = files[i].checksum;
  }
  node.broadcast(std::as_writable_bytes(std::span{checksums}), 0);
  // Where a pattern finds other files on this rank their number says it.
  for (std::size_t i = 0; i < std::min(count, files.size()); ++i) {
    files[i].checksum = checksums[i];
  }
  return files;
}

void require_same_data(std::string const& key, std::vector<data::FileFacts> const& files,
                       mpi::Communicator const& comm) {
  auto const of_first =
      comm.broadcast(comm.rank() == 0 ? lines_for_ranks(files) : std::string{}, 0);
  mpi::agree(comm, [&] {
    if (auto const difference = difference_from(of_first, files); !difference.empty()) {
      throw DataError{fmt::format(
          "{} on node {}: {}; all nodes must have the same data (is a copy to the node complete?)",
          key, cpu::host_name(), difference)};
    }
  });
}

}  // namespace offstage::train
