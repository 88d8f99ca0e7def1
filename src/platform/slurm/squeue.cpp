#include "platform/slurm/squeue.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/printable.hpp"
#include "base/stopwatch.hpp"
#include "base/text.hpp"

namespace offstage::slurm {
namespace {

/// More than any answer: an array has a line for each task. A program that writes on is cut off.
constexpr std::size_t longest_answer = std::size_t{1} << 20;
/// Of an answer that makes no sense.
constexpr std::size_t longest_quote = 200;

std::string text_of(int error_number) {
  return std::generic_category().message(error_number);
}

/// Both ends of a pipe, closed at the end.
class Pipe {
 public:
  Pipe() : good_{pipe2(ends_.data(), O_CLOEXEC) == 0} {}
  ~Pipe() {
    close_writer();
    if (good_) {
      close(ends_[0]);
    }
  }
  Pipe(Pipe const&) = delete;
  Pipe& operator=(Pipe const&) = delete;

  [[nodiscard]] bool good() const { return good_; }
  [[nodiscard]] int reader() const { return ends_[0]; }
  [[nodiscard]] int writer() const { return ends_[1]; }
  void close_writer() {
    if (good_ && ends_[1] >= 0) {
      close(ends_[1]);
      ends_[1] = -1;
    }
  }

 private:
  std::array<int, 2> ends_{-1, -1};
  bool good_;
};

/// This process's environment, but with times in UTC and in the one form that parse_time reads.
std::vector<std::string> utc_environment() {
  std::vector<std::string> variables{"TZ=UTC0", "SLURM_TIME_FORMAT=standard", "LC_ALL=C"};
  for (char** each = environ; each != nullptr && *each != nullptr; ++each) {
    std::string_view const variable{*each};
    if (!variable.starts_with("TZ=") && !variable.starts_with("SLURM_TIME_FORMAT=") &&
        !variable.starts_with("LC_ALL=") && !variable.starts_with("SQUEUE_")) {
      variables.emplace_back(variable);
    }
  }
  return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) {
    pointers.push_back(text.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

/// The child's process id; 0 with errno set if it was not made.
pid_t spawn(std::string const& program, std::string const& job_id, int output) {
  std::vector<std::string> words{program, "-h", "-j", job_id, "-o", "%A %e"};
  auto variables = utc_environment();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
  pid_t child{};
  int const error = posix_spawnp(&child, program.c_str(), &actions, nullptr,
                                 pointers_to(words).data(), pointers_to(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  errno = error;
  return error == 0 ? child : 0;
}

/// Reads until the other end is closed; false if that took longer than `patience`.
bool read_all(int descriptor, Seconds patience, std::string& text) {
  Stopwatch const watch;
  while (text.size() < longest_answer) {
    Seconds const left = patience - watch.elapsed();
    pollfd wanted{descriptor, POLLIN, 0};
    int const ready =
        left.count() > 0.0 ? poll(&wanted, 1, static_cast<int>(left.count() * 1e3) + 1) : 0;
    if (ready == 0) {
      return false;
    }
    if (ready < 0) {
      continue;  // a signal; the time goes on
    }
    std::array<char, 4096> piece{};
    auto const size = read(descriptor, piece.data(), piece.size());
    if (size == 0) {
      return true;
    }
    if (size > 0) {
      text.append(piece.data(), static_cast<std::size_t>(size));
    }
  }
  return true;
}

/// What a program wrote, as part of a line.
std::string one_line(std::string text) {
  while (!text.empty() && text.back() == '\n') {
    text.pop_back();
  }
  return printable(text, longest_quote);
}

/// What stands behind the job's own id. The id may be an array's too, whose other tasks have lines,
/// and warnings come the same way.
std::string_view answer_for(std::string_view job_id, std::string_view text) {
  std::string_view found;
  while (!text.empty()) {
    std::string_view const line = take_until('\n', text);
    if (line.starts_with(job_id) && line.substr(job_id.size()).starts_with(' ')) {
      found = line.substr(job_id.size() + 1);
    }
  }
  return found;
}

bool means_no_limit(std::string_view text) {
  return text.starts_with("UNLIMITED") || text.starts_with("NONE");
}

}  // namespace

Answer ask_end_time(std::string const& job_id, Seconds patience, std::string const& program) {
  Pipe pipe;
  pid_t const child = pipe.good() ? spawn(program, job_id, pipe.writer()) : 0;
  if (child == 0) {
    return {std::nullopt, fmt::format("{} cannot be run: {}", program, text_of(errno))};
  }
  pipe.close_writer();
  std::string text;
  bool const ended = read_all(pipe.reader(), patience, text);
  kill(child, SIGKILL);  // it has nothing more to tell, whatever it does
  int status{};
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!ended) {
    return {std::nullopt,
            fmt::format("{} gave no answer within {}", program, format_duration(patience))};
  }
  std::string_view const answer = answer_for(job_id, text);
  if (auto const end = parse_time(answer)) {
    return {end, ""};
  }
  if (means_no_limit(answer)) {
    return {std::nullopt, "", true};
  }
  if (answer.starts_with("N/A")) {
    return {};
  }
  return {std::nullopt, fmt::format("{} said '{}'", program, one_line(text))};
}

}  // namespace offstage::slurm
