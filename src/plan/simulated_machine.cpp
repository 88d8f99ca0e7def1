#include "plan/simulated_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.hpp"

namespace offstage::plan {

SimulatedMachine::SimulatedMachine(VirtualTime& time, Machine const& machine,
                                   std::vector<SimulatedEvent>* events)
    : time_{time},
      machine_{machine},
      events_{events},
      products_{time},
      device_update_{time},
      cores_{time},
      sums_{time},
      ranks_{time},
      to_device_{time},
      to_host_{time} {
  for (PathRate const& rate : machine.rates.paths) {
    paths_.push_back({rate, Server{time}, Server{time}});
  }
}

void SimulatedMachine::record(Label const& label, double begin, double end, double bytes) {
  if (events_ != nullptr && !label.row.empty()) {
    events_->push_back(
        {std::string{label.row}, std::string{label.name}, label.key, begin, end, bytes});
  }
}

std::size_t SimulatedMachine::begun(Label const& label) {
  record(label, now(), now());
  return events_ != nullptr ? events_->size() - 1 : 0;
}

void SimulatedMachine::ended(std::size_t event) {
  if (events_ != nullptr) {
    (*events_)[event].end = now();
  }
}

Task SimulatedMachine::transfer(Server& server, double bytes, double rate, std::string row,
                                std::string_view name) {
  double const turn = machine_.path_turn;
  for (double left = bytes; left > 0.0; left -= turn) {
    double const piece = std::min(left, turn);
    co_await server.serve(booked(server, seconds(piece, rate), {row, name}, piece));
  }
}

Task SimulatedMachine::read(std::size_t path, double bytes) {
  Path& of = paths_.at(path);
  of.moved.read += static_cast<Bytes>(bytes);
  return transfer(of.reads, bytes, of.rate.read, fmt::format("read path {}", path + 1), "read");
}

Task SimulatedMachine::write(std::size_t path, double bytes) {
  Path& of = paths_.at(path);
  of.moved.written += static_cast<Bytes>(bytes);
  return transfer(of.rate.full_duplex ? of.writes : of.reads, bytes, of.rate.write,
                  fmt::format("write path {}", path + 1), "write");
}

std::vector<PathUse> SimulatedMachine::moved() const {
  std::vector<PathUse> moved;
  std::ranges::transform(paths_, std::back_inserter(moved), &Path::moved);
  return moved;
}

std::vector<ResourceUse> SimulatedMachine::uses() const {
  using Kind = Resource::Kind;
  std::vector<ResourceUse> uses;
  auto const add = [&](Resource const& resource, double busy) {
    uses.push_back({resource, Seconds{busy}});
  };
  add({Kind::device}, products_.busy());
  add({Kind::device_update}, device_update_.busy());
  add({Kind::cpu_update}, cores_.busy());
  add({Kind::sums}, sums_.busy());
  add({Kind::rank_link}, ranks_.busy());
  add({Kind::to_device}, to_device_.busy());
  add({Kind::to_host}, to_host_.busy());
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    bool const full = paths_[i].rate.full_duplex;
    add({full ? Kind::path_reads : Kind::path, i}, paths_[i].reads.busy());
    if (full) {
      add({Kind::path_writes, i}, paths_[i].writes.busy());
    }
  }
  add({Kind::host_memory}, seconds(host_bytes_, machine_.rates.host_memory));
  return uses;
}

std::vector<Resource::Kind> SimulatedMachine::untimed() const {
  std::vector<Resource::Kind> kinds;
  if (summed_ && machine_.host_sum <= 0.0) {
    kinds.push_back(Resource::Kind::sums);
  }
  if (passed_ && machine_.rank_link <= 0.0) {
    kinds.push_back(Resource::Kind::rank_link);
  }
  return kinds;
}

SimulatedExtents::SimulatedExtents(VirtualTime& time, SimulatedMachine& machine, Settings settings)
    : machine_{machine},
      settings_{std::move(settings)},
      extents_(settings_.bytes.size()),
      counts_(machine.paths()),
      cache_{std::ssize(extents_), settings_.cached, settings_.evict},
      buffers_{time, settings_.buffers +
                         (settings_.made ? 0 : std::min(settings_.cached, std::ssize(extents_)))},
      written_{time},
      row_{settings_.name + " buffer"} {
  if (settings_.buffers == 0) {
    return;
  }
  require(machine.paths() > 0 && settings_.weights.size() == machine.paths(),
          "SimulatedExtents: what does not stay in memory has paths");
  for (std::int64_t key = 0; settings_.made && key < std::ssize(extents_); ++key) {
    take(key);
    while (auto const other = leaving()) {
      extents_[index(*other)].leaving = false;
      extents_[index(*other)].in_memory = false;
    }
  }
}

void SimulatedExtents::take(std::int64_t key) {
  Extent& extent = extents_[index(key)];
  extent.lent = false;
  extent.in_memory = true;
  if (std::exchange(extent.stored, false)) {
    --counts_[extent.path];
  }
  cache_.insert(key);
}

std::optional<std::int64_t> SimulatedExtents::leaving() {
  auto const victim =
      cache_.victim([this](std::int64_t each) { return extents_[index(each)].lent; });
  if (victim) {
    Extent& extent = extents_[index(*victim)];
    cache_.remove(*victim);
    extent.leaving = true;
    extent.path = next();
    extent.stored = true;
    ++counts_[extent.path];
  }
  return victim;
}

std::size_t SimulatedExtents::next() const {
  return next_path(settings_.weights, counts_, std::vector<bool>(counts_.size(), true),
                   settings_.sharer);
}

void SimulatedExtents::begin_pass() {
  cache_.begin_pass();
  spares_left_ = settings_.spares;
}

bool SimulatedExtents::take_spare(std::int64_t key) {
  bool const there = has_spare(key);
  spares_left_ -= there && in_memory(key) ? 1 : 0;
  return there;
}

Task SimulatedExtents::fetch(std::int64_t key) {
  if (settings_.buffers == 0) {
    co_return;
  }
  Extent& extent = extents_[index(key)];
  while (extent.leaving) {
    co_await written_;
  }
  extent.lent = true;
  if (!extent.in_memory) {
    co_await buffers_.take();
    double const begin = machine_.now();
    co_await machine_.read(extent.path, settings_.bytes[index(key)]);
    machine_.record({row_, "read", key}, begin, machine_.now(), settings_.bytes[index(key)]);
  }
}

Task SimulatedExtents::create(std::int64_t key) {
  if (settings_.buffers == 0) {
    co_return;
  }
  Extent& extent = extents_[index(key)];
  while (extent.leaving) {
    co_await written_;
  }
  extent.lent = true;
  if (!extent.in_memory) {
    co_await buffers_.take();
  }
}

Task SimulatedExtents::commit(std::int64_t key) {
  if (settings_.buffers == 0) {
    co_return;
  }
  take(key);
  while (auto const other = leaving()) {
    Extent& victim = extents_[index(*other)];
    double const begin = machine_.now();
    co_await machine_.write(victim.path, settings_.bytes[index(*other)]);
    machine_.record({row_, "write", *other}, begin, machine_.now(), settings_.bytes[index(*other)]);
    victim.leaving = false;
    victim.in_memory = false;
    buffers_.give();
    written_.tell();
  }
}

void SimulatedExtents::discard(std::int64_t key) {
  if (settings_.buffers == 0) {
    return;
  }
  Extent& extent = extents_[index(key)];
  extent.lent = false;
  if (!extent.in_memory) {
    buffers_.give();
  }
}

}  // namespace offstage::plan
