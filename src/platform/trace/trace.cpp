#include "platform/trace/trace.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#ifdef OFFSTAGE_HAVE_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/regular_file.hpp"

namespace offstage::trace {
namespace {

constexpr Bytes flush_bytes = 64 * KiB;
constexpr Seconds flush_time{1.0};
// Kept free for the event that says that the trace is full, and for the end.
constexpr Bytes reserved_bytes = KiB;
constexpr Bytes least_bytes = 4 * KiB;
// Of a trace without a file; later spans are missing from it.
constexpr Bytes most_waiting_bytes = MiB;
// Of one row, drawn beside each other; more overlap than that is drawn wrong.
constexpr std::size_t most_tracks = 64;

using Nanoseconds = std::int64_t;

Nanoseconds nanoseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

/// The format counts in microseconds; a fraction keeps the nanoseconds.
std::string microseconds(Nanoseconds time) {
  return fmt::format("{}.{:03}", time / 1000, time % 1000);
}

/// As a JSON string in ASCII, whatever the bytes are.
std::string json_string(std::string_view text) {
  // Almost all names are plain, and the library takes microseconds.
  if (std::ranges::all_of(text,
                          [](char c) { return c >= ' ' && c < 127 && c != '"' && c != '\\'; })) {
    return fmt::format("\"{}\"", text);
  }
  return nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/true,
                                   nlohmann::json::error_handler_t::replace);
}

struct Interval {
  Nanoseconds begin{};
  Nanoseconds end{};
};

/// One line of the picture. Viewers draw spans of a line that are disjoint or nested, and drop
/// others.
class Track {
 public:
  explicit Track(int thread) : thread_{thread} {}

  [[nodiscard]] int thread() const noexcept { return thread_; }
  [[nodiscard]] bool fits(Interval span) const {
    return std::ranges::all_of(latest_, [span](Interval other) {
      bool const disjoint = span.begin >= other.end || span.end <= other.begin;
      bool const inside = span.begin >= other.begin && span.end <= other.end;
      bool const around = span.begin <= other.begin && span.end >= other.end;
      return disjoint || inside || around;
    });
  }
  void take(Interval span) {
    latest_[next_] = span;
    next_ = (next_ + 1) % latest_.size();
  }

 private:
  int thread_;
  std::array<Interval, 16> latest_{};
  std::size_t next_{};
};

struct Row {
  int order{};
  std::vector<Track> tracks;
};

/// Microseconds of the calendar when the steady clock read 0.
std::int64_t wall_clock_origin() {
  auto const wall = std::chrono::system_clock::now().time_since_epoch();
  auto const steady = Clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(wall - steady).count();
}

}  // namespace

/// Everything is guarded by `mutex_`.
class Trace::Implementation {
 public:
  Implementation(std::string path, int rank, std::string const& host, Bytes most_bytes)
      : path_{std::move(path)}, rank_{rank}, most_bytes_{most_bytes} {
    describe(host);
  }
  ~Implementation();
  Implementation(Implementation const&) = delete;
  Implementation& operator=(Implementation const&) = delete;

  void open();
  void span(std::string_view row, std::string_view name, Interval interval, std::int64_t key,
            Bytes bytes);
  void counter(std::string_view row, Nanoseconds time, std::span<Sample const> values);

 private:
  void describe(std::string const& host);
  [[nodiscard]] bool takes_more() const;
  void flush_if_due();
  [[nodiscard]] bool is_open() const { return descriptor_ >= 0; }
  [[nodiscard]] Track& track_of(std::string_view row, Interval interval);
  void add_metadata(char const* name, int thread, std::string const& arguments);
  void add(std::string const& event);
  void put(std::string const& event);
  void say_full();
  void flush();
  void fail(int error_number);
  /// 0, or the error after which the file ends with the last whole event before.
  [[nodiscard]] int write_pending();

  std::mutex mutex_;
  std::string path_;
  int rank_;
  Bytes most_bytes_;
  int descriptor_ = -1;
  std::string pending_;
  Bytes written_{};
  Clock::time_point flushed_ = Clock::now();
  bool full_{};
  bool failed_{};
  int threads_{};
  std::map<std::string, Row, std::less<>> rows_;
};

void Trace::Implementation::describe(std::string const& host) {
  auto const now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  auto const started = fmt::format("started {:%Y-%m-%dT%H:%M:%S}Z",
                                   fmt::gmtime(std::chrono::system_clock::to_time_t(now)));
  add_metadata("process_name", 0,
               fmt::format("\"name\":{}", json_string(fmt::format("rank {} on {}", rank_, host))));
  add_metadata("process_sort_index", 0, fmt::format("\"sort_index\":{}", rank_));
  add_metadata("process_labels", 0, fmt::format("\"labels\":{}", json_string(started)));
  add_metadata("wall_clock", 0,
               fmt::format("\"unix_microseconds_at_ts_0\":{}", wall_clock_origin()));
}

void Trace::Implementation::open() {
  std::scoped_lock const lock{mutex_};
  require(!is_open(), "a trace is opened once");
  descriptor_ = open_regular("run.trace: cannot open", path_, O_WRONLY | O_CREAT | O_TRUNC);
  if (int const error = write_pending(); error != 0) {
    ::close(std::exchange(descriptor_, -1));
    throw IoError{"run.trace: cannot write", path_, error};
  }
}

Trace::Implementation::~Implementation() {
  if (!is_open()) {
    return;
  }
  try {
    if (!failed_) {
      pending_ += "\n]\n";
      flush();
    }
    // Where NFS and quotas tell what they deferred.
    if (::close(std::exchange(descriptor_, -1)) != 0 && !failed_) {
      fail(errno);
    }
  } catch (std::exception const&) {
    // Out of memory: the trace lacks its end, which the format allows.
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
  }
}

void Trace::Implementation::span(std::string_view row, std::string_view name, Interval interval,
                                 std::int64_t key, Bytes bytes) {
  std::scoped_lock const lock{mutex_};
  if (!takes_more()) {
    return;
  }
  auto const thread = track_of(row, interval).thread();
  auto event = fmt::format(R"({{"name":{},"ph":"X","ts":{},"dur":{},"pid":{},"tid":{})",
                           json_string(name), microseconds(interval.begin),
                           microseconds(interval.end - interval.begin), rank_, thread);
  if (key >= 0 && bytes >= 0) {
    fmt::format_to(std::back_inserter(event), R"(,"args":{{"key":{},"bytes":{}}})", key, bytes);
  } else if (key >= 0) {
    fmt::format_to(std::back_inserter(event), R"(,"args":{{"key":{}}})", key);
  } else if (bytes >= 0) {
    fmt::format_to(std::back_inserter(event), R"(,"args":{{"bytes":{}}})", bytes);
  }
  event += '}';
  add(event);
  flush_if_due();
}

void Trace::Implementation::counter(std::string_view row, Nanoseconds time,
                                    std::span<Sample const> values) {
  std::scoped_lock const lock{mutex_};
  if (!takes_more()) {
    return;
  }
  auto event = fmt::format(R"({{"name":{},"ph":"C","ts":{},"pid":{},"tid":0,"args":{{)",
                           json_string(row), microseconds(time), rank_);
  char const* between = "";
  for (Sample const& each : values) {
    fmt::format_to(std::back_inserter(event), "{}{}:{}", std::exchange(between, ","),
                   json_string(each.series), each.value);
  }
  event += "}}";
  add(event);
  flush_if_due();
}

bool Trace::Implementation::takes_more() const {
  return !full_ && !failed_ && (is_open() || std::ssize(pending_) < most_waiting_bytes);
}

void Trace::Implementation::flush_if_due() {
  if (full_ || std::ssize(pending_) >= flush_bytes || Clock::now() - flushed_ >= flush_time) {
    flush();
  }
}

Track& Trace::Implementation::track_of(std::string_view row, Interval interval) {
  auto found = rows_.find(row);
  if (found == rows_.end()) {
    found = rows_.emplace(row, Row{.order = static_cast<int>(rows_.size()), .tracks = {}}).first;
  }
  auto& tracks = found->second.tracks;
  auto track =
      std::ranges::find_if(tracks, [interval](Track const& each) { return each.fits(interval); });
  if (track == tracks.end() && tracks.size() < most_tracks) {
    tracks.emplace_back(++threads_);
    track = std::prev(tracks.end());
    auto const number = tracks.size();
    add_metadata(
        "thread_name", threads_,
        fmt::format("\"name\":{}", json_string(number == 1 ? std::string{row}
                                                           : fmt::format("{} ({})", row, number))));
    add_metadata(
        "thread_sort_index", threads_,
        fmt::format("\"sort_index\":{}", found->second.order * static_cast<int>(most_tracks) +
                                             static_cast<int>(number)));
  } else if (track == tracks.end()) {
    track = std::prev(tracks.end());
  }
  track->take(interval);
  return *track;
}

void Trace::Implementation::add_metadata(char const* name, int thread,
                                         std::string const& arguments) {
  add(fmt::format(R"({{"name":"{}","ph":"M","pid":{},"tid":{},"args":{{{}}}}})", name, rank_,
                  thread, arguments));
}

void Trace::Implementation::add(std::string const& event) {
  if (full_) {
    return;
  }
  Bytes const size = written_ + std::ssize(pending_) + std::ssize(event) + 2;
  if (size + reserved_bytes > most_bytes_) {
    say_full();
  } else {
    put(event);
  }
}

void Trace::Implementation::put(std::string const& event) {
  pending_ += written_ == 0 && pending_.empty() ? "[\n" : ",\n";
  pending_ += event;
}

void Trace::Implementation::say_full() {
  put(fmt::format(
      R"({{"name":"the trace ends here: {} are full","ph":"i","s":"p","ts":{},"pid":{},"tid":0}})",
      format_bytes(most_bytes_), microseconds(nanoseconds(Clock::now())), rank_));
  full_ = true;
}

void Trace::Implementation::flush() {
  if (!is_open()) {
    return;
  }
  flushed_ = Clock::now();
  if (int const error = write_pending(); error != 0) {
    fail(error);
  }
}

void Trace::Implementation::fail(int error_number) {
  failed_ = true;
  pending_ = {};
  log::warning("run.trace: cannot write {}: {}; the trace ends here, the run goes on", path_,
               std::generic_category().message(error_number));
}

int Trace::Implementation::write_pending() {
  if (write_fully(descriptor_, pending_) < std::ssize(pending_)) {
    int const error = errno;
    // Half an event would make the file unreadable. If this fails too, so it is.
    [[maybe_unused]] int const ignored = ::ftruncate(descriptor_, written_);
    return error;
  }
  written_ += std::ssize(pending_);
  pending_.clear();
  return 0;
}

Trace::Trace(std::string const& path, int rank, std::string const& host, Bytes most_bytes,
             Begin begin) {
  require(most_bytes >= least_bytes, "a trace has room for 4 KiB at least");
  implementation_ = std::make_unique<Implementation>(path, rank, host, most_bytes);
  if (begin == Begin::now) {
    open();
  }
}

void Trace::open() {
  implementation_->open();
}

Trace::~Trace() = default;

void Trace::span(std::string_view row, std::string_view name, Clock::time_point begin,
                 Clock::time_point end, std::int64_t key, Bytes bytes) noexcept {
  try {
    implementation_->span(row, name, {nanoseconds(begin), nanoseconds(std::max(begin, end))}, key,
                          bytes);
  } catch (std::exception const&) {
    // Out of memory: this span is missing from the picture.
    return;
  }
}

void Trace::counter(std::string_view row, Clock::time_point time,
                    std::span<Sample const> values) noexcept {
  try {
    implementation_->counter(row, nanoseconds(time), values);
  } catch (std::exception const&) {
    // Out of memory: likewise.
    return;
  }
}

Scope::Scope(Trace* trace, std::string_view row, char const* name, std::int64_t key,
             Bytes bytes) noexcept
    : trace_{trace}, row_{row}, name_{name}, key_{key}, bytes_{bytes} {
#ifdef OFFSTAGE_HAVE_CUDA
  nvtxEventAttributes_t range{};
  range.version = NVTX_VERSION;
  range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  range.messageType = NVTX_MESSAGE_TYPE_ASCII;
  range.message.ascii = name;
  if (key >= 0) {
    range.payloadType = NVTX_PAYLOAD_TYPE_INT64;
    range.payload.llValue = key;
  }
  nvtxRangePushEx(&range);
#endif
  if (trace_ != nullptr) {
    begin_ = Clock::now();
  }
}

Scope::~Scope() {
  if (trace_ != nullptr) {
    trace_->span(row_, name_, begin_, Clock::now(), key_, bytes_);
  }
#ifdef OFFSTAGE_HAVE_CUDA
  nvtxRangePop();
#endif
}

}  // namespace offstage::trace
