#include "ahead_update.hpp"

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

AheadUpdate::AheadUpdate(Scene const& scene)
    : scene_{scene},
      shard_{with_residents(Shard{scene.subgroups, scene.layout}, scene.residents)},
      device_{make_device(scene)},
      stream_{device_->make_stream("model")},
      copy_{device_->allocate(2 * shard_.size, "the working copy")},
      incoming_{device_->allocate(2 * shard_.size, "the model's gradient")},
      readiness_{shard_.subgroups} {
  kernel = std::make_shared<aio::FaultyKernel>(contexts());
  add_paths(scene.paths);
  make_tiers();
  make_pipeline();
  flusher_.emplace(flushed_.get(),
                   [this](tiers::Key key, double squares) { complete(key, squares); });
  initialize(shard_, *state_);
  put(0, first_copy(shard_));
}

void AheadUpdate::make_tiers() {
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

void AheadUpdate::make_pipeline() {
  PipelineSettings pipeline;
  pipeline.layout = scene_.layout;
  pipeline.workers = scene_.workers;
  pipeline.transfers = scene_.transfers;
  pipeline.readiness = &readiness_;
  if (scene_.on_device) {
    DeviceLaneSettings lane;
    lane.layout = scene_.layout;
    lane.chunk = chunk_elements;
    lane.slots = scene_.slots;
    lane.parameter_slots = scene_.parameter_slots;
    lane.gradient_bytes = scene_.flush ? 4 : 2;
    lane.parameter_bytes = 2;
    lane_ = std::make_unique<DeviceLane>(*device_, lane);
    pipeline.device = lane_.get();
    pipeline.resident = [this](std::int64_t index) { return state_->resident(index); };
    if (scene_.held_room > 0) {
      held_ = std::make_unique<HeldGradients>(*device_, scene_.held_room, 2, shard_.subgroups);
    }
  }
  pipeline_ = std::make_unique<UpdatePipeline>(shard_.subgroups, *state_, pipeline);
}

void AheadUpdate::complete(std::int64_t subgroup, double squares) {
  if (pipeline_->is_ahead()) {
    pipeline_->complete(subgroup, squares);
  }
}

void AheadUpdate::first_rounds() {
  if (held_) {
    std::vector<std::int64_t> wanted;
    for (Trip const& trip : order()) {
      if (trip.on_device) {
        wanted.push_back(trip.subgroup);
      }
    }
    held_->hold(wanted);
  }
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

void AheadUpdate::start_ahead(kernels::OptimizerStep const& presumed, double most_squares) {
  first_rounds();
  pipeline_->start_ahead(presumed, most_squares, order(), source(), targets());
}

tiers::Lease AheadUpdate::open(std::int64_t index) {
  return scene_.rounds > 1 ? sums_->fetch(index) : sums_->create(index);
}

void AheadUpdate::bring(std::int64_t index, Values const& gradient) {
  auto const& subgroup = at(index);
  auto const part = part_of(gradient, subgroup);
  if (is_held(index)) {
    hold(subgroup, part);
    complete(index, 0.0);
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

void AheadUpdate::hold(state::Subgroup const& subgroup, std::span<bfloat16 const> gradient) {
  auto const there =
      incoming_.as<bfloat16>().subspan(static_cast<std::size_t>(subgroup.begin), gradient.size());
  stream_->copy(there.data(), gradient.data(), static_cast<Bytes>(gradient.size_bytes()),
                device::Copy::host_to_device);
  auto const rest = held_->add<bfloat16, bfloat16>(
      *stream_, subgroup.begin, std::span<bfloat16 const>{there}, {.begins = true, .final = true});
  require(rest.empty(), "AheadUpdate: all of the subgroup is held");
  stream_->synchronize();
}

void AheadUpdate::backward(Values const& gradient) {
  for (std::int64_t index = scene_.subgroups - 1; index >= 0; --index) {
    bring(index, gradient);
  }
  drain();
}

void AheadUpdate::run(kernels::OptimizerStep const& step) {
  (flushed_ ? flushed_ : sums_)->begin_pass();
  pipeline_->start(step, order(), source(), targets());
}

void AheadUpdate::redo(kernels::OptimizerStep const& step) {
  (flushed_ ? flushed_ : sums_)->begin_pass();
  pipeline_->start_under_forward(step, order(), source(), targets());
}

GradientLease AheadUpdate::gradient_of(state::Subgroup const& subgroup) {
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

void AheadUpdate::rebuild(std::span<tiers::Key const> subgroups) {
  for (tiers::Key const key : subgroups) {
    auto const& subgroup = at(key);
    tiers::Lease const lease = state_->fetch(key);
    auto const* const parameters = reinterpret_cast<float const*>(lease.bytes().data());
    put(subgroup.begin, rounded({parameters, static_cast<std::size_t>(subgroup.size)}));
  }
}

Values AheadUpdate::copy_of(std::int64_t index) {
  Values values(static_cast<std::size_t>(at(index).size));
  stream_->copy(values.data(), copy_.as<bfloat16>().data() + at(index).begin, 2 * at(index).size,
                device::Copy::device_to_host);
  stream_->synchronize();
  return values;
}

bool AheadUpdate::shows(std::int64_t index, Values const& parameters) {
  Values const values = copy_of(index);
  return std::memcmp(values.data(), part_of(parameters, at(index)).data(),
                     values.size() * sizeof(bfloat16)) == 0;
}

void AheadUpdate::wait_for(std::int64_t index) {
  readiness_.wait(at(index).begin, at(index).begin + at(index).size);
}

std::vector<Trip> AheadUpdate::order() const {
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

void AheadUpdate::put(std::int64_t begin, Values const& values) {
  stream_->copy(copy_.as<bfloat16>().data() + begin, values.data(), 2 * std::ssize(values),
                device::Copy::host_to_device);
  stream_->synchronize();
}

}  // namespace offstage::update
