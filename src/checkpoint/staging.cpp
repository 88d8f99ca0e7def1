#include "checkpoint/staging.hpp"

#include <utility>

#include "base/stopwatch.hpp"
#include "base/team.hpp"
#include "base/watch.hpp"

namespace offstage::checkpoint {

Staging::Staging(int threads, std::string step_directory, int rank, int ranks, StateLayout layout,
                 std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers,
                 SplitParameters const* split)
    : thread_{"save", [this, threads, directory = std::move(step_directory), rank, ranks,
                       layout = std::move(layout), &subgroups, &tiers, split] {
                Stopwatch const watch;
                try {
                  set_team_size(threads);
                  written_ = write_rank_file(directory, rank, ranks, layout, subgroups, tiers,
                                             &given_up_, split);
                } catch (...) {
                  error_ = std::current_exception();
                }
                seconds_ = watch.elapsed();
              }} {}

Staging::~Staging() {
  given_up_ = true;
  Waiting const waiting{"the thread of a save that is given up"};
  thread_.join();
}

RankFiles Staging::finish() {
  Waiting const waiting{"the rank file of a checkpoint, on its thread"};
  thread_.join();
  if (error_) {
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
  return std::move(written_);
}

}  // namespace offstage::checkpoint
