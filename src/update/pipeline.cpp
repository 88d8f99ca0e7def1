#include "update/pipeline.hpp"

#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "base/thread.hpp"
#include "update/compute_lane.hpp"

namespace offstage::update {
namespace {

/// AdamW over one subgroup. `state` is p, m, v; gradient and working copy are the subgroup's part.
template <class G, class W>
void update_subgroup(state::Subgroup const& subgroup, std::span<std::byte> state,
                     std::span<G const> gradient, std::span<W> copy, kernels::AdamwStep step) {
  auto* const elements = reinterpret_cast<float*>(state.data());
  auto const size = static_cast<std::size_t>(subgroup.size);
  std::span<float> const parameter{elements, size};
  std::span<float> const momentum{elements + size, size};
  std::span<float> const variance{elements + 2 * size, size};
  double const weight_decay = step.weight_decay;
  for (state::DecayRange const& range : subgroup.decay_ranges) {
    auto const begin = static_cast<std::size_t>(range.begin);
    auto const count = static_cast<std::size_t>(range.end - range.begin);
    step.weight_decay = range.decayed ? weight_decay : 0.0;
    kernels::host::adamw<G, W>({parameter.subspan(begin, count), momentum.subspan(begin, count),
                                variance.subspan(begin, count), gradient.subspan(begin, count),
                                copy.subspan(begin, count)},
                               step);
  }
}

/// Two different 16-bit types have no kernel: no run has both.
template <class G, class W>
constexpr bool have_kernel =
    std::is_same_v<G, W> || std::is_same_v<G, float> || std::is_same_v<W, float>;

/// Before the state is fetched, so that it stays as it is.
void require_fit(state::Subgroup const& subgroup, GradientView const& gradient,
                 WorkingCopyView const& copy) {
  std::visit(
      [&]<class G, class W>(std::span<G const> gradients, std::span<W>) {
        require(have_kernel<G, W>,
                "UpdatePipeline: gradient and working copy are of two different 16-bit types");
        require(std::ssize(gradients) == subgroup.size,
                "UpdatePipeline: a gradient needs an element for each of the subgroup's");
      },
      gradient, copy);
}

/// The first error of several threads.
class FirstError {
 public:
  void keep(std::exception_ptr error) noexcept {
    std::scoped_lock const lock{mutex_};
    if (!error_) {
      error_ = std::move(error);
    }
    any_ = true;
  }
  [[nodiscard]] bool any() const noexcept { return any_; }
  /// When the threads have ended.
  void rethrow() const {
    if (error_) {
      std::rethrow_exception(error_);
    }
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  std::atomic<bool> any_ = false;
};

/// What the workers of one run share.
class Trips {
 public:
  Trips(std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers, int workers,
        trace::Trace* trace, kernels::AdamwStep const& step, std::span<std::int64_t const> order,
        GradientSource const& gradient, WorkingCopyView copy)
      : subgroups_{subgroups},
        tiers_{tiers},
        trace_{trace},
        step_{step},
        order_{order},
        gradient_{gradient},
        copy_{copy},
        lane_{workers} {}

  /// One worker: trips until none is left or another worker has failed.
  void work(int slot) noexcept {
    try {
      std::string const row = "slot " + std::to_string(slot);
      for (std::size_t i = next_++; i < order_.size() && !error_.any(); i = next_++) {
        trip(subgroups_[static_cast<std::size_t>(order_[i])], row);
      }
    } catch (...) {
      error_.keep(std::current_exception());
    }
    lane_.leave();
  }
  /// A worker that could not be had.
  void lose_worker(std::exception_ptr error) noexcept {
    error_.keep(std::move(error));
    lane_.leave();
  }
  /// The calling thread computes until all workers have ended.
  void serve() { lane_.serve(); }

  /// When the workers have ended.
  void rethrow() const { error_.rethrow(); }
  [[nodiscard]] Seconds compute() const noexcept { return compute_; }

 private:
  void trip(state::Subgroup const& subgroup, std::string const& row);
  void update(state::Subgroup const& subgroup, tiers::Lease& state, GradientView const& gradient);

  std::vector<state::Subgroup> const& subgroups_;
  tiers::Tiers& tiers_;
  trace::Trace* trace_;
  kernels::AdamwStep const& step_;
  std::span<std::int64_t const> order_;
  GradientSource const& gradient_;
  WorkingCopyView copy_;
  ComputeLane lane_;
  FirstError error_;
  std::atomic<std::size_t> next_ = 0;
  Seconds compute_{};  ///< of the serving thread alone
};

// Every trip takes the gradient first and the state second, one lease of each, from two pools: whoever
// has the state lacks nothing, so that trips end and leases come free whatever the pools' sizes. In this
// order the gradient is read while the trip waits for a buffer of the state, of which there are few.
void Trips::trip(state::Subgroup const& subgroup, std::string const& row) {
  std::optional<tiers::Lease> state;
  {
    std::optional<GradientLease> gradient;
    {
      trace::Scope const scope{trace_, row, "fetch", subgroup.index};
      gradient.emplace(gradient_(subgroup));
      require_fit(subgroup, gradient->view, copy_);
      state.emplace(tiers_.fetch(subgroup.index));
    }
    trace::Scope const scope{trace_, row, "update", subgroup.index};
    lane_.run([&] { update(subgroup, *state, gradient->view); });
  }
  trace::Scope const scope{trace_, row, "flush", subgroup.index};
  state->commit();
}

void Trips::update(state::Subgroup const& subgroup, tiers::Lease& state,
                   GradientView const& gradient) {
  trace::Scope const scope{trace_, "update", "update", subgroup.index};
  Stopwatch const kernel;
  std::visit(
      [&]<class G, class W>(std::span<G const> gradients, std::span<W> copies) {
        if constexpr (have_kernel<G, W>) {
          update_subgroup(subgroup, state.mutable_bytes(), gradients,
                          copies.subspan(static_cast<std::size_t>(subgroup.begin),
                                         static_cast<std::size_t>(subgroup.size)),
                          step_);
        }
      },
      gradient, copy_);
  compute_ += kernel.elapsed();
}

std::int64_t elements_of(WorkingCopyView const& view) {
  return std::visit([](auto span) { return std::ssize(span); }, view);
}

void require_every_index_once(std::span<std::int64_t const> order, std::size_t count) {
  std::vector<bool> seen(count);
  for (std::int64_t const index : order) {
    bool const known = index >= 0 && static_cast<std::size_t>(index) < count;
    require(known && !seen[static_cast<std::size_t>(index)],
            "UpdatePipeline: the order names a subgroup that there is not, or one twice");
    seen[static_cast<std::size_t>(index)] = true;
  }
  require(order.size() == count, "UpdatePipeline: the order leaves a subgroup out");
}

}  // namespace

UpdatePipeline::UpdatePipeline(std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers,
                               int workers, trace::Trace* trace)
    : subgroups_{subgroups}, tiers_{tiers}, workers_{workers}, trace_{trace} {
  require(workers >= 1, "UpdatePipeline: at least one worker is needed");
}

UpdateStats UpdatePipeline::run(kernels::AdamwStep const& step, std::span<std::int64_t const> order,
                                GradientSource const& gradient, WorkingCopyView copy) {
  require_every_index_once(order, subgroups_.size());
  require(
      subgroups_.empty() || subgroups_.back().begin + subgroups_.back().size <= elements_of(copy),
      "UpdatePipeline: the working copy is shorter than the shard");
  Stopwatch const watch;
  tiers_.begin_pass();
  Trips trips{subgroups_, tiers_, workers_, trace_, step, order, gradient, copy};
  {
    std::vector<NamedThread> threads;
    threads.reserve(static_cast<std::size_t>(workers_));
    for (int slot = 0; slot < workers_; ++slot) {
      try {
        threads.emplace_back("update-" + std::to_string(slot),
                             [&trips, slot] { trips.work(slot); });
      } catch (...) {  // no more threads are to be had: the others end, then the error goes on
        trips.lose_worker(std::current_exception());
      }
    }
    trips.serve();
  }
  trips.rethrow();
  return {watch.elapsed(), trips.compute()};
}

}  // namespace offstage::update
