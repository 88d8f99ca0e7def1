#include "tiers/storage_path.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/stopwatch.hpp"
#include "base/watch.hpp"

namespace offstage::tiers {
namespace {

// Less than this in a step says too little about a path.
constexpr Bytes least_followed_bytes = 8 * MiB;
// How much of a new rate is what was found since the last one.
constexpr double smoothing = 0.5;
// How often who lets others pass looks for them.
constexpr std::chrono::microseconds look{500};

/// Counts whoever is in a hurry, from construction to destruction.
class Counted {
 public:
  explicit Counted(std::atomic<std::uint32_t>& count) noexcept : count_{count} { ++count_; }
  ~Counted() { --count_; }
  Counted(Counted const&) = delete;
  Counted& operator=(Counted const&) = delete;

 private:
  std::atomic<std::uint32_t>& count_;
};

void let_pass(std::atomic<std::uint32_t> const& others, LetsPass const& lets_pass) {
  Waiting const waiting{"others on the storage path, which go before a save"};
  while (others != 0 && lets_pass()) {
    std::this_thread::sleep_for(look);
  }
}

/// A transfer on an emulated path, from construction to destruction.
struct Booking {
  Booking(Throttle& owner, aio::Direction direction, Bytes bytes)
      : throttle{owner}, end{owner.book(direction, bytes)} {}
  ~Booking() { throttle.end(); }
  Booking(Booking const&) = delete;
  Booking& operator=(Booking const&) = delete;
  Throttle& throttle;
  Throttle::Clock::time_point end;  ///< no sooner than then
};

void move(aio::Engine& engine, aio::Direction direction, aio::File const& file,
          std::span<std::byte> memory, Bytes offset, aio::Engine::OnLast const& on_last) {
  if (direction == aio::Direction::read) {
    engine.read(file, memory, offset, on_last);
  } else {
    engine.write(file, memory, offset, on_last);
  }
}

}  // namespace

/// Lets transfers of this process in, in order of arrival, and with a lock those of so many
/// processes of the node at a time. Each has an engine.
class StoragePath::Admission {
 public:
  Admission(PathSettings const& settings, NodeLockState* state,
            std::shared_ptr<aio::Kernel> const& kernel)
      : threads_{settings.threads}, most_turns_{settings.processes} {
    auto const count = static_cast<std::size_t>(2 * settings.transfers());
    engines_.reserve(count);
    free_.reserve(count);
    turns_.reserve(count);
    // Now: made at its first use, one that the system refuses would look like a path that fails.
    for (std::size_t i = 0; i < count; ++i) {
      engines_.push_back(make_engine(settings, kernel));
      free_.push_back(count - 1 - i);
    }
    if (state != nullptr) {
      node_.emplace(*state, settings.processes);
    }
  }

 private:
  /// One turn of the path: from the first transfer in it to the end of the last.
  struct Turn {
    bool is_held = false;  ///< the node's lock is taken
    int inside = 0;        ///< transfers that have not ended
    int ending = 0;        ///< of those, the ones whose last requests are under way
    int begun = 0;         ///< in all
  };

 public:
  /// A place inside, from construction to destruction.
  class Place {
   public:
    explicit Place(Admission& admission) : admission_{admission} { admission.enter(*this); }
    ~Place() { admission_.leave(*this); }
    Place(Place const&) = delete;
    Place& operator=(Place const&) = delete;

    [[nodiscard]] aio::Engine& engine() const noexcept { return *admission_.engines_[engine_]; }
    /// The last requests are under way: the next transfer may begin. Returns whether one waits for
    /// that, of this process or of another.
    bool hand_on() noexcept { return admission_.hand_on(*this); }

   private:
    friend class Admission;
    Admission& admission_;
    std::size_t engine_{};
    std::shared_ptr<Turn> turn_;
    bool is_ending_ = false;
  };

 private:
  void enter(Place& place) {
    auto fresh = std::make_shared<Turn>();
    std::unique_lock lock{mutex_};
    std::int64_t const ticket = next_ticket_++;
    {
      Waiting const waiting{"the storage path"};
      changed_.wait(lock, [&] {
        return ticket == serving_ && !free_.empty() && (open_turn() != nullptr || has_turn());
      });
    }
    place.engine_ = free_.back();
    free_.pop_back();
    place.turn_ = open_turn();
    bool const is_first = place.turn_ == nullptr;
    if (is_first) {
      turns_.push_back(fresh);
      place.turn_ = std::move(fresh);
    }
    ++place.turn_->inside;
    ++place.turn_->begun;
    ++serving_;
    lock.unlock();
    if (is_first) {
      if (node_) {
        node_->lock();
      }
      lock.lock();
      place.turn_->is_held = true;
      lock.unlock();
    }
    changed_.notify_all();  // there may be room for the next
  }

  bool hand_on(Place& place) noexcept {
    std::unique_lock lock{mutex_};
    place.is_ending_ = true;
    Turn& turn = *place.turn_;
    ++turn.ending;
    bool const is_wanted = next_ticket_ != serving_;
    bool const ends = turn.ending == turn.inside && is_waited_for();
    if (ends) {
      close(place.turn_);
    }
    lock.unlock();
    if (ends) {
      node_->hand_on();
    }
    changed_.notify_all();
    return is_wanted || ends;
  }

  void leave(Place& place) noexcept {
    std::unique_lock lock{mutex_};
    free_.push_back(place.engine_);  // within the capacity it was built with
    Turn& turn = *place.turn_;
    --turn.inside;
    turn.ending -= place.is_ending_ ? 1 : 0;
    bool const is_over = turn.inside == 0;
    // The others' last requests are under way, and this one has none left.
    bool const ends = turn.is_held && turn.ending == turn.inside && (is_over || is_waited_for());
    if (ends) {
      close(place.turn_);
    }
    lock.unlock();
    if (node_ && ends) {
      node_->hand_on();
    }
    if (node_ && is_over) {
      node_->leave();
    }
    changed_.notify_all();
  }

  /// A turn that takes one more transfer: null if none does. Under the mutex, as all below.
  std::shared_ptr<Turn> open_turn() const {
    for (auto const& turn : turns_) {
      bool const has_room = turn->inside - turn->ending < threads_;
      if (turn->is_held && has_room && (turn->begun < threads_ || !is_waited_for())) {
        return turn;
      }
    }
    return nullptr;
  }
  [[nodiscard]] bool has_turn() const { return std::ssize(turns_) < most_turns_; }
  [[nodiscard]] bool is_waited_for() const noexcept { return node_ && node_->is_waited_for(); }
  /// The turn takes no more transfers, and another may begin.
  void close(std::shared_ptr<Turn> const& turn) noexcept {
    turn->is_held = false;
    std::erase(turns_, turn);
  }

  static std::unique_ptr<aio::Engine> make_engine(PathSettings const& settings,
                                                  std::shared_ptr<aio::Kernel> const& kernel) {
    auto engine = settings.engine;
    engine.must_have_requests = true;
    try {
      return std::make_unique<aio::Engine>(engine, kernel);
    } catch (IoError const& error) {
      throw IoError{fmt::format("tiers.path = {}: {}", settings.directory, error.what())};
    }
  }

  std::vector<std::unique_ptr<aio::Engine>> engines_;  ///< each of whoever holds its place
  std::optional<NodeLock> node_;
  int threads_;
  std::ptrdiff_t most_turns_;

  std::mutex mutex_;  ///< guards all below
  std::condition_variable changed_;
  std::vector<std::size_t> free_;
  /// Turns that take transfers, or will once they are held. Never more than was reserved.
  std::vector<std::shared_ptr<Turn>> turns_;
  std::int64_t next_ticket_ = 0;
  std::int64_t serving_ = 0;
};

StoragePath::StoragePath(PathSettings settings, Sharing sharing,
                         std::shared_ptr<aio::Kernel> kernel, trace::Trace* trace)
    : settings_{std::move(settings)},
      trace_{trace},
      read_row_{"read " + settings_.directory},
      write_row_{"write " + settings_.directory} {
  require(settings_.processes >= 1 && settings_.threads >= 1,
          "StoragePath: at least one process with one thread must use it");
  if (kernel == nullptr) {
    kernel = aio::libaio_kernel();
  }
  bool const shared = sharing.lock != nullptr;
  reads_ =
      std::make_unique<Admission>(settings_, shared ? &sharing.lock->read_lock : nullptr, kernel);
  if (settings_.duplex == Duplex::full) {
    writes_ = std::make_unique<Admission>(settings_, shared ? &sharing.lock->write_lock : nullptr,
                                          kernel);
  }
  if (sharing.rest == nullptr) {
    own_ = std::make_unique<PathShared>();
  }
  shared_ = own_ ? own_.get() : sharing.rest;
  queue_ = shared ? sharing.lock : shared_;
  at_once_ = static_cast<double>(settings_.transfers()) * (shared ? 1 : sharing.ranks);
  if (settings_.emulation) {
    throttle_ = std::make_unique<Throttle>(*settings_.emulation, shared_->throttle);
  }
  read_.rate = settings_.read_rate;
  write_.rate = settings_.write_rate;
}

StoragePath::~StoragePath() = default;

void StoragePath::read(aio::File const& file, std::span<std::byte> memory, Bytes offset,
                       LetsPass const& lets_pass) {
  transfer(aio::Direction::read, file, memory, offset, lets_pass);
}

void StoragePath::write(aio::File const& file, std::span<std::byte const> memory, Bytes offset,
                        LetsPass const& lets_pass) {
  // Only read from: the two directions share their code.
  transfer(aio::Direction::write, file, {const_cast<std::byte*>(memory.data()), memory.size()},
           offset, lets_pass);
}

std::atomic<std::uint32_t>& StoragePath::in_a_hurry(aio::Direction direction) const noexcept {
  return direction == aio::Direction::read || !writes_ ? queue_->reads_in_a_hurry
                                                       : queue_->writes_in_a_hurry;
}

void StoragePath::transfer(aio::Direction direction, aio::File const& file,
                           std::span<std::byte> memory, Bytes offset, LetsPass const& lets_pass) {
  // All threads of a turn together: path_turn_bytes.
  Bytes const piece = path_turn_bytes / settings_.threads / aio::direct_alignment;
  auto const most = static_cast<std::size_t>(std::max<Bytes>(1, piece) * aio::direct_alignment);
  for (std::size_t begin = 0; begin < memory.size(); begin += most) {
    transfer_piece(direction, file, memory.subspan(begin, std::min(most, memory.size() - begin)),
                   offset + static_cast<Bytes>(begin), lets_pass);
  }
}

void StoragePath::transfer_piece(aio::Direction direction, aio::File const& file,
                                 std::span<std::byte> memory, Bytes offset,
                                 LetsPass const& lets_pass) {
  bool const reads = direction == aio::Direction::read;
  auto const bytes = std::ssize(memory);
  std::optional<Counted> hurry;
  if (lets_pass) {
    let_pass(in_a_hurry(direction), lets_pass);
  } else {
    hurry.emplace(in_a_hurry(direction));
  }
  Stopwatch watch;
  Seconds waited{};
  Seconds taken{};
  trace::Clock::time_point begin;
  trace::Clock::time_point done;
  bool is_next = false;  // another transfer has begun: the rest of the time is counted there
  auto const stop = [&] {
    taken = watch.elapsed();
    done = trace::Clock::now();
  };
  {
    Admission::Place place{reads || !writes_ ? *reads_ : *writes_};
    waited = watch.lap();
    begin = trace::Clock::now();
    auto const hand_on = [&] {
      stop();
      is_next = place.hand_on();
    };
    if (throttle_) {
      Booking const booking{*throttle_, direction, bytes};
      move(place.engine(), direction, file, memory, offset, {});
      // The path is held: it would be busy.
      Waiting const waiting{"an emulated storage path"};
      std::this_thread::sleep_until(booking.end);
    } else {
      move(place.engine(), direction, file, memory, offset, hand_on);
    }
    if (!is_next) {
      stop();  // before the next holder is woken, who may take this thread's core
    }
  }
  if (trace_ != nullptr) {  // which may write its file: not while the path is held
    trace_->span(reads ? read_row_ : write_row_, reads ? "read" : "write", begin, done, -1, bytes);
  }
  if (!lets_pass) {
    record(direction, bytes, waited, taken);
  }
}

void StoragePath::record(aio::Direction direction, Bytes bytes, Seconds waited, Seconds taken) {
  std::scoped_lock const lock{mutex_};
  auto& traffic = direction == aio::Direction::read ? traffic_.read : traffic_.write;
  traffic.bytes += bytes;
  ++traffic.transfers;
  traffic.seconds += taken;
  traffic.waited += waited;
  traffic.longest_wait = std::max(traffic.longest_wait, waited);
  traffic.longest_transfer = std::max(traffic.longest_transfer, taken);
}

PathTraffic StoragePath::traffic() const {
  std::scoped_lock const lock{mutex_};
  return traffic_;
}

plan::PathRate StoragePath::rate() const {
  std::scoped_lock const lock{mutex_};
  return {read_.rate, write_.rate, settings_.duplex == Duplex::full};
}

void StoragePath::follow_rates() {
  std::scoped_lock const lock{mutex_};
  auto const follow = [this](Followed& known, DirectionTraffic const& traffic) {
    Bytes const bytes = traffic.bytes - known.bytes;
    double const seconds = (traffic.seconds - known.seconds).count();
    if (bytes < least_followed_bytes || seconds <= 0.0) {
      return;
    }
    known.bytes = traffic.bytes;
    known.seconds = traffic.seconds;
    double const found = at_once_ * (static_cast<double>(bytes) / seconds);
    known.rate = known.rate > 0.0 ? (1.0 - smoothing) * known.rate + smoothing * found : found;
  };
  follow(read_, traffic_.read);
  follow(write_, traffic_.write);
}

void StoragePath::set_rates(double read_rate, double write_rate) {
  std::scoped_lock const lock{mutex_};
  read_ = {read_rate, traffic_.read.bytes, traffic_.read.seconds};
  write_ = {write_rate, traffic_.write.bytes, traffic_.write.seconds};
}

void StoragePath::leave_out(std::string const& cause) {
  {
    std::scoped_lock const lock{mutex_};
    if (cause_.empty()) {
      cause_ = cause;
    }
  }
  if (shared_->left_out.exchange(1) == 0) {
    log::warning("tiers.path = {} is left out, nothing more is written there: {}",
                 settings_.directory, cause);
  }
}

std::string StoragePath::why_left_out() const {
  std::scoped_lock const lock{mutex_};
  if (writable()) {
    return {};
  }
  return cause_.empty() ? "another process of the node could not write there" : cause_;
}

namespace {

dev_t device_of(std::string const& directory) {
  struct stat status {};
  if (stat(directory.c_str(), &status) != 0) {
    throw IoError{
        fmt::format("tiers.path = {}: {}; name a directory that exists and that you may enter",
                    directory, std::generic_category().message(errno))};
  }
  return status.st_dev;
}

/// Paths, and what they share if the node's processes share nothing. The paths end first.
struct OwnedPaths {
  std::unique_ptr<PathShared[]> shared;
  PathSet paths;
};

}  // namespace

std::vector<std::size_t> lock_owners(std::vector<PathSettings> const& paths) {
  std::vector<std::size_t> first(paths.size());
  std::vector<dev_t> devices;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    devices.push_back(device_of(paths[i].directory));
    first[i] = i;
    for (std::size_t j = 0; j < i && first[i] == i && !paths[i].emulation; ++j) {
      if (!paths[j].emulation && devices[j] == devices[i]) {
        first[i] = j;
      }
    }
  }
  return first;
}

Bytes shared_bytes(std::vector<PathSettings> const& paths) {
  return std::ssize(paths) * static_cast<Bytes>(sizeof(PathShared));
}

std::shared_ptr<PathSet> make_paths(PathSetSettings const& settings) {
  require(settings.exclusive.empty() || settings.exclusive.size() == settings.paths.size(),
          "make_paths: the paths that are exclusive are of another number");
  auto const first = lock_owners(settings.paths);
  auto const owned = std::make_shared<OwnedPaths>();
  PathShared* shared{};
  if (settings.shared.empty()) {
    owned->shared = std::make_unique<PathShared[]>(settings.paths.size());
    shared = owned->shared.get();
  } else {
    require(std::ssize(settings.shared) >= shared_bytes(settings.paths) &&
                reinterpret_cast<std::uintptr_t>(settings.shared.data()) % alignof(PathShared) == 0,
            "make_paths: shared memory is too small or not aligned");
    // Zero bytes are its initial state: whoever constructed it again would undo another's locking.
    shared = reinterpret_cast<PathShared*>(settings.shared.data());
  }
  for (std::size_t i = 0; i < settings.paths.size(); ++i) {
    bool const exclusive = settings.exclusive.empty() || settings.exclusive[i];
    owned->paths.push_back(std::make_unique<StoragePath>(
        settings.paths[i],
        StoragePath::Sharing{exclusive ? &shared[first[i]] : nullptr, &shared[i], settings.ranks},
        settings.kernel, settings.trace));
  }
  return {owned, &owned->paths};
}

}  // namespace offstage::tiers
