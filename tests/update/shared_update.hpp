#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/device.hpp"
#include "targets_in.hpp"
#include "tiers/device_tiers.hpp"
#include "update_support.hpp"

namespace offstage::update {

/// First parameters and the gradients of a few steps, as update_support.hpp's runs have them.
template <class G>
struct Numbers {
  Numbers(Shard const& shard, int steps) : parameters{random_values<float>(shard.size, 1)} {
    for (int t = 1; t <= steps; ++t) {
      gradients.push_back(random_values<G>(shard.size, static_cast<std::uint64_t>(10 + t)));
    }
  }
  std::vector<float> parameters;
  std::vector<std::vector<G>> gradients;
};

/// Who updates what, and with how much.
struct Sharing {
  double share = 0.5;
  int residents = 0;  ///< the last subgroups
  std::int64_t chunk = chunk_elements;
  int workers = 2;
  int buffers = 3;
  int parameter_buffers = 2;
  int lent_buffers = 0;
  plan::Transfers transfers = plan::Transfers::overlap;
  double host_update_rate = 0.0;
  kernels::OptimizerStep step = first_step;
  MemoryTiers::Settings state{};
  MemoryTiers::Settings gradients{};

  [[nodiscard]] std::string text() const {
    return fmt::format(
        "share {}, {} residents, chunks of {}, {} workers, {} buffers ({} lent), {} parameter "
        "buffers, "
        "{}",
        share, residents, chunk, workers, buffers, lent_buffers, parameter_buffers,
        transfers == plan::Transfers::overlap ? "overlap" : "blocking");
  }
};

/// With the last subgroups resident.
inline Shard with_residents(Shard shard, int residents) {
  for (auto i = shard.subgroups.size() - static_cast<std::size_t>(residents);
       i < shard.subgroups.size(); ++i) {
    shard.subgroups[i].resident = true;
  }
  return shard;
}

/// A shard in memory tiers and on a device, that CPU and device update.
template <class G, class W>
class SharedUpdate {
 public:
  SharedUpdate(device::Device& device, Shard const& shard, Numbers<G> const& numbers,
               Sharing const& sharing)
      : device_{device},
        sharing_{sharing},
        numbers_{numbers},
        shard_{with_residents(shard, sharing.residents)},
        gradient_tiers_{shard_.extents(sizeof(G)), sharing.gradients},
        gradients_{shard_, gradient_tiers_},
        copy_{device.allocate(shard_.size * static_cast<Bytes>(sizeof(W)), "the working copy")},
        stream_{device.make_stream("test")} {
    auto extents = shard_.extents();
    auto const first = std::ssize(extents) - sharing.residents;
    std::vector<Bytes> const resident{extents.begin() + first, extents.end()};
    extents.resize(static_cast<std::size_t>(first));
    auto rest = std::make_unique<MemoryTiers>(extents, sharing.state);
    state_ = rest.get();
    tiers_ = std::make_unique<tiers::DeviceTiers>(device, first, resident, std::move(rest));
    auto settings = lane_settings();
    Bytes const slot =
        shard_.layout.bytes(sharing.chunk) + sharing.chunk * static_cast<Bytes>(sizeof(G));
    lent_ = device.allocate(sharing.lent_buffers * slot, "what is lent");
    settings.lent = lent_.as<std::byte>();
    lane_ = std::make_unique<DeviceLane>(device, settings);
    update_ = std::make_unique<Update>(
        UpdateParts{.subgroups = shard_.subgroups,
                    .state = *tiers_,
                    .gradient =
                        [this](state::Subgroup const& subgroup) {
                          if (before_gradient) {
                            before_gradient(subgroup);
                          }
                          return gradients_.source()(subgroup);
                        },
                    .target = parameters::targets_in(copy_.as<W>()),
                    .device = lane_.get(),
                    .resident = [this](std::int64_t index) { return tiers_->resident(index); }},
        UpdateSettings{.layout = shard_.layout,
                       .workers = sharing.workers,
                       .transfers = sharing.transfers,
                       .host_update_rate = sharing.host_update_rate});
    fill_state();
  }

  [[nodiscard]] DeviceLaneSettings lane_settings() const {
    return {.layout = shard_.layout,
            .chunk = sharing_.chunk,
            .buffers = sharing_.buffers,
            .parameter_buffers = sharing_.parameter_buffers,
            .gradient_bytes = sizeof(G),
            .parameter_bytes = sizeof(W),
            .lent = {}};
  }
  /// Every share-th of what is not resident on the device, spread evenly.
  [[nodiscard]] std::vector<Trip> order() const {
    std::vector<Trip> trips;
    for (auto const& subgroup : shard_.subgroups) {
      auto const i = static_cast<double>(subgroup.index);
      trips.push_back({subgroup.index,
                       std::floor((i + 1.0) * sharing_.share) > std::floor(i * sharing_.share)});
    }
    return trips;
  }
  UpdateStats run(int t) {
    prepare(t);
    return make_update(*update_, order(), step_of(t));
  }
  void start(int t) {
    prepare(t);
    update_->plan(order());
    update_->run(step_of(t));
  }
  UpdateStats finish() { return update_->finish(); }

  [[nodiscard]] std::vector<W> copy_part(std::int64_t begin, std::int64_t count) {
    std::vector<W> values(static_cast<std::size_t>(count));
    stream_->copy(values.data(), copy_.as<W>().data() + begin,
                  count * static_cast<Bytes>(sizeof(W)), device::Copy::device_to_host);
    stream_->synchronize();
    return values;
  }
  [[nodiscard]] Result<W> result() {
    return {state_of(shard_, *tiers_), copy_part(0, shard_.size)};
  }
  [[nodiscard]] int held() const { return state_->held() + gradient_tiers_.held(); }
  [[nodiscard]] Shard const& shard() const { return shard_; }
  [[nodiscard]] MemoryTiers& state() { return *state_; }
  [[nodiscard]] MemoryTiers& gradient_tiers() { return gradient_tiers_; }
  [[nodiscard]] state::Readiness& readiness() { return update_->readiness(); }
  [[nodiscard]] DeviceLane& lane() { return *lane_; }
  [[nodiscard]] Update& update() { return *update_; }
  [[nodiscard]] std::span<std::byte> lent() { return lent_.as<std::byte>(); }

  /// Called before a trip gets its gradient; null: nothing is.
  std::function<void(state::Subgroup const&)> before_gradient{};

 private:
  [[nodiscard]] kernels::OptimizerStep step_of(int t) const {
    kernels::OptimizerStep step = sharing_.step;
    step.step = t;
    return step;
  }
  void fill_state() {
    for (auto const& subgroup : shard_.subgroups) {
      tiers::Lease lease = tiers_->create(subgroup.index);
      std::ranges::fill(lease.mutable_bytes(), std::byte{0});
      std::memcpy(lease.mutable_bytes().data(), numbers_.parameters.data() + subgroup.begin,
                  static_cast<std::size_t>(subgroup.size) * sizeof(float));
      lease.commit();
    }
  }
  void prepare(int t) {
    gradients_.set(numbers_.gradients.at(static_cast<std::size_t>(t - 1)));
    state_->forget_events();
    gradient_tiers_.forget_events();
  }

  device::Device& device_;
  Sharing sharing_;
  Numbers<G> const& numbers_;
  Shard shard_;
  MemoryTiers gradient_tiers_;
  Gradients<G> gradients_;
  device::Buffer copy_;
  device::Buffer lent_;
  MemoryTiers* state_{};
  std::unique_ptr<tiers::DeviceTiers> tiers_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<DeviceLane> lane_;
  std::unique_ptr<Update> update_;  ///< ends before what it uses
};

}  // namespace offstage::update
