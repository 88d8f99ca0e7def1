#include "tiers/slot_table.hpp"

#include <cmath>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "tiers/spill_file.hpp"

namespace offstage::tiers {

SlotTable::SlotTable(std::shared_ptr<PathSet> paths, SlotDemand const& demand)
    : paths_{std::move(paths)},
      split_{demand.split},
      sharer_{demand.sharer},
      slot_bytes_{demand.slot_bytes} {
  std::vector<double> const shares = weights();
  files_.reserve(paths_->size());
  for (std::size_t i = 0; i < paths_->size(); ++i) {
    // No more than all of them, whatever the rounding of the share.
    auto const share = static_cast<std::int64_t>(
        std::ceil(std::fmin(1.0, shares[i]) * static_cast<double>(demand.extents)));
    std::int64_t const slots = share + demand.spare;
    std::string const& directory = (*paths_)[i]->settings().directory;
    SlotFile& file = files_.emplace_back();
    file.file = make_spill_file(directory, demand.spill, slots * slot_bytes_);
    add_slots(file, slots);
  }
}

std::optional<Place> SlotTable::take() {
  std::scoped_lock const lock{mutex_};
  std::vector<bool> open;
  std::vector<std::int64_t> counts;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    open.push_back((*paths_)[i]->writable());
    counts.push_back(files_[i].slots - std::ssize(files_[i].free));
  }
  std::vector<double> const shares = weights();
  for (;;) {
    std::size_t const path = plan::next_path(shares, counts, open, sharer_);
    if (path == files_.size()) {
      return std::nullopt;
    }
    if (has_room(path)) {
      std::int64_t const slot = files_[path].free.back();
      files_[path].free.pop_back();
      return Place{path, slot};
    }
    open[path] = false;
  }
}

void SlotTable::give_back(Place place) noexcept {
  std::scoped_lock const lock{mutex_};
  files_[place.path].free.push_back(place.slot);  // within the capacity of add_slots
}

std::vector<std::int64_t> SlotTable::slots() const {
  std::scoped_lock const lock{mutex_};
  std::vector<std::int64_t> slots;
  for (SlotFile const& file : files_) {
    slots.push_back(file.slots);
  }
  return slots;
}

std::vector<double> SlotTable::weights() const {
  if (paths_->size() == 1) {
    return {1.0};  // whatever its rates, which nobody needs to know
  }
  std::vector<plan::PathRate> rates;
  for (auto const& path : *paths_) {
    rates.push_back(path->rate());
  }
  return plan::split_weights(split_, rates);
}

bool SlotTable::has_room(std::size_t path) {
  SlotFile& file = files_[path];
  if (!file.free.empty()) {
    return true;
  }
  try {
    file.file.allocate((file.slots + growth_slots) * slot_bytes_);
  } catch (IoError const& error) {
    if (!std::exchange(file.warned, true)) {
      log::warning("tiers.path = {}: no room for more extents, other paths take them: {}",
                   (*paths_)[path]->settings().directory, error.what());
    }
    return false;
  }
  add_slots(file, growth_slots);
  return true;
}

void SlotTable::add_slots(SlotFile& file, std::int64_t count) {
  file.free.reserve(static_cast<std::size_t>(file.slots + count));
  // The lowest slot is taken first, so that the first versions lie in order of creation.
  for (std::int64_t i = count - 1; i >= 0; --i) {
    file.free.push_back(file.slots + i);
  }
  file.slots += count;
}

}  // namespace offstage::tiers
