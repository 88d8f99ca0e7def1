#include "checkpoint/removal.hpp"

#include <exception>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/watch.hpp"
#include "checkpoint/directory.hpp"

namespace offstage::checkpoint {
namespace {

void remove_all(std::vector<std::string> const& step_directories) {
  for (std::string const& path : step_directories) {
    Waiting const busy{"the removal of an old checkpoint"};
    try {
      remove_checkpoint(path);
    } catch (std::exception const& error) {
      log::warning("an old checkpoint stays: {}", error.what());
    }
  }
}

}  // namespace

void Removal::begin(std::vector<std::string> const& step_directories) {
  wait();
  if (step_directories.empty()) {
    return;
  }
  auto const work = [this, step_directories] {
    remove_all(step_directories);
    done_ = true;
  };
  done_ = false;
  try {
    thread_.emplace("removal", work);
  } catch (IoError const&) {
    work();
  }
}

void Removal::wait() noexcept {
  if (thread_) {
    Waiting const waiting{"old checkpoints to be removed"};
    thread_.reset();
  }
}

}  // namespace offstage::checkpoint
