#include "train/step/mean_loss.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <vector>

#include "base/error.hpp"
#include "train/step/step_numbers.hpp"
#include "update/gradients/block_rounds.hpp"

namespace offstage::train {
namespace {

/// Windows of one source that are computed together.
struct MicroBatch {
  std::size_t source{};
  std::int64_t first{};
  std::int64_t windows{};
};

/// The first windows of a source, from `begin` to `end`.
struct FirstWindows {
  std::size_t source{};
  std::int64_t begin{}, end{};
};

/// The windows that make `windows` together (spread_windows).
std::vector<FirstWindows> first_windows(data::Dataset const& data, std::int64_t windows) {
  std::vector<std::int64_t> sizes;
  std::vector<FirstWindows> first;
  std::int64_t begin = 0;
  for (data::SourceWindows const& source : data.sources()) {
    first.push_back({first.size(), begin, begin});
    sizes.push_back(source.end - begin);
    begin = source.end;
  }
  auto const spread = data::spread_windows(windows, sizes);
  for (FirstWindows& each : first) {
    each.end += spread[each.source];
  }
  return first;
}

std::vector<MicroBatch> micro_batches_of(data::Dataset const& data, std::int64_t windows,
                                         std::int64_t batch) {
  require(windows >= 1, "mean_loss: some windows");
  std::vector<MicroBatch> dealt;
  for (auto const& [source, begin, end] : first_windows(data, windows)) {
    for (std::int64_t first = begin; first < end; first += dealt.back().windows) {
      dealt.push_back({source, first, std::min(batch, end - first)});
    }
  }
  return dealt;
}

}  // namespace

void require_target(data::Dataset const& data, std::int64_t windows, std::string const& name) {
  for (auto const& [source, begin, end] : first_windows(data, windows)) {
    for (std::int64_t window = begin; window < end; ++window) {
      if (data::counted_targets(data.batch({&window, 1})) > 0) {
        return;
      }
    }
  }
  throw DataError{fmt::format("{}: no target of the first {} windows counts", name, windows)};
}

std::optional<MeanLosses> mean_loss(mpi::Communicator const& comm, data::Dataset const& data,
                                    std::int64_t windows, std::int64_t batch,
                                    LossCalls const& calls) {
  auto const dealt = micro_batches_of(data, windows, batch);
  auto const micro_batches = std::ssize(dealt);
  std::vector<double> losses;
  std::vector<double> counted;
  std::vector<std::int64_t> chosen;
  calls.expect();
  bool is_wanted = true;
  for (std::int64_t first = 0; is_wanted && first < micro_batches; first += comm.size()) {
    if (first + comm.size() < micro_batches) {
      is_wanted = !calls.still_wanted || calls.still_wanted();
      if (is_wanted) {
        calls.expect();
      }
    }
    std::int64_t const mine = first + comm.rank();
    if (mine >= micro_batches) {
      calls.idle();
      continue;
    }
    MicroBatch const& micro_batch = dealt[static_cast<std::size_t>(mine)];
    chosen.resize(static_cast<std::size_t>(micro_batch.windows));
    std::iota(chosen.begin(), chosen.end(), micro_batch.first);
    auto tokens = data.batch(chosen);
    data::fill_up(tokens, batch);
    counted.push_back(static_cast<double>(data::counted_targets(tokens)));
    losses.push_back(calls.evaluate(tokens));
  }
  if (!is_wanted) {
    return std::nullopt;
  }
  update::BlockRounds const rounds{micro_batches, comm.size()};
  auto const all_losses = all_in_order(comm, losses, rounds);
  auto const all_counted = all_in_order(comm, counted, rounds);
  auto const targets = static_cast<double>(batch * data.sequence());
  auto const mean_of = [&](auto const& belongs) {
    double loss = 0.0;
    double count = 0.0;
    for (std::size_t g = 0; g < dealt.size(); ++g) {
      if (belongs(dealt[g])) {
        loss += all_losses[g];
        count += all_counted[g];
      }
    }
    return MeanLoss{count > 0.0 ? loss * targets / count : std::numeric_limits<double>::quiet_NaN(),
                    static_cast<std::int64_t>(count)};
  };
  MeanLosses result{.all = mean_of([](MicroBatch const&) { return true; }), .sources = {}};
  for (std::size_t i = 0; i < data.sources().size(); ++i) {
    auto const belongs = [&](MicroBatch const& micro_batch) { return micro_batch.source == i; };
    if (std::ranges::any_of(dealt, belongs)) {
      result.sources.push_back({data.sources()[i].path, mean_of(belongs)});
    }
  }
  return result;
}

}  // namespace offstage::train
