#include "train/saves/checkpoint_space.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/error.hpp"
#include "base/log.hpp"
#include "checkpoint/retention.hpp"
#include "platform/aio/file.hpp"

namespace offstage::train {

Bytes make_room(std::string const& directory, std::int64_t count, Bytes each) {
  if (aio::free_bytes(directory) / each < count) {
    checkpoint::remove_unfinished(directory);
  }
  return aio::free_bytes(directory);
}

void require_space(config::RunConfig const& config, mpi::Communicator const& comm, Bytes mine) {
  Bytes const needed = comm.sum(mine);
  mpi::agree(comm, [&] {
    if (comm.rank() != 0) {
      return;
    }
    Bytes const free = make_room(config.checkpoint.dir, 1, needed);
    if (free < needed) {
      throw IoError{
          fmt::format("checkpoint.dir={}: a checkpoint takes {}, but {} is free there; make room "
                      "or set another checkpoint.dir",
                      config.checkpoint.dir, format_bytes(needed), format_bytes(free))};
    }
  });
}

void look_at_space_to_come(config::RunConfig const& config, mpi::Communicator const& comm,
                           Bytes mine, checkpoint::Store const& store, std::int64_t step) {
  Bytes const each = comm.sum(mine);
  mpi::agree(comm, [&] {
    if (comm.rank() == 0 && config.checkpoint.saves_on_the_way()) {
      std::int64_t const more = store.most_to_come(step, config.train.steps);
      look_at_space(config, more, each, make_room(config.checkpoint.dir, more, each));
    }
  });
}

void look_at_space(config::RunConfig const& config, std::int64_t more, Bytes each, Bytes free) {
  if (free / each >= more) {
    return;
  }
  config::CheckpointConfig const& checkpoint = config.checkpoint;
  std::string const kept = checkpoint.keep_every > 0
                               ? fmt::format(", checkpoint.keep-every={}", checkpoint.keep_every)
                               : "";
  std::string const shortage = fmt::format(
      "checkpoint.dir={}: up to {} more checkpoints of {} each will be there at a time "
      "(checkpoint.keep={}{}, and the one being written), but {} is free",
      checkpoint.dir, more, format_bytes(each), checkpoint.keep, kept, format_bytes(free));
  if (std::ranges::any_of(config.paths, &tiers::PathSettings::persistent)) {
    throw IoError{shortage +
                  ", and the slots of a persistent tiers.path are taken from it between two saves; "
                  "make room, keep fewer, or leave persistent out"};
  }
  log::warning("{}; a later save may end the run with 74", shortage);
}

}  // namespace offstage::train
