#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/stopwatch.hpp"
#include "base/thread.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "tiers/spill_directory.hpp"
#include "tiers/spill_file.hpp"
#include "tiers/storage_path.hpp"

namespace offstage::tiers {
namespace {

/// One part in so many of what is free: the rest is for whoever else writes there.
constexpr Bytes free_share = 2;

/// So that blocks at the wrong place, or never written, are told from the right ones: the first
/// word of each block says where it belongs. Cheap beside the transfer, and not timed.
void stamp(std::span<std::byte> bytes, Bytes offset) {
  for (Bytes at = 0; at < std::ssize(bytes); at += aio::direct_alignment) {
    Bytes const place = ~(offset + at);
    std::memcpy(bytes.data() + at, &place, sizeof(place));
  }
}

void check_stamps(std::span<std::byte const> bytes, Bytes offset) {
  for (Bytes at = 0; at < std::ssize(bytes); at += aio::direct_alignment) {
    Bytes place{};
    std::memcpy(&place, bytes.data() + at, sizeof(place));
    if (place != ~(offset + at)) {
      throw IoError{fmt::format("what was read at byte {} is not what was written", offset + at)};
    }
  }
}

/// One thread's part of the file.
struct Part {
  memory::HugeBuffer memory;
  Bytes begin{};
  Bytes size{};     ///< a multiple of the memory's
  Bytes written{};  ///< likewise
};

/// Moves pieces of a part until `most` bytes or the time are used up; how many bytes.
template <class Move>
Bytes repeat(Part const& part, Bytes most, Seconds time, Move const& move) {
  Stopwatch const watch;
  Bytes moved = 0;
  do {
    move(part.memory.bytes(), part.begin + moved);
    moved += part.memory.size();
  } while (moved < most && watch.elapsed() < time);
  return moved;
}

/// Runs `work` on all parts at the same time. Throws the first part's error.
template <class Work>
void at_once(std::vector<Part>& parts, Work const& work) {
  std::vector<std::exception_ptr> errors(parts.size());
  {
    std::vector<NamedThread> threads;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      threads.emplace_back("measure", [&, i] {
        try {
          work(parts[i]);
        } catch (...) {
          errors[i] = std::current_exception();
        }
      });
    }
  }
  for (std::exception_ptr const& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
}

/// Of the whole path, see StoragePath::rate.
double rate_between(DirectionTraffic const& before, DirectionTraffic const& after, int transfers) {
  return transfers * static_cast<double>(after.bytes - before.bytes) /
         std::max(1e-9, (after.seconds - before.seconds).count());
}

}  // namespace

plan::PathRate measure_rates(StoragePath& path, std::string const& spill, Measure const& measure) {
  PathSettings const& settings = path.settings();
  // As many requests as the path has in flight in the run, twice, so that they overlap.
  Bytes const full = std::min<Bytes>(
      path_turn_bytes, 2 * settings.engine.request_bytes * settings.engine.queue_depth);
  require_space(settings.directory, 0);
  Bytes const most = std::min(measure.most, aio::free_bytes(settings.directory) / free_share);
  Bytes const per_transfer = most / settings.transfers();
  Bytes const wished = std::min(per_transfer, measure.memory / settings.transfers());
  Bytes const piece = std::clamp(wished / aio::direct_alignment * aio::direct_alignment,
                                 aio::direct_alignment, full);
  Bytes const part_bytes = std::max<Bytes>(1, per_transfer / piece) * piece;
  SpillFile const file =
      make_spill_file(settings.directory, spill, part_bytes * settings.transfers());
  if (!file.direct() && !lies_in_memory(settings.directory)) {
    log::warning(
        "{}: its file system takes no O_DIRECT, so that data passes through the page cache; "
        "the rates that are measured there are the memory's in part",
        settings.directory);
  }
  try {
    std::vector<Part> parts;
    parts.reserve(static_cast<std::size_t>(settings.transfers()));
    for (int i = 0; i < settings.transfers(); ++i) {
      parts.push_back({memory::HugeBuffer{piece}, i * part_bytes, part_bytes});
    }
    PathTraffic const before = path.traffic();
    at_once(parts, [&](Part& part) {
      part.written =
          repeat(part, part.size, measure.time, [&](std::span<std::byte> bytes, Bytes offset) {
            stamp(bytes, offset);
            path.write(file, bytes, offset);
          });
    });
    at_once(parts, [&](Part const& part) {
      repeat(part, part.written, measure.time, [&](std::span<std::byte> bytes, Bytes offset) {
        path.read(file, bytes, offset);
        check_stamps(bytes, offset);
      });
    });
    PathTraffic const after = path.traffic();
    return {rate_between(before.read, after.read, settings.transfers()),
            rate_between(before.write, after.write, settings.transfers()),
            settings.duplex == Duplex::full};
  } catch (IoError const& error) {
    throw IoError{fmt::format("tiers.path = {}: its rates cannot be measured: {}",
                              settings.directory, error.what())};
  }
}

}  // namespace offstage::tiers
