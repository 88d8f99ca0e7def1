#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/chunk.hpp"
#include "base/dtype.hpp"
#include "parameters/home.hpp"
#include "parameters/host_home.hpp"
#include "parameters/node_home.hpp"
#include "parameters/node_memory.hpp"
#include "parameters/stored_home.hpp"
#include "parameters/streamed_parameters.hpp"
#include "platform/mpi/communicator.hpp"
#include "state/link_support.hpp"
#include "state/shard.hpp"
#include "update/memory_tiers.hpp"

namespace offstage::parameters {

inline std::vector<state::LayerLayout> layers_with(std::vector<std::int64_t> const& sizes) {
  std::vector<state::LayerLayout> made;
  for (std::int64_t const elements : sizes) {
    made.emplace_back().elements = elements;
  }
  return made;
}

/// What element i of a rank's shard holds after so many updates: unlike all of its neighbours, and
/// exact in every type.
inline float value_of(int rank, std::int64_t i, int updates) {
  return static_cast<float>((i * 7 + rank * 31 + updates * 3) % 251);
}

/// This process alone where MPI is not up: TSan does not see MPI's own synchronisation.
inline mpi::Communicator all_ranks() {
  int up{};
  MPI_Initialized(&up);
  return up != 0 ? mpi::Communicator::world() : mpi::Communicator{};
}

/// Ranks of the same node, as a test numbers nodes.
inline mpi::Communicator on_node(mpi::Communicator const& comm, int node) {
  MPI_Comm part{};
  MPI_Comm_split(comm.get(), node, comm.rank(), &part);
  return mpi::Communicator{part};
}

/// Layers of sizes that no number of ranks divides, on ranks that own nothing of the second one,
/// and subgroups that begin in the middle of layers. The first and the last one are much larger on
/// request.
template <class T>
class Parameters {
 public:
  struct Settings {
    Home home = Home::host;
    int slots = 3;
    int ahead = 2;
    std::int64_t subgroup_chunks = 3;
    bool alone = false;  ///< one rank, however many there are
    bool large =
        false;  ///< the first layer, which a tied head needs beside a small one, and the last
    state::LinkKind link{};
    std::function<int(int rank)> node{};  ///< of Home::node
    /// Of the tiers: as MemoryTiers::Settings.
    int buffers = 3;
    std::function<void(update::MemoryTiers::Event)> hook{};
  };

  Parameters(device::Device& device, Settings const& settings)
      : comm{settings.alone ? mpi::Communicator{} : all_ranks()},
        map{layers_with({(settings.large ? 29 : 5) * 4096, 10, 7 * 4096 - 3, 4 * 4096, 9 * 4096,
                         (settings.large ? 21 : 2) * 4096}),
            comm.size()},
        device_{device},
        link_{state::make_link(settings.link, comm, device.host_visible())},
        stream_{device.make_stream("test")},
        tiers_{extents(settings), {.buffers = settings.buffers, .hook = settings.hook}} {
    bool const visible = device.host_visible();
    std::unique_ptr<ShardHome<T>> home;
    if (settings.home == Home::node) {
      node_memory_ = std::make_unique<NodeMemory>(
          map, comm, on_node(comm, settings.node(comm.rank())), static_cast<Bytes>(sizeof(T)));
      home = std::make_unique<NodeHome<T>>(map, comm.rank(), *node_memory_, device);
    } else if (settings.home == Home::host) {
      home = std::make_unique<HostHome<T>>(map, comm.rank(), device);
    } else {
      home = std::make_unique<StoredHome<T>>(map, comm.rank(), subgroups, tiers_, settings.ahead,
                                             visible);
    }
    parameters_ = std::make_unique<StreamedParameters<T>>(
        map, *link_, device, *stream_, std::move(home), StreamSettings{.slots = settings.slots});
    for (auto const& subgroup : subgroups) {
      std::vector<float> values;
      for (std::int64_t i = 0; i < subgroup.size; ++i) {
        values.push_back(value_of(comm.rank(), subgroup.begin + i, 0));
      }
      parameters_->fill(subgroup, values);
    }
    tiers_.forget_events();
  }

  /// As an update of the subgroup on the cores.
  void update(state::Subgroup const& subgroup, int updates) {
    auto target = parameters_->target(subgroup);
    auto const elements = std::get<std::span<T>>(target.view);
    for (std::size_t i = 0; i < elements.size(); ++i) {
      elements[i] =
          store<T>(value_of(comm.rank(), subgroup.begin + static_cast<std::int64_t>(i), updates));
    }
    if (target.lease.is_held()) {
      target.lease.commit();
    }
  }

  void expect_values(int layer, std::span<T const> whole, int updates) {
    std::vector<T> values(whole.size());
    stream_->copy(values.data(), whole.data(), static_cast<Bytes>(whole.size_bytes()),
                  device::Copy::device_to_host);
    stream_->synchronize();
    ASSERT_EQ(std::ssize(whole), map.layers()[static_cast<std::size_t>(layer)].padded_elements());
    std::size_t at = 0;
    for (int rank = 0; rank < comm.size(); ++rank) {
      std::int64_t const begin = map.shard_offset(layer, rank);
      std::int64_t const end = begin + map.chunks(layer, rank).count * chunk_elements;
      for (std::int64_t i = begin; i < end; ++i, ++at) {
        ASSERT_EQ(static_cast<float>(load(values[at])), value_of(rank, i, updates))
            << "layer " << layer << ", rank " << rank << ", element " << i;
      }
    }
  }
  /// Acquires what was expected, in order; a layer of `with_next` is held while the next one is
  /// used.
  void use(std::vector<int> const& layers, int updates, int with_next = -1) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      auto const whole = parameters_->acquire(layers[i]);
      expect_values(layers[i], whole, updates);
      if (layers[i] == with_next) {
        int const beside = layers[++i];
        expect_values(beside, parameters_->acquire(beside), updates);
        expect_values(layers[i - 1], whole, updates);
        parameters_->release(beside, nullptr);
        parameters_->release(layers[i - 1], nullptr);
      } else {
        parameters_->release(layers[i], nullptr);
      }
    }
  }

  [[nodiscard]] StreamedParameters<T>& operator*() { return *parameters_; }
  [[nodiscard]] StreamedParameters<T>* operator->() { return parameters_.get(); }
  [[nodiscard]] update::MemoryTiers& tiers() { return tiers_; }
  /// The stream for which layers are there.
  [[nodiscard]] device::Stream& model() { return *stream_; }
  void end() { parameters_.reset(); }

  mpi::Communicator comm;
  state::ShardMap map;
  std::vector<state::Subgroup> subgroups;

 private:
  std::vector<Bytes> extents(Settings const& settings) {
    subgroups = state::subgroups_of(map, comm.rank(), settings.subgroup_chunks * chunk_elements);
    std::vector<Bytes> sizes;
    for (auto const& subgroup : subgroups) {
      sizes.push_back(subgroup.size * static_cast<Bytes>(sizeof(T)));
    }
    return sizes;
  }

  device::Device& device_;
  std::unique_ptr<state::RankLink> link_;
  std::unique_ptr<device::Stream> stream_;  ///< as the model's
  update::MemoryTiers tiers_;
  std::unique_ptr<NodeMemory> node_memory_;
  std::unique_ptr<StreamedParameters<T>> parameters_;
};

inline std::vector<int> const forward_layers{0, 1, 2, 3, 4, 5};
inline std::vector<int> const backward_layers{5, 4, 3, 2, 1};
inline std::vector<int> const tied_forward{0, 1, 2, 3, 4, 5, 0};
inline std::vector<int> const tied_backward{5, 0, 4, 3, 2, 1};
constexpr int head = 5;

}  // namespace offstage::parameters
