#include "update/pipeline.hpp"

#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <type_traits>

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

bool have_kernel_for(GradientView const& gradient, WorkingCopyView const& copy) {
  return std::visit(
      []<class G, class W>(std::span<G const>, std::span<W>) { return have_kernel<G, W>; },
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

std::int64_t elements_of(GradientView const& view) {
  return std::visit([](auto span) { return std::ssize(span); }, view);
}
std::int64_t elements_of(WorkingCopyView const& view) {
  return std::visit([](auto span) { return std::ssize(span); }, view);
}

}  // namespace

UpdatePipeline::UpdatePipeline(std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers,
                               int workers)
    : subgroups_{subgroups}, tiers_{tiers}, workers_{workers} {
  require(workers >= 1, "UpdatePipeline: at least one worker is needed");
}

UpdateStats UpdatePipeline::run(kernels::AdamwStep const& step, GradientView gradient,
                                WorkingCopyView copy) {
  for (state::Subgroup const& subgroup : subgroups_) {
    std::int64_t const end = subgroup.begin + subgroup.size;
    require(end <= elements_of(gradient) && end <= elements_of(copy),
            "UpdatePipeline: gradient or working copy is shorter than the shard");
  }
  require(have_kernel_for(gradient, copy),
          "UpdatePipeline: gradient and working copy are of two different 16-bit types");
  Stopwatch const watch;
  tiers::Traffic const before = tiers_.traffic();
  Seconds compute{};  // of the serving thread alone
  ComputeLane lane{workers_};
  FirstError error;
  std::atomic<std::size_t> next = 0;

  auto const update = [&](state::Subgroup const& subgroup, tiers::Lease& lease) {
    Stopwatch const kernel;
    auto const begin = static_cast<std::size_t>(subgroup.begin);
    auto const size = static_cast<std::size_t>(subgroup.size);
    std::visit(
        [&]<class G, class W>(std::span<G const> gradients, std::span<W> copies) {
          if constexpr (have_kernel<G, W>) {
            update_subgroup(subgroup, lease.mutable_bytes(), gradients.subspan(begin, size),
                            copies.subspan(begin, size), step);
          }
        },
        gradient, copy);
    compute += kernel.elapsed();
  };
  auto const work = [&] {
    try {
      for (std::size_t i = next++; i < subgroups_.size() && !error.any(); i = next++) {
        state::Subgroup const& subgroup = subgroups_[i];
        tiers::Lease lease = tiers_.fetch(subgroup.index);
        lane.run([&] { update(subgroup, lease); });
        lease.commit();
      }
    } catch (...) {
      error.keep(std::current_exception());
    }
    lane.leave();
  };

  {
    std::vector<NamedThread> threads;
    threads.reserve(static_cast<std::size_t>(workers_));
    for (int worker = 0; worker < workers_; ++worker) {
      try {
        threads.emplace_back("update-" + std::to_string(worker), work);
      } catch (...) {  // no more threads are to be had: the others end, then the error goes on
        error.keep(std::current_exception());
        lane.leave();
      }
    }
    lane.serve();
  }
  error.rethrow();
  tiers::Traffic const after = tiers_.traffic();
  return {watch.elapsed(), compute, after.read_bytes - before.read_bytes,
          after.write_bytes - before.write_bytes};
}

}  // namespace offstage::update
