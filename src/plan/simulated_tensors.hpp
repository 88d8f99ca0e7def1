#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "plan/simulated_machine.hpp"
#include "plan/virtual_time.hpp"
#include "plan/waiting_slabs.hpp"

namespace offstage::plan {

/// Activations that leave the device, to host memory first and then to the paths, as with
/// activations::HostActivations and StoredActivations.
class SimulatedActivations {
 public:
  struct Settings {
    std::vector<double> bytes;         ///< bytes of each extent
    std::vector<std::int64_t> blocks;  ///< block of each extent, for the events
    bool storage = false;
    std::int64_t cached{};  ///< extents that stay in host memory, if others go to storage
    int writers = 1, readers = 1;
    std::vector<double> weights{};  ///< weights of the paths
    PathSharer sharer{};
  };
  SimulatedActivations(VirtualTime& time, SimulatedMachine& machine, Settings const& settings);

  /// Begins a micro-batch, or all micro-batches of a vertical schedule.
  void open() { extents_.begin_pass(); }
  /// Takes activations off the device. At `left` their memory may be written again.
  [[nodiscard]] Task put(std::int64_t key, std::shared_ptr<Point> left);
  /// Brings back activations that were put before. At `freed` their memory may be written; null: at
  /// once.
  [[nodiscard]] Task take(std::int64_t key, Point* freed, std::shared_ptr<Point> arrived);

 private:
  VirtualTime& time_;
  SimulatedMachine& machine_;
  std::vector<double> bytes_;
  std::vector<std::int64_t> blocks_;
  SimulatedExtents extents_;
  Tokens writers_, readers_;
  std::vector<std::shared_ptr<Point>> there_;
};

/// Tensors that wait between layers, as with model::WaitingTensors, with the same slabs.
class SimulatedTensors {
 public:
  /// The key of a piece is its block.
  SimulatedTensors(VirtualTime& time, SimulatedActivations& store, WaitingGroup const& group);

  void begin() { choice_.begin(); }
  [[nodiscard]] Task make(int tensor);
  [[nodiscard]] Task bring(int tensor);
  [[nodiscard]] Task use(int tensor);
  [[nodiscard]] Task change(int tensor);
  void keep(int tensor);
  void drop(int tensor);
  /// Says that the tensor is not used again. Others read it until the point.
  void give(int tensor, std::shared_ptr<Point> done);

 private:
  using Points = std::vector<std::shared_ptr<Point>>;
  struct Slab {
    Points left, arrived;
  };
  [[nodiscard]] Slab& at(int slab) { return slabs_[static_cast<std::size_t>(slab)]; }
  [[nodiscard]] Task wait(Points points);
  /// Starts move(key, point) for each piece. Returns the points.
  template <class Move>
  Points move_pieces(int tensor, Move const& move);

  VirtualTime& time_;
  SimulatedActivations& store_;
  WaitingGroup group_;
  WaitingSlabs choice_;
  std::vector<Slab> slabs_;
};

}  // namespace offstage::plan
