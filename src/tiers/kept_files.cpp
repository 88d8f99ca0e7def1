#include "tiers/kept_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <span>
#include <system_error>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/regular_file.hpp"
#include "tiers/spill_file.hpp"

namespace offstage::tiers {
namespace {

void write_at(aio::Descriptor const& file, std::span<std::byte const> bytes, Bytes offset) {
  if (write_fully(file.descriptor(), bytes, offset) < std::ssize(bytes)) {
    throw IoError{"cannot write", file.path(), errno};
  }
}

}  // namespace

KeptFiles::KeptFiles(Where where, std::shared_ptr<KeptFileShape const> shape)
    : where_{std::move(where)}, shape_{std::move(shape)} {
  require(!shape_->head.empty() && std::ssize(shape_->head) % aio::direct_alignment == 0 &&
              shape_->slot_bytes % aio::direct_alignment == 0,
          "KeptFiles: the slot is aligned");
}

KeptFiles::~KeptFiles() {
  for (auto const& slot : slots_) {
    if (slot->file.is_open()) {
      unlink(slot->file.path().c_str());
    }
  }
}

void KeptFiles::add(std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    slots_.push_back(std::make_unique<Slot>());
  }
}

void KeptFiles::make(std::int64_t slot) {
  std::string const name =
      fmt::format("{}/{}-{}-{:06}", shape_->directory, shape_->prefix, where_.path, slot);
  // Through the page cache: what is not aligned needs it, and the slot's pages are not touched.
  auto const fill = [&](std::string const& path) {
    aio::Descriptor const file{path, O_WRONLY, 0};
    write_at(file, shape_->head, 0);
    write_at(file, shape_->tail, std::ssize(shape_->head) + shape_->slot_bytes);
  };
  make_named_file({where_.directory, where_.spill}, shape_->file_bytes(), fill, name);
  try {
    if (!has_links_) {
      probe_links(name);
      has_links_ = true;
    }
    at(slot) = {aio::File::open_read_write(name), false};
  } catch (IoError const&) {
    unlink(name.c_str());
    throw;
  }
}

void KeptFiles::probe_links(std::string const& name) const {
  std::string const other = name + ".link";
  unlink(other.c_str());
  if (!link_file(name, other)) {
    throw IoError{fmt::format(
        "tiers.path = {},persistent: its file system has no hard links, by which files of slots "
        "become a checkpoint's ({}); leave persistent out",
        where_.directory, std::generic_category().message(errno))};
  }
  unlink(other.c_str());
}

bool KeptFiles::may_give(std::string const& name) const {
  namespace fs = std::filesystem;
  if (shape_->near_alone) {
    return name.starts_with(fs::path{shape_->directory}.parent_path().string() + "/");
  }
  return on_one_file_system(shape_->directory, fs::path{name}.parent_path().string());
}

aio::File const& KeptFiles::give_away(std::int64_t slot) {
  at(slot).given_away = true;
  return at(slot).file;
}

bool KeptFiles::give(aio::File const& file, std::string const& name) const {
  if (Bytes const found = file.size(); found != shape_->file_bytes()) {
    throw IoError{fmt::format(
        "{} has {} bytes where {} were written; nobody else may change it while a run has it",
        file.path(), found, shape_->file_bytes())};
  }
  file.sync_for_good();
  if (link_file(file.path(), name)) {
    return true;
  }
  if (!warned_.exchange(true)) {
    log::warning("tiers.path = {}: cannot link {} to {}: {}; such extents are copied",
                 where_.directory, file.path(), name, std::generic_category().message(errno));
  }
  return false;
}

void KeptFiles::leave(std::int64_t slot) noexcept {
  Slot& left = at(slot);
  if (left.given_away) {
    // Should this fail the next start removes it.
    unlink(left.file.path().c_str());
    left.file.reset();
    left.given_away = false;
  }
}

}  // namespace offstage::tiers
