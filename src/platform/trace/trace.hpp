#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/units.hpp"

namespace offstage::trace {

using Clock = std::chrono::steady_clock;

/// One value of a counter row.
struct Sample {
  std::string_view series;
  std::int64_t value{};
};

/// Writes what happened when as a Chrome trace (JSON, for Perfetto and chrome://tracing): one
/// process per rank, one row per resource or pipeline slot, in the order of first use. Spans of a
/// row that overlap without nesting are drawn beside each other, as "row", "row (2)", ... Times are
/// the steady clock's, which the ranks of a node share, so that their files fit together; the
/// metadata event wall_clock says what the calendar showed when it read 0.
///
/// File:    replaced if it is there, but nothing else than a file is (base/regular_file.hpp).
///          Complete JSON after the destructor; without its end, which the format allows, if the
///          process was killed: it then lacks the last second or 64 KiB. It never exceeds
///          `most_bytes`: then no more is written, but for one event that says so.
/// Threads: any, at any time. Cost: about a microsecond per span; one in some hundreds also writes
///          64 KiB to the file, and others wait for it: no span inside a lock that other processes
///          want.
/// Errors:  open(), which the constructor calls unless told, throws IoError naming run.trace and
///          the path; the constructor throws PreconditionError for less than 4 KiB; a later write
///          that fails ends the trace after its last whole event, with one warning, never the run.
class Trace {
 public:
  /// When the file is made. `later`: by open(); spans before wait for it in memory, up to 1 MiB,
  /// and without it nothing is left behind.
  enum class Begin { now, later };
  static constexpr Bytes default_bytes = 64 * MiB;
  /// `rank` and `host` name the process in the picture.
  Trace(std::string const& path, int rank, std::string const& host,
        Bytes most_bytes = default_bytes, Begin begin = Begin::now);
  ~Trace();
  Trace(Trace const&) = delete;
  Trace& operator=(Trace const&) = delete;

  /// Makes the file, once.
  void open();
  /// Something on row `row` that took from `begin` to `end`; `key` and `bytes` below 0 are not
  /// shown.
  void span(std::string_view row, std::string_view name, Clock::time_point begin,
            Clock::time_point end, std::int64_t key = -1, Bytes bytes = -1) noexcept;
  /// The values of counter row `row` from `time` on, until the row's next. Each call names all of
  /// the row's series: viewers stack them, and take one that is missing for 0. Calls may come in
  /// any order of `time`.
  void counter(std::string_view row, Clock::time_point time,
               std::span<Sample const> values) noexcept;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

/// A span from construction to destruction, in the trace (null: none) and, in builds with CUDA, as
/// an NVTX range of this thread, which Nsight shows. `row` and `name` must outlive it.
class Scope {
 public:
  Scope(Trace* trace, std::string_view row, char const* name, std::int64_t key = -1,
        Bytes bytes = -1) noexcept;
  ~Scope();
  /// In the trace it has begun then.
  void since(Clock::time_point begin) noexcept { begin_ = begin; }
  Scope(Scope const&) = delete;
  Scope& operator=(Scope const&) = delete;

 private:
  Trace* trace_;
  std::string_view row_;
  char const* name_;
  std::int64_t key_;
  Bytes bytes_;
  Clock::time_point begin_;
};

}  // namespace offstage::trace
