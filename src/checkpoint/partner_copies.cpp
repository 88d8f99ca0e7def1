#include "checkpoint/partner_copies.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/regular_file.hpp"
#include "checkpoint/directory.hpp"
#include "platform/aio/file.hpp"

namespace offstage::checkpoint {
namespace {

/// Gives `directory` the master of `own`: a link, or a copy where the storage has no links.
void bring_master(std::string const& own, std::string const& directory) {
  std::string const from = own + "/" + master_name;
  std::string const master = directory + "/" + master_name;
  if (link_file(from, master)) {
    return;
  }
  std::string const unfinished = directory + "/" + unfinished_master_name;
  remove_file(unfinished);
  write_text(unfinished, read_text(from, size_of_file(from).value_or(0)));
  rename_file("cannot rename to", unfinished, master);
}

}  // namespace

PartnerCopies::PartnerCopies(LevelPlaces places, bool makes, mpi::Communicator const& comm,
                             mpi::Communicator const& node)
    : places_{std::move(places)}, makes_{makes}, comm_{comm}, node_{node}, ring_{comm, node} {
  require(!makes || ring_.size() > 1, "PartnerCopies: a node has a partner");
}

void PartnerCopies::begin(std::int64_t step) {
  require(makes_ && !is_under_way(), "PartnerCopies: one copy at a time");
  since_begin_ = {};
  step_ = step;
  std::string const directory = places_.copies + "/" + step_name(step);
  std::vector<SentFile> files;
  mpi::agree(comm_, [&] {
    std::string const own = places_.own + "/" + step_name(step);
    for (std::string const& name : files_of(own, comm_.rank())) {
      files.push_back({own + "/" + name, name, ring_.partner()});
    }
    if (leads()) {
      removal_.wait();
      if (size_of(directory)) {
        remove_checkpoint(directory);
      }
      aio::make_directory(directory);
    }
  });
  try {
    exchange_ = std::make_unique<FileExchange>(std::move(files), directory, comm_, node_);
  } catch (mpi::AgreedError const&) {
    abandon();
    throw;
  }
  look_in();
}

void PartnerCopies::look_in() {
  if (exchange_) {
    exchange_->look_in();
  }
}

std::optional<CopyStats> PartnerCopies::finish_if_done() {
  if (!is_under_way()) {
    return std::nullopt;
  }
  look_in();
  if (comm_.minimum(exchange_->is_done() ? 1 : 0) == 0) {
    return std::nullopt;
  }
  CopyStats copied{.step = step_, .bytes = exchange_->bytes(), .seconds = {}};
  try {
    exchange_->finish();
    mpi::agree(comm_, [&] {
      if (!leads()) {
        return;
      }
      // The masters of one save are the same on all nodes.
      std::string const directory = places_.copies + "/" + step_name(step_);
      bring_master(places_.own + "/" + step_name(step_), directory);
      aio::sync_directory(directory);
      aio::sync_directory(places_.copies);
    });
  } catch (mpi::AgreedError const&) {
    exchange_.reset();
    abandon();
    throw;
  }
  exchange_.reset();
  kept_ = step_;
  begin_removal();
  copied.seconds = since_begin_.elapsed();
  return copied;
}

void PartnerCopies::give_up() {
  if (!is_under_way()) {
    return;
  }
  exchange_->give_up();
  try {
    exchange_->finish();
  } catch (mpi::AgreedError const&) {  // expected, as the exchange was given up
  }
  exchange_.reset();
  abandon();
}

void PartnerCopies::stop() {
  give_up();
  makes_ = false;
}

/// Removes the files of a copy that will not be finished.
void PartnerCopies::abandon() noexcept {
  if (!leads()) {
    return;
  }
  try {
    remove_checkpoint(places_.copies + "/" + step_name(step_));
  } catch (std::exception const& error) {
    log::warning("files of an unfinished copy stay: {}", error.what());
  }
}

std::vector<std::string> PartnerCopies::others() const {
  std::vector<std::string> paths;
  for (StepDirectory const& found : step_directories(places_.copies)) {
    if (found.step != kept_ && !(is_under_way() && found.step == step_)) {
      paths.push_back(found.path);
    }
  }
  return paths;
}

void PartnerCopies::remove_others() {
  if (leads()) {
    removal_.wait();
    for (std::string const& path : others()) {
      remove_checkpoint(path);
    }
  }
}

void PartnerCopies::begin_removal() noexcept {
  if (!leads()) {
    return;
  }
  try {
    removal_.begin(others());
  } catch (std::exception const& error) {
    log::warning("an old copy stays: {}", error.what());
  }
}

void PartnerCopies::remove_all() noexcept {
  kept_.reset();
  begin_removal();
  removal_.wait();
}

}  // namespace offstage::checkpoint
