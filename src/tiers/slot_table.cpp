#include "tiers/slot_table.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "tiers/spill_file.hpp"

namespace offstage::tiers {

namespace {

std::vector<double> weights_of(PathSet const& paths, plan::SplitPolicy const& split) {
  if (paths.size() == 1) {
    return {1.0};  // whatever its rates, which nobody needs to know
  }
  std::vector<plan::PathRate> rates;
  rates.reserve(paths.size());
  for (auto const& path : paths) {
    rates.push_back(path->rate());
  }
  return plan::split_weights(split, rates);
}

}  // namespace

std::shared_ptr<KeptFileShape const> SlotDemand::kept_on(PathSettings const& path) const {
  if (path.persistent && kept != nullptr) {
    return kept;
  }
  return path.nearby ? kept_nearby : nullptr;
}

std::vector<std::int64_t> slots_at_first(PathSet const& paths, SlotDemand const& demand) {
  std::vector<std::int64_t> slots;
  slots.reserve(paths.size());
  for (double const part : weights_of(paths, demand.split)) {
    // No more than all of them, whatever the rounding of the part.
    slots.push_back(static_cast<std::int64_t>(
                        std::ceil(std::fmin(1.0, part) * static_cast<double>(demand.extents))) +
                    demand.spare);
  }
  return slots;
}

SlotTable::SlotTable(std::shared_ptr<PathSet> paths, SlotDemand const& demand)
    : paths_{std::move(paths)},
      split_{demand.split},
      sharer_{demand.sharer},
      slot_bytes_{demand.slot_bytes} {
  auto const slots = slots_at_first(*paths_, demand);
  files_.reserve(paths_->size());
  for (std::size_t i = 0; i < paths_->size(); ++i) {
    files_.push_back(file_of_slots(i, slots[i], demand));
  }
}

SlotTable::SlotFile SlotTable::file_of_slots(std::size_t path, std::int64_t slots,
                                             SlotDemand const& demand) const {
  PathSettings const& settings = (*paths_)[path]->settings();
  SlotFile file;
  auto const kept = demand.kept_on(settings);
  if (kept == nullptr) {
    file.file = make_spill_file(settings.directory, demand.spill, slots * slot_bytes_);
    add_slots(file, slots);
    return file;
  }
  require(kept->slot_bytes == slot_bytes_, "SlotTable: kept files hold slots of their size");
  require_space(settings.directory, slots * kept->file_bytes());
  file.kept =
      std::make_unique<KeptFiles>(KeptFiles::Where{path, settings.directory, demand.spill}, kept);
  add_slots(file, slots);
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    file.kept->make(slot);
  }
  return file;
}

std::optional<Place> SlotTable::take() {
  std::scoped_lock const lock{mutex_};
  std::vector<bool> open;
  std::vector<std::int64_t> counts;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    open.push_back((*paths_)[i]->writable());
    counts.push_back(files_[i].slots - std::ssize(files_[i].free));
  }
  std::vector<double> const shares = weights_of(*paths_, split_);
  for (;;) {
    std::size_t const path = plan::next_path(shares, counts, open, sharer_);
    if (path == files_.size()) {
      return std::nullopt;
    }
    if (auto const slot = take_slot(path)) {
      return Place{path, *slot};
    }
    open[path] = false;
  }
}

void SlotTable::give_back(Place place) noexcept {
  std::scoped_lock const lock{mutex_};
  SlotFile& file = files_[place.path];
  if (file.kept) {
    file.kept->leave(place.slot);
  }
  file.free.push_back(place.slot);  // within the capacity of add_slots
}

bool SlotTable::may_give(Place place, std::string const& name) const {
  return files_[place.path].kept->may_give(name);
}

bool SlotTable::give(Place place, std::string const& name) {
  require(is_kept(place), "SlotTable: the slot has no file of its own");
  KeptFiles& kept = *files_[place.path].kept;
  aio::File const* given{};
  {
    std::scoped_lock const lock{mutex_};
    given = &kept.give_away(place.slot);
  }
  return kept.give(*given, name);
}

aio::File const& SlotTable::file(Place place) const {
  SlotFile const& file = files_[place.path];
  if (!file.kept) {
    return file.file;
  }
  std::scoped_lock const lock{mutex_};  // others may be added
  return file.kept->file(place.slot);
}

std::vector<std::int64_t> SlotTable::slots() const {
  std::scoped_lock const lock{mutex_};
  std::vector<std::int64_t> slots;
  slots.reserve(files_.size());
  for (SlotFile const& file : files_) {
    slots.push_back(file.slots);
  }
  return slots;
}

/// A free slot, made if need be; empty and said so once if there is no space for that.
std::optional<std::int64_t> SlotTable::take_slot(std::size_t path) {
  SlotFile& file = files_[path];
  try {
    if (file.kept) {
      prepare_kept(file);
    } else if (file.free.empty()) {
      file.file.allocate((file.slots + growth_slots) * slot_bytes_);
      add_slots(file, growth_slots);
    }
  } catch (IoError const& error) {
    if (!std::exchange(file.warned, true)) {
      log::warning(
          "tiers.path = {}: cannot make more slots, other paths take what would go there: {}",
          (*paths_)[path]->settings().directory, error.what());
    }
    return std::nullopt;
  }
  std::int64_t const slot = file.free.back();
  file.free.pop_back();
  return slot;
}

/// The last free slot has a file then. One that has one already is better: it costs no space.
void SlotTable::prepare_kept(SlotFile& file) {
  if (file.free.empty()) {
    add_slots(file, 1);
  }
  auto const ready =
      std::ranges::find_if(file.free, [&](auto slot) { return file.kept->has_file(slot); });
  if (ready == file.free.end()) {
    file.kept->make(file.free.back());
  } else {
    std::swap(*ready, file.free.back());
  }
}

void SlotTable::add_slots(SlotFile& file, std::int64_t count) {
  file.free.reserve(static_cast<std::size_t>(file.slots + count));
  // The lowest slot is taken first, so that the first versions lie in order of creation.
  for (std::int64_t i = count - 1; i >= 0; --i) {
    file.free.push_back(file.slots + i);
  }
  file.slots += count;
  if (file.kept) {
    file.kept->add(count);
  }
}

}  // namespace offstage::tiers
