#include "train/step/mean_loss.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "base/error.hpp"
#include "base/units.hpp"
#include "train/step/step_numbers.hpp"

namespace offstage::train {

void require_target(data::Dataset const& data, std::int64_t windows, std::string const& name) {
  for (std::int64_t window = 0; window < windows; ++window) {
    if (data::counted_targets(data.batch({&window, 1})) > 0) {
      return;
    }
  }
  throw DataError{fmt::format("{}: no target of the first {} windows counts", name, windows)};
}

std::optional<MeanLoss> mean_loss(mpi::Communicator const& comm, data::Dataset const& data,
                                  std::int64_t windows, std::int64_t batch,
                                  LossCalls const& calls) {
  std::int64_t const micro_batches = ceil_div(windows, batch);
  std::vector<double> losses;
  std::int64_t counted = 0;
  std::vector<std::int64_t> chosen;
  calls.expect();
  bool is_wanted = true;
  for (std::int64_t first = 0; is_wanted && first < micro_batches; first += comm.size()) {
    if (first + comm.size() < micro_batches) {
      is_wanted = !calls.goes_on || calls.goes_on();
      if (is_wanted) {
        calls.expect();
      }
    }
    std::int64_t const mine = first + comm.rank();
    if (mine >= micro_batches) {
      calls.idle();
      continue;
    }
    chosen.resize(static_cast<std::size_t>(std::min(batch, windows - mine * batch)));
    std::iota(chosen.begin(), chosen.end(), mine * batch);
    auto tokens = data.batch(chosen);
    data::fill_up(tokens, batch);
    counted += data::counted_targets(tokens);
    losses.push_back(calls.evaluate(tokens));
  }
  if (!is_wanted) {
    return std::nullopt;
  }
  counted = comm.sum(counted);
  auto const targets = static_cast<double>(micro_batches * batch * data.sequence());
  return MeanLoss{mean_in_order(comm, losses, {micro_batches, comm.size()}) * targets /
                      static_cast<double>(counted),
                  counted};
}

}  // namespace offstage::train
