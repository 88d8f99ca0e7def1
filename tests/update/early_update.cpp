#include "early_update.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "device/shuffled_device.hpp"
#include "platform/kept_contexts.hpp"
#include "shared_update.hpp"

namespace offstage::update {
namespace {

std::unique_ptr<device::Device> make_device(Scene const& scene) {
  if (!scene.on_device) {
    return device::make_host_device(0);
  }
  return std::make_unique<device::ShuffledDevice>(scene.seed, 0, std::chrono::microseconds{100});
}

/// Of all updates.
std::shared_ptr<aio::Kernel> contexts() {
  static auto const contexts = std::make_shared<aio::KeptContexts>();
  return contexts;
}

}  // namespace

EarlyUpdate::EarlyUpdate(Scene const& scene)
    : scene_{scene},
      shard_{with_residents(Shard{scene.subgroups, scene.layout}, scene.residents)},
      device_{make_device(scene)},
      stream_{device_->make_stream("model")},
      copy_{device_->allocate(2 * shard_.size, "the working copy")},
      incoming_{device_->allocate(2 * shard_.size, "the model's gradient")} {
  kernel = std::make_shared<aio::FaultyKernel>(contexts());
  add_paths(scene.paths);
  make_tiers();
  make_update();
  flusher_.emplace(flushed_.get());
  flusher_->set_receiver(update_.get());
  initialize(shard_, *state_);
  put(0, first_copy(shard_));
}

void EarlyUpdate::make_tiers() {
  settings.buffers = scene_.buffers;
  settings.cached = scene_.cached;
  settings.spare_slots = scene_.spare_slots;
  settings.spare_buffers = scene_.spare_buffers;
  settings.evict = scene_.evict;
  auto extents = shard_.extents();
  auto const first = std::ssize(extents) - scene_.residents;
  std::vector<Bytes> const resident{extents.begin() + first, extents.end()};
  extents.resize(static_cast<std::size_t>(first));
  state_ = std::make_unique<tiers::DeviceTiers>(*device_, first, resident, make(extents));
  settings.name = "gradient";
  settings.spare_slots = settings.spare_buffers = 0;
  settings.buffers = scene_.gradient_buffers;
  settings.cached = scene_.gradients_cached;
  sums_ = tiers::make_virtual_tiers(shard_.extents(2), settings);
  if (scene_.flush) {
    flushed_ = tiers::make_virtual_tiers(shard_.extents(4), settings);
  }
}

void EarlyUpdate::make_update() {
  UpdateParts parts{
      .subgroups = shard_.subgroups, .state = *state_, .gradient = source(), .target = targets()};
  if (scene_.on_device) {
    DeviceLaneSettings lane;
    lane.layout = scene_.layout;
    lane.chunk = chunk_elements;
    lane.buffers = scene_.chunk_buffers;
    lane.parameter_buffers = scene_.parameter_buffers;
    lane.gradient_bytes = scene_.flush ? 4 : 2;
    lane.parameter_bytes = 2;
    lane_ = std::make_unique<DeviceLane>(*device_, lane);
    parts.device = lane_.get();
    parts.resident = [this](std::int64_t index) { return state_->resident(index); };
    if (scene_.held_room > 0) {
      held_ = std::make_unique<HeldGradients>(*device_, scene_.held_room, 2, shard_.subgroups);
      parts.held = held_.get();
    }
  }
  update_ = std::make_unique<Update>(parts, UpdateSettings{.layout = scene_.layout,
                                                           .workers = scene_.workers,
                                                           .transfers = scene_.transfers});
}

void EarlyUpdate::first_rounds() {
  update_->plan(order());
  for (int round = 1; round < scene_.rounds; ++round) {
    sums_->begin_pass();
    for (std::int64_t index = scene_.subgroups - 1; index >= 0; --index) {
      tiers::Lease lease = sums_->create(index);
      std::ranges::fill(lease.mutable_bytes(), std::byte{0});
      flusher_->commit(std::move(lease), std::nullopt);
    }
    flusher_->drain();
  }
  sums_->begin_pass();
  if (flushed_) {
    flushed_->begin_pass();
  }
}

void EarlyUpdate::begin_early(kernels::OptimizerStep const& presumed, double most_squares) {
  first_rounds();
  update_->begin_early(presumed, most_squares);
}

tiers::Lease EarlyUpdate::open(std::int64_t index) {
  return scene_.rounds > 1 ? sums_->fetch(index) : sums_->create(index);
}

void EarlyUpdate::bring(std::int64_t index, Values const& gradient) {
  auto const& subgroup = at(index);
  auto const part = part_of(gradient, subgroup);
  if (is_held(index)) {
    hold(subgroup, part);
    update_->complete(index, 0.0);
    return;
  }
  tiers::Lease lease = open(index);
  std::memcpy(lease.mutable_bytes().data(), part.data(), part.size_bytes());
  if (flushed_) {
    auto const* const sums = reinterpret_cast<bfloat16 const*>(lease.bytes().data());
    flusher_->flush(std::move(lease), std::span{sums, part.size()}, squares_of(part));
  } else {
    flusher_->commit(std::move(lease), squares_of(part));
  }
}

void EarlyUpdate::hold(state::Subgroup const& subgroup, std::span<bfloat16 const> gradient) {
  auto const there =
      incoming_.as<bfloat16>().subspan(static_cast<std::size_t>(subgroup.begin), gradient.size());
  stream_->copy(there.data(), gradient.data(), static_cast<Bytes>(gradient.size_bytes()),
                device::Copy::host_to_device);
  auto const rest = held_->add<bfloat16, bfloat16>(
      *stream_, subgroup.begin, std::span<bfloat16 const>{there}, {.begins = true, .final = true});
  require(rest.empty(), "EarlyUpdate: all of the subgroup is held");
  stream_->synchronize();
}

void EarlyUpdate::backward(Values const& gradient) {
  for (std::int64_t index = scene_.subgroups - 1; index >= 0; --index) {
    bring(index, gradient);
  }
  drain();
}

void EarlyUpdate::run(kernels::OptimizerStep const& step) {
  (flushed_ ? flushed_ : sums_)->begin_pass();
  update_->run(step);
}

GradientLease EarlyUpdate::gradient_of(state::Subgroup const& subgroup) {
  auto const size = static_cast<std::size_t>(subgroup.size);
  if (is_held(subgroup.index)) {
    auto const* const there =
        reinterpret_cast<bfloat16 const*>(held_->gradient(subgroup.index).data());
    return {{}, std::span{there, size}, GradientPlace::device};
  }
  tiers::Lease lease = (flushed_ ? flushed_ : sums_)->fetch(subgroup.index);
  auto const* const bytes = lease.bytes().data();
  kernels::GradientView view = std::span{reinterpret_cast<bfloat16 const*>(bytes), size};
  if (flushed_) {
    view = std::span{reinterpret_cast<float const*>(bytes), size};
  }
  return {std::move(lease), view};
}

void EarlyUpdate::rebuild(std::span<tiers::Key const> subgroups) {
  for (tiers::Key const key : subgroups) {
    auto const& subgroup = at(key);
    tiers::Lease const lease = state_->fetch(key);
    auto const* const parameters = reinterpret_cast<float const*>(lease.bytes().data());
    put(subgroup.begin, rounded({parameters, static_cast<std::size_t>(subgroup.size)}));
  }
}

Values EarlyUpdate::copy_of(std::int64_t index) {
  Values values(static_cast<std::size_t>(at(index).size));
  stream_->copy(values.data(), copy_.as<bfloat16>().data() + at(index).begin, 2 * at(index).size,
                device::Copy::device_to_host);
  stream_->synchronize();
  return values;
}

bool EarlyUpdate::shows(std::int64_t index, Values const& parameters) {
  Values const values = copy_of(index);
  return std::memcmp(values.data(), part_of(parameters, at(index)).data(),
                     values.size() * sizeof(bfloat16)) == 0;
}

void EarlyUpdate::wait_for(std::int64_t index) {
  readiness().wait(at(index).begin, at(index).begin + at(index).size);
}

std::vector<Trip> EarlyUpdate::order() const {
  std::vector<Trip> trips;
  std::vector<Trip> residents;
  for (auto each = shard_.subgroups.rbegin(); each != shard_.subgroups.rend(); ++each) {
    auto const i = static_cast<double>(each->index);
    bool const taken = std::floor((i + 1.0) * scene_.share) > std::floor(i * scene_.share);
    (each->resident ? residents : trips)
        .push_back({each->index, scene_.on_device && (taken || each->resident)});
  }
  trips.insert(trips.end(), residents.begin(), residents.end());
  return trips;
}

void EarlyUpdate::put(std::int64_t begin, Values const& values) {
  stream_->copy(copy_.as<bfloat16>().data() + begin, values.data(), 2 * std::ssize(values),
                device::Copy::host_to_device);
  stream_->synchronize();
}

}  // namespace offstage::update
