#include "checkpoint/replacement.hpp"

#include <string_view>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/regular_file.hpp"
#include "checkpoint/directory.hpp"
#include "platform/aio/file.hpp"

namespace offstage::checkpoint {
namespace {

constexpr std::string_view replaced_prefix = "replaced-";

void rename_in(std::string const& directory, std::string const& from, std::string const& to) {
  std::string const target = directory + "/" + to;
  rename_file("cannot rename to", directory + "/" + from, target);
  aio::sync_directory(directory);
}

void settle(std::string const& directory, std::int64_t step) {
  std::string const path = directory + "/" + step_name(step);
  if (has_master(path)) {
    // A save that was killed may have given the master its name, and not have synced that.
    aio::sync_directory(path);
    aio::sync_directory(directory);
    remove_checkpoint(directory + "/" + replaced_name(step));
    return;
  }
  if (size_of(path)) {
    remove_checkpoint(path);
  }
  bring_back(directory, step);
  log::warning("checkpoint {} is back: the save that was to replace it did not finish", path);
}

}  // namespace

std::string replaced_name(std::int64_t step) {
  return std::string{replaced_prefix} + step_name(step);
}

void put_away(std::string const& directory, std::int64_t step) {
  if (size_of(directory + "/" + step_name(step))) {
    rename_in(directory, step_name(step), replaced_name(step));
  }
}

void bring_back(std::string const& directory, std::int64_t step) {
  if (size_of(directory + "/" + replaced_name(step))) {
    rename_in(directory, replaced_name(step), step_name(step));
  }
}

void settle_replaced(std::string const& directory) {
  if (!size_of(directory)) {
    return;
  }
  for (std::string const& name : names_of(directory)) {
    if (!name.starts_with(replaced_prefix)) {
      continue;
    }
    auto const step = step_of(std::string_view{name}.substr(replaced_prefix.size()));
    if (step && replaced_name(*step) == name) {
      settle(directory, *step);
    }
  }
}

}  // namespace offstage::checkpoint
