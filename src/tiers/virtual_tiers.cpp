#include "tiers/virtual_tiers.hpp"

#include <fmt/format.h>

#include <cstring>
#include <exception>
#include <mutex>
#include <optional>

#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "base/watch.hpp"
#include "tiers/extent_store.hpp"
#include "tiers/extent_table.hpp"
#include "tiers/planned_space.hpp"

namespace offstage::tiers {
namespace {

/// Moves the bytes; the table says whose and where. Locks: the table's, the traffic's, the slots'
/// and the paths'. Nobody asks for one with another in his hands, but for the table, which frees
/// slots at the end of trials, and the slots, which ask the paths for their rates.
class VirtualTiers final : public Tiers {
 public:
  VirtualTiers(std::vector<Bytes> const& extent_bytes, VirtualSettings const& settings);

  Lease fetch(Key key) override;
  Lease fetch_aside(Key key) override;
  Lease create(Key key) override;
  [[nodiscard]] bool fits_beside(Key /*held*/, Key /*wanted*/) const override { return has_two_; }
  std::optional<Lease> fetch_on_trial(Key key) override;
  [[nodiscard]] bool has_spare(Key key) const override { return table_.has_spare(key); }
  void accept_trials() override { table_.accept(); }
  std::vector<Key> revert_trials() override { return table_.revert(); }
  void begin_pass() override { table_.begin_pass(); }
  [[nodiscard]] bool in_memory(Key key) const override { return table_.in_memory(key); }
  [[nodiscard]] std::optional<GivenExtent> give(Key key, std::string const& name) override;
  void hold() override { table_.hold(); }
  [[nodiscard]] bool is_held(Key key) const override { return table_.is_held(key); }
  void read_held(Key key, std::span<std::byte> memory, TakePiece const& take,
                 LetsPass const& lets_pass) override {
    Waiting const waiting{"the held version of extent", key};
    auto const [version, stored] = table_.held(key);
    store_->read_through(version, memory, stored, take, lets_pass);
  }
  [[nodiscard]] StoragePath const* path_of_held(Key key) const override {
    return &store_->path_of(table_.held(key).second);
  }
  void release(Key key) noexcept override { table_.release_held(key); }
  [[nodiscard]] Traffic traffic() const override;
  [[nodiscard]] Residence residence() const override {
    return table_.residence(paths_ ? paths_->size() : 0);
  }
  [[nodiscard]] std::vector<PathSpace> space() const override;
  [[nodiscard]] Bytes host_bytes() const override { return table_.pool().host_bytes(); }

 protected:
  void commit(Key key) override;
  void discard(Key key, bool touched) noexcept override;

 private:
  [[nodiscard]] Lease lease_of(Key key, std::int64_t buffer) {
    auto const size = static_cast<std::size_t>(table_.version(key).size);
    return {*this, key, table_.padded(key, buffer).first(size)};
  }
  [[nodiscard]] trace::Scope scope(char const* what, Key key, std::int64_t buffer) const {
    return {trace_, rows_[static_cast<std::size_t>(buffer)], what, key, table_.version(key).size};
  }
  std::optional<Lease> fetch_for(Key key, Purpose purpose);
  void fill(Key key, ExtentTable::Lent const& lent);
  void evict(Key key);

  std::shared_ptr<PathSet> paths_;
  trace::Trace* trace_;
  std::unique_ptr<ExtentStore> store_;  ///< null if every extent stays in memory
  ExtentTable table_;
  bool has_two_;                   ///< buffers for leases at a time
  std::vector<std::string> rows_;  ///< of the trace, one per buffer
  mutable std::mutex mutex_;       ///< guards traffic_
  Traffic traffic_;                ///< without the paths'
};

std::unique_ptr<ExtentStore> make_store(std::vector<Bytes> const& extent_bytes,
                                        VirtualSettings const& settings) {
  require(settings.buffers >= 1, "VirtualTiers: at least one buffer is needed");
  require(settings.cached >= 0, "VirtualTiers: the cache cannot be smaller than none");
  require(settings.spare_slots >= 0 && settings.spare_buffers >= 0,
          "VirtualTiers: there cannot be fewer spares than none");
  auto const demand = demand_of(extent_bytes, settings);
  return demand ? std::make_unique<ExtentStore>(settings.paths, *demand, settings.verify,
                                                settings.name)
                : nullptr;
}

VirtualTiers::VirtualTiers(std::vector<Bytes> const& extent_bytes, VirtualSettings const& settings)
    : paths_{settings.paths},
      trace_{settings.trace},
      store_{make_store(extent_bytes, settings)},
      table_{extent_bytes, settings, store_.get()},
      has_two_{settings.buffers >= 2 || !store_} {
  for (std::int64_t i = 0; i < table_.pool().size(); ++i) {
    rows_.push_back(fmt::format("{} buffer {}", settings.name, i));
  }
}

Lease VirtualTiers::fetch_aside(Key key) {
  Waiting const waiting{"the fetch of extent", key};
  auto const lent = table_.lend(key, Purpose::fetch);
  Lease lease{lease_of(key, lent->buffer)};  // ends if what follows throws
  fill(key, *lent);
  return lease;
}

Lease VirtualTiers::fetch(Key key) {
  return *fetch_for(key, Purpose::fetch);
}

std::optional<Lease> VirtualTiers::fetch_on_trial(Key key) {
  return fetch_for(key, Purpose::trial);
}

std::optional<Lease> VirtualTiers::fetch_for(Key key, Purpose purpose) {
  Waiting const waiting{"the fetch of extent", key};
  Stopwatch const watch;
  auto const lent = table_.lend(key, purpose);
  if (!lent) {
    return std::nullopt;
  }
  std::optional<Lease> lease{lease_of(key, lent->buffer)};  // ends if what follows throws
  fill(key, *lent);
  std::scoped_lock const lock{mutex_};
  ++(lent->hit ? traffic_.hits : traffic_.misses);
  traffic_.fetched_bytes += table_.version(key).size;
  traffic_.fetch_seconds += watch.elapsed();
  return lease;
}

void VirtualTiers::fill(Key key, ExtentTable::Lent const& lent) {
  auto const bytes = table_.padded(key, lent.buffer);
  if (!lent.hit) {
    trace::Scope const reading = scope("read", key, lent.buffer);
    store_->read(table_.version(key), bytes, table_.stored(key));
  } else if (lent.original) {
    trace::Scope const copying = scope("copy", key, lent.buffer);
    std::memcpy(bytes.data(), table_.padded(key, *lent.original).data(), bytes.size());
  }
}

Lease VirtualTiers::create(Key key) {
  return lease_of(key, table_.lend(key, Purpose::create)->buffer);
}

void VirtualTiers::discard(Key key, bool touched) noexcept {
  table_.discard(key, touched);
}

void VirtualTiers::commit(Key key) {
  Waiting const waiting{"the commit of extent", key};
  Stopwatch const watch;
  auto [freed, leaving] = table_.commit(key);
  if (freed) {
    store_->free(*freed);
  }
  // One at most, unless writes have failed before or trials were reverted.
  for (; leaving; leaving = table_.next_leaving()) {
    evict(*leaving);
  }
  std::scoped_lock const lock{mutex_};
  traffic_.flush_seconds += watch.elapsed();
}

/// Writes an extent that was taken for that.
void VirtualTiers::evict(Key key) {
  Waiting const waiting{"the flush of extent", key};
  std::int64_t const buffer = table_.buffer(key);
  try {
    trace::Scope const writing = scope("write", key, buffer);
    store_->write(table_.version(key), table_.padded(key, buffer), table_.stored(key));
  } catch (std::exception const& error) {
    table_.not_written(key, error.what());
    throw;
  }
  table_.written(key);
}

std::optional<GivenExtent> VirtualTiers::give(Key key, std::string const& name) {
  Waiting const waiting{"the file of extent", key};
  if (!table_.take_stored(key)) {
    return std::nullopt;
  }
  try {
    auto given = store_->give(table_.stored(key), name);
    table_.give_back(key);
    return given;
  } catch (...) {
    table_.give_back(key);
    throw;
  }
}

Traffic VirtualTiers::traffic() const {
  Traffic traffic;
  {
    std::scoped_lock const lock{mutex_};
    traffic = traffic_;
  }
  if (paths_) {
    for (auto const& path : *paths_) {
      traffic.paths.push_back(path->traffic());
    }
  }
  return traffic;
}

std::vector<PathSpace> VirtualTiers::space() const {
  std::vector<PathSpace> space(paths_ ? paths_->size() : 0);
  if (store_) {
    auto const slots = store_->slots().slots();
    for (std::size_t i = 0; i < space.size(); ++i) {
      space[i] = {slots[i], store_->slots().slot_bytes()};
    }
  }
  return space;
}

}  // namespace

std::unique_ptr<Tiers> make_virtual_tiers(std::vector<Bytes> const& extent_bytes,
                                          VirtualSettings const& settings) {
  return std::make_unique<VirtualTiers>(extent_bytes, settings);
}

}  // namespace offstage::tiers
