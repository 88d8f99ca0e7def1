#include "tensorboard/event_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"

namespace offstage::tensorboard {
namespace {

namespace fs = std::filesystem;

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// The second for the next name in `directory`: now, or the one behind that of all names there. An
/// earlier start may have been in the same second, or on a node whose clock was ahead.
std::int64_t next_second(std::string const& directory) {
  constexpr std::string_view prefix = "events.out.tfevents.";
  constexpr std::int64_t largest = 9'999'999'999;  // ten digits
  auto second = static_cast<std::int64_t>(now());
  std::error_code error;
  for (fs::directory_iterator it{directory, error}, end; !error && it != end; it.increment(error)) {
    std::string const name = it->path().filename().string();
    if (name.starts_with(prefix)) {
      std::string_view rest = std::string_view{name}.substr(prefix.size());
      auto const taken = number_in<std::int64_t>(take_until('.', rest));
      if (taken && *taken >= second && *taken < largest) {
        second = *taken + 1;
      }
    }
  }
  return second;
}

/// A name in `directory` that nothing has and that comes behind those of earlier starts.
std::string free_name(std::string const& directory, std::string const& host) {
  std::int64_t const second = next_second(directory);
  std::string path;
  for (int number = 0; path.empty() || fs::symlink_status(path).type() != fs::file_type::not_found;
       ++number) {
    path = (fs::path{directory} /
            fmt::format("events.out.tfevents.{:010}.{}.{}.{}", second, host, ::getpid(), number))
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
