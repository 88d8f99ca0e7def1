#pragma once

#include <optional>
#include <string>

#include "base/units.hpp"
#include "platform/aio/engine.hpp"

namespace offstage::tiers {

/// Whether reads and writes share a path's bandwidth (half) or have each their own (full).
enum class Duplex { half, full };

/// A storage path that is slower than the directory behind it. Rates in bytes per second; 0: not
/// limited.
struct Emulation {
  double read_rate{};
  double write_rate{};
  Seconds latency{};  ///< latency of each transfer: the path moves nothing meanwhile
  Duplex duplex = Duplex::half;
  double stream_rate{};  ///< the most that one transfer reaches, whatever the path could move
  double sharing = 1.0;  ///< share of the rates that is left while several processes move at a time
};

/// One tiers.path as the user gave it.
struct PathSettings {
  std::string directory;
  double read_rate{};  ///< bytes per second; 0: measured
  double write_rate{};
  bool measured{};               ///< nobody gave them: this run has measured them
  Duplex duplex = Duplex::half;  ///< duplex of the emulation if there is one
  int processes = 1;             ///< processes that have it at a time, where they take turns
  int threads = 1;    ///< transfers of such a process at a time, each way if duplex is full
  Bytes endurance{};  ///< bytes that its drives are rated to take in their life; 0: not given
  bool persistent{};  ///< it outlives the job: its extents may become part of a checkpoint
  bool nearby{};      ///< checkpoint.local can have links to its files: a run finds that out
  aio::EngineSettings engine;
  std::optional<Emulation> emulation;

  [[nodiscard]] bool rates_known() const noexcept { return read_rate > 0.0 && write_rate > 0.0; }

  /// Transfers that one process has at a time, each way if duplex is full. The last requests of as
  /// many that came before may still be under way.
  [[nodiscard]] int transfers() const { return processes * threads; }
  /// In both directions together.
  [[nodiscard]] int transfers_at_once() const {
    return (duplex == Duplex::full ? 2 : 1) * transfers();
  }
  /// Contexts of asynchronous requests that all of those take, with their last requests.
  [[nodiscard]] int engines() const { return 2 * transfers_at_once(); }
};

/// Reads `DIR[,read=RATE,write=RATE,duplex=half|full,queue-depth=N,request-size=SIZE,processes=N,
/// threads=N,persistent,endurance=SIZE,emulate-read=RATE,emulate-write=RATE,emulate-latency=TIME,
/// emulate-duplex=half|full,emulate-stream=RATE,emulate-sharing=X]`.
/// A rate is a size with or without `/s`: `6.9GB/s`. With an emulation the emulated rates are the
/// path's, unless read= or write= say otherwise.
/// Errors: UsageError, without the key's name: what was read, the attribute and what would be
///         right: an attribute that is unknown (names the nearest) or comes twice, an empty
///         directory, a rate or size out of range (request-size: a multiple of 4096 up to 64 MiB;
///         queue-depth 1 to 1024; processes and threads 1 to 1024; endurance 1 GB or more; latency
///         up to 10 s; sharing 0.01 to 1).
[[nodiscard]] PathSettings parse_path(std::string const& text);

}  // namespace offstage::tiers
