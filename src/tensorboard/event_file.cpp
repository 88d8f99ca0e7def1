#include "tensorboard/event_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>

#include "base/error.hpp"
#include "base/log.hpp"

namespace offstage::tensorboard {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// A name in `directory` that nothing has: a run may start anew within the same process and second.
std::string free_name(std::string const& directory, std::string const& host) {
  namespace fs = std::filesystem;
  std::string path;
  for (int number = 0; path.empty() || fs::symlink_status(path).type() != fs::file_type::not_found;
       ++number) {
    path = (fs::path{directory} / fmt::format("events.out.tfevents.{:.0f}.{}.{}.{}",
                                              std::floor(now()), host, ::getpid(), number))
               .string();
  }
  return path;
}

}  // namespace

EventFile::EventFile(std::string const& directory, std::string const& host, std::int64_t step) {
  file_.emplace("run.tensorboard", free_name(directory, host), O_TRUNC);
  double const time = now();
  file_->write(framed(version_event(time)) + framed(start_event(time, step)));
}

void EventFile::write(std::int64_t step, std::span<Scalar const> scalars) {
  if (!file_) {
    return;
  }
  try {
    file_->write(framed(scalars_event(now(), step, scalars)));
  } catch (IoError const& error) {
    file_.reset();
    log::warning("{}; events for TensorBoard end here, the run goes on", error.what());
  }
}

}  // namespace offstage::tensorboard
