#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "plan/layer_slots.hpp"
#include "plan/machine.hpp"
#include "plan/places_in_turn.hpp"
#include "plan/simulated_machine.hpp"
#include "plan/simulated_tensors.hpp"
#include "plan/simulation.hpp"
#include "plan/trip_order.hpp"
#include "plan/virtual_time.hpp"
#include "plan/workload.hpp"

namespace offstage::plan {

struct SimulatedUpdate {
  SimulatedUpdate(VirtualTime& time, std::vector<Trip> trips, Schedule const& schedule,
                  bool under_backward, bool decided)
      : order{trips, schedule.workers, schedule.transfers == Transfers::blocking,
              decided ? TripOrder::any_reach : schedule.workers},
        ahead{under_backward},
        waits_for_norm(trips.size()),
        complete(trips.size(), Point{time}),
        ready(trips.size(), Point{time}),
        confirmed{time},
        ended{time},
        cores_done{time},
        done{time},
        cores_left{order.cpu_trips()} {}

  TripOrder order;
  bool ahead;  ///< it began under backward, or is made again: state is fetched first
  bool cancelled = false;
  std::vector<char> waits_for_norm;  ///< trips that can be made once the norm is known
  std::vector<Point> complete;       ///< gradients are complete
  std::vector<Point> ready;          ///< new parameters are ready
  Point confirmed;
  Change ended;  ///< changes when a trip ends
  Point cores_done, done;
  std::int64_t cores_left;
  int workers_left{};
};

/// The part of an extent of the working copy that one use of a layer takes.
struct ExtentPiece {
  std::int64_t key{};
  std::int64_t elements{};
  bool ends{};  ///< the extent's lease ends with this piece
  Point* arrived{};
};

/// One use of a layer by the model.
struct LayerUse {
  LayerSlots::Use slot;
  Point arrived, ended;
  std::vector<ExtentPiece> pieces{};
};

/// Steps of a rank under virtual time: see simulate.
class SimulatedSteps {
 public:
  SimulatedSteps(Machine const& machine, Workload const& work, Schedule const& schedule,
                 std::vector<SimulatedEvent>* events = nullptr);
  [[nodiscard]] Prediction run();
  /// Runs to the end, or until so many events are recorded.
  void run_until(std::size_t events);

 private:
  [[nodiscard]] static std::size_t index(std::int64_t of) { return static_cast<std::size_t>(of); }
  struct Marks {
    double begin{}, forward{}, backward{}, update{};
  };
  struct StepUses {
    std::deque<LayerUse> uses;
    std::deque<Point> extents;  ///< extents that are read ahead
  };
  /// The state of one round of a step, or of all rounds of a vertical one.
  struct Round {
    Round(VirtualTime& time, std::size_t layers)
        : left(layers), back(layers), freed(layers, Point{time}), summed{time} {}
    std::vector<std::shared_ptr<Point>> left;  ///< activations have left the device
    std::vector<std::shared_ptr<Point>> back;  ///< activations are back
    std::vector<Point> freed;                  ///< the activations' slab is free for them
    Point summed;                              ///< all gradients are summed
    std::int64_t layers_left{}, writes_left{};
  };
  /// The gradient of a layer that is handed on.
  struct Handed {
    std::size_t layer{};
    std::int64_t round{};
    /// Happens when the gradient was read; null: a buffer becomes free then.
    std::shared_ptr<Point> read{};
  };

  Task steps();
  Task rounds(Marks& marks, StepUses& uses);
  Task forward(Round& round, StepUses& uses, std::size_t first);
  Task backward(Round& round, StepUses& uses, std::size_t first, std::int64_t number);
  void plan_update();
  Task update(Marks& marks);
  // Vertical schedule (simulated_step_vertical.cpp)
  Task layers(Marks& marks, StepUses& uses);
  Task layers_forward(StepUses& uses);
  Task layers_head(Round& round, StepUses& uses);
  Task layers_backward(Round& round, StepUses& uses);
  Task embedding_backward(Round& round);
  [[nodiscard]] Task acquire(StepUses& uses, std::size_t use, std::size_t layer);
  [[nodiscard]] int blocks() const { return static_cast<int>(work_.blocks()); }
  [[nodiscard]] int tensor(int block, int round) const {
    return block * static_cast<int>(work_.rounds) + round;
  }
  // Parameters
  void expect(StepUses& step);
  Task bring(StepUses& step);
  Task read_ahead(std::int64_t key, Point& arrived);
  Task ready(LayerWork const& layer, SimulatedUpdate* update);
  // Activations
  [[nodiscard]] std::optional<std::size_t> slab_before(std::size_t layer) const;
  [[nodiscard]] SimulatedActivations::Settings activations() const;
  [[nodiscard]] std::int64_t activation_block(std::size_t layer) const;
  // Gradients
  Task gradient(Round& round, Handed handed);
  /// Buffers that a layer's gradient may be made in (model::GradientBuffers).
  [[nodiscard]] Tokens& buffers(std::size_t layer);
  /// Backward of a layer, until its gradient can be handed on.
  Task layer_backward(std::size_t layer);
  /// A layer's gradient is added to the sum of the row at hand.
  void stays_whole(Round& round, Handed const& handed);
  Task spill(Round& round, std::int64_t key, bool is_new, bool is_last);
  void end_of_gradient(Round& round);
  // Updates
  [[nodiscard]] std::vector<Trip> trips();
  void hold(std::vector<Trip> const& trips);
  void find_places_in_turn(std::int64_t room);
  /// The place in turn of what a layer and a subgroup have in common; null: it has none.
  [[nodiscard]] PlaceInTurn const* in_turn(LayerWork const& layer, std::int64_t key) const;
  SimulatedUpdate& begin(std::vector<Trip> trips, bool ahead, bool decided);
  Task worker(SimulatedUpdate& update, int number);
  Task on_cores(SimulatedUpdate& update, std::int64_t key);
  Task on_device(SimulatedUpdate& update, std::int64_t key);
  Task send(std::int64_t elements, Point& sent);
  Task chunk(std::int64_t key, std::int64_t elements, Point& returned);
  /// Takes the leases of a subgroup. `go` becomes false, and there are none, if the update was
  /// cancelled.
  Task fetch(SimulatedUpdate& update, std::int64_t key, bool& go);
  Task end(SimulatedUpdate& update, std::int64_t key);

  /// Number of ranks that have a micro-batch in the round.
  [[nodiscard]] std::int64_t active(std::int64_t round) const {
    std::int64_t const first = round / work_.row * work_.row * work_.ranks + round % work_.row;
    return std::clamp<std::int64_t>(ceil_div(work_.micro_batches - first, work_.row), 1,
                                    work_.ranks);
  }
  /// Number of blocks' sums that are added to a total in the round.
  [[nodiscard]] double blocks_ended(std::int64_t round) const;
  /// Returns whether gradients, or sums of them, go to the ranks in the round.
  [[nodiscard]] bool exchanges(std::int64_t round) const {
    return (round + 1) % work_.row == 0 || last(round);
  }
  [[nodiscard]] bool last(std::int64_t round) const { return round + 1 == work_.rounds; }
  [[nodiscard]] SubgroupWork const& subgroup(std::int64_t key) const {
    return work_.subgroups[index(key)];
  }
  /// The subgroups that have elements of the layer's part: [first, second).
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> keys(LayerWork const& layer) const;
  [[nodiscard]] std::int64_t common(LayerWork const& layer, std::int64_t key) const;
  enum class Which { all, not_resident };
  /// `begun` with the extents of these subgroups, and where they lie.
  [[nodiscard]] SimulatedExtents::Settings extents(SimulatedExtents::Settings begun,
                                                   double element_bytes, Which which) const;
  [[nodiscard]] SimulatedExtents::Settings state() const;
  [[nodiscard]] bool gathers() const { return work_.ranks > 1; }

  Workload const& work_;
  Schedule const& schedule_;
  std::vector<double> weights_;
  VirtualTime time_;
  SimulatedMachine machine_;
  std::int64_t waiting_;  ///< subgroups that are not resident
  int slots_;             ///< slots of layers on the device; 0: all layers are there
  SimulatedExtents state_, gradients_, flushed_, parameters_;
  Tokens lane_, feed_, chunk_buffers_, staged_chunks_;
  Tokens gradient_buffers_, attention_buffer_, gradient_staging_, readers_ahead_;
  std::vector<std::int64_t> leaving_;  ///< key of each layer's activations
  SimulatedActivations activations_;
  std::optional<SimulatedTensors> tensors_, tables_;
  LayerSlots layer_slots_;
  std::deque<StepUses> step_uses_;
  std::deque<SimulatedUpdate> updates_;
  SimulatedUpdate* before_{};  ///< the update of the step before, or this step's
  std::vector<Trip> trips_;
  std::vector<char> held_, stays_;
  std::vector<PlaceInTurn> in_turn_;  ///< ascending
  std::int64_t sums_left_ = 0;        ///< lowest element whose sums left a place in turn
  Change sums_leave_{time_};
  std::int64_t passes_ = 1;  ///< pass 0 is the making of first versions, in ascending order
  std::deque<Marks> marks_;
  /// Uses of resources before the steps that count, and after them.
  std::vector<ResourceUse> settled_, ended_;
  /// Uses of paths: before the steps that count, and after them.
  std::vector<PathUse> moved_before_, moved_;
};

}  // namespace offstage::plan
