#include "train/saves/resume.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "base/log.hpp"
#include "base/printable.hpp"
#include "base/regular_file.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/listing.hpp"
#include "convert/convert.hpp"
#include "train/saves/continuation.hpp"
#include "train/step/schedule.hpp"

namespace offstage::train {

std::string settle_resume(config::CheckpointConfig const& checkpoint,
                          mpi::Communicator const& comm) {
  std::string settled = checkpoint.resume;
  mpi::agree(comm, [&] {
    if (comm.rank() != 0 || settled == "auto" || settled == "none") {
      return;
    }
    bool const is_own = std::ranges::any_of(
        std::array{settled, settled + "/checkpoints"}, [&](std::string const& place) {
          return is_directory(place) && is_directory(checkpoint.dir) &&
                 lead_to_one(place, checkpoint.dir) &&
                 checkpoint::newest_complete(place, checkpoint::Warn::no).has_value();
        });
    settled = is_own ? "auto" : convert::resolve_checkpoint(settled, checkpoint::Warn::yes);
  });
  return comm.broadcast(std::move(settled), 0);
}

std::string named_checkpoint(config::CheckpointConfig const& checkpoint) {
  std::string const& resume = checkpoint.resume;
  return resume == "auto" || resume == "none" ? std::string{} : resume;
}

bool begins_at_own_checkpoint(config::CheckpointConfig const& checkpoint) {
  if (checkpoint.resume == "auto") {
    return true;
  }
  std::filesystem::path const step{checkpoint::canonical(checkpoint.resume)};
  return lead_to_one(step.parent_path().string(), checkpoint.dir);
}

namespace {

/// A program's text about itself in two parts: its name, "offstage 0.1.0 (commit 1234, ...", and
/// behind "; " the means that the bits depend on too, "2 threads, AVX-512, ...)".
struct Program {
  explicit Program(std::string_view text)
      : name{text.substr(0, text.find("; "))},
        means{text.substr(std::min(text.size(), name.size() + 2))} {
    means.remove_suffix(means.ends_with(')') ? 1 : 0);
  }
  std::string_view name, means;
};

std::string describe_change(std::string const& then, std::string const& now) {
  constexpr auto remark = "the bits may be others";
  Program const before{then};
  Program const after{now};
  if (before.name != after.name || before.means.empty() || after.means.empty()) {
    return fmt::format("the checkpoint is of {}, and this is {}: {} than by one program",
                       printable(then), now, remark);
  }
  return fmt::format("the checkpoint was computed by {}, and this start computes by {}: {}",
                     printable(before.means), after.means, remark);
}

}  // namespace

void say_what_changed(checkpoint::Meta const& checkpoint, config::RunConfig const& config,
                      std::vector<config::Setting> const& settings, std::string const& program) {
  if (!checkpoint.program.empty() && checkpoint.program != program) {
    log::info("{}", describe_change(checkpoint.program, program));
  }
  for (std::string const& line : describe_changes(checkpoint.configuration, settings)) {
    log::info("{}", line);
  }
  for (std::string const& warning :
       {warning_of_start(checkpoint.configuration, settings),
        warning_of_order(checkpoint.configuration, settings),
        warning_of_other_run(checkpoint.configuration, settings),
        warning_of_skips(checkpoint.configuration, config, checkpoint.step),
        warning_of_warmup(checkpoint.configuration, config, checkpoint.step),
        advice_on_rate(config.optimizer, config.train.steps, checkpoint.step,
                       checkpoint.learning_rate)}) {
    if (!warning.empty()) {
      log::warning("{}", warning);
    }
  }
}

}  // namespace offstage::train
