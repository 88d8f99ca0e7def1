#include "checkpoint/retention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ranges>

#include "base/error.hpp"
#include "base/log.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/inspect.hpp"
#include "platform/aio/file.hpp"

namespace offstage::checkpoint {

void set_aside(std::string const& directory, std::string const& name) {
  std::string const path = directory + "/" + name;
  if (!size_of(path)) {
    return;
  }
  std::string const wanted = fmt::format("{}/passed-over-{}", directory, name);
  std::string target = wanted;
  for (int count = 2; size_of(target); ++count) {
    target = fmt::format("{}.{}", wanted, count);
  }
  if (std::rename(path.c_str(), target.c_str()) != 0) {
    throw IoError{"cannot rename to", target, errno};
  }
  aio::sync_directory(directory);
  log::warning("checkpoint {} was passed over and is now {}; remove it if you do not want it", path,
               target);
}

void prune(std::string const& directory, Retention const& retention, std::int64_t saved,
           std::vector<std::string> const& spared) {
  using State = Inspection::State;
  std::string const newest = canonical(directory + "/" + step_name(saved));
  // The one just saved is the first, even where another run left newer ones.
  int kept = retention.keeps_for_good(saved) ? 0 : 1;
  for (StepDirectory const& found : std::views::reverse(step_directories(directory))) {
    std::string const path = canonical(found.path);
    if (path == newest || std::ranges::find(spared, path) != spared.end()) {
      continue;
    }
    State const state = inspect(found.path).state;
    bool const broken = state == State::unfinished || state == State::incomplete;
    bool const surplus = state == State::complete && !retention.keeps_for_good(found.step) &&
                         ++kept > retention.keep;
    if (surplus || (broken && found.step < saved)) {
      remove_checkpoint(found.path);
    }
  }
}

}  // namespace offstage::checkpoint
