#include "checkpoint/file_exchange.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/error.hpp"
#include "base/regular_file.hpp"
#include "base/stopwatch.hpp"
#include "base/watch.hpp"
#include "checkpoint/directory.hpp"
#include "platform/mpi/pending_sums.hpp"

namespace offstage::checkpoint {
namespace {

constexpr Bytes piece_bytes = 4 * MiB;
constexpr std::chrono::microseconds between_looks{200};
constexpr Seconds between_sums{0.1};

/// The head of a message. The piece comes behind it, aligned for direct transfers.
struct Head {
  std::array<char, 64> name;
  Bytes offset;
  Bytes bytes;
  Bytes whole;  ///< bytes of the whole file
  /// 1: there is no piece, because the file could not be read or was given up.
  std::int64_t failed;
};
static_assert(std::is_trivially_copyable_v<Head> && sizeof(Head) <= aio::direct_alignment);

constexpr Bytes head_bytes = aio::direct_alignment;

std::int64_t pieces_of(Bytes bytes) {
  return std::max<std::int64_t>(1, ceil_div(bytes, piece_bytes));
}

/// Whole pages of a transfer that moved so many bytes: a direct transfer can go on behind them
/// alone.
/// Errors: IoError: not a page moved.
Bytes whole_pages(aio::File const& file, Bytes moved) {
  Bytes const pages = moved / aio::direct_alignment * aio::direct_alignment;
  if (pages == 0) {
    throw IoError{fmt::format("{}: only {} bytes moved", file.path(), moved)};
  }
  return pages;
}

/// Reads whole pages as far as the file goes.
void read_at(aio::File const& file, std::span<std::byte> pages, Bytes offset, Bytes bytes) {
  for (Bytes done = 0; done < bytes;) {
    ssize_t const count = ::pread(file.descriptor(), pages.data() + done,
                                  pages.size() - static_cast<std::size_t>(done), offset + done);
    if (count < 0 && errno != EINTR) {
      throw IoError{"cannot read", file.path(), errno};
    }
    if (count == 0) {
      throw IoError{file.path() + ": ends too early"};
    }
    if (done + count >= bytes) {
      return;
    }
    done += count < 0 ? 0 : whole_pages(file, count);
  }
}

/// Writes whole pages.
void write_at(aio::File const& file, std::span<std::byte const> pages, Bytes offset) {
  while (!pages.empty()) {
    ssize_t const count = ::pwrite(file.descriptor(), pages.data(), pages.size(), offset);
    if (count < 0 && errno != EINTR) {
      throw IoError{"cannot write", file.path(), errno};
    }
    Bytes const done = count < 0 ? 0 : whole_pages(file, count);
    pages = pages.subspan(static_cast<std::size_t>(done));
    offset += done;
  }
}

/// The name in a head. Errors: DataError if it is no plain file name.
std::string name_in(Head const& head) {
  std::string name{head.name.data(), strnlen(head.name.data(), head.name.size())};
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
      head.offset < 0 || head.bytes < 0 || head.offset + head.bytes > head.whole) {
    throw DataError{"a file from another node: its message is damaged"};
  }
  return name;
}

}  // namespace

void FileExchange::Queue::push(Parcel* parcel) {
  {
    std::lock_guard const lock{mutex_};
    parcels_.push_back(parcel);
  }
  filled_.notify_one();
}

FileExchange::Parcel* FileExchange::Queue::pop() {
  std::unique_lock lock{mutex_};
  filled_.wait(lock, [&] { return closed_ || !parcels_.empty(); });
  if (parcels_.empty()) {
    return nullptr;
  }
  Parcel* const first = parcels_.front();
  parcels_.pop_front();
  return first;
}

FileExchange::Parcel* FileExchange::Queue::try_pop() {
  std::lock_guard const lock{mutex_};
  if (parcels_.empty()) {
    return nullptr;
  }
  Parcel* const first = parcels_.front();
  parcels_.pop_front();
  return first;
}

void FileExchange::Queue::close() {
  {
    std::lock_guard const lock{mutex_};
    closed_ = true;
  }
  filled_.notify_all();
}

Bytes FileExchange::host_bytes() noexcept {
  return 2 * static_cast<Bytes>(parcels_each_way) * (head_bytes + piece_bytes);
}

FileExchange::FileExchange(std::vector<SentFile> files, std::string directory,
                           mpi::Communicator const& comm, mpi::Communicator const& node)
    : comm_{comm}, node_{node}, files_{std::move(files)}, directory_{std::move(directory)} {
  mpi::agree(comm_, [&] {
    for (SentFile const& file : files_) {
      auto const size = size_of_file(file.path);
      if (!size) {
        throw IoError{file.path + ": is not there any more"};
      }
      require(file.name.size() < Head{}.name.size(), "FileExchange: names are short");
      sizes_.push_back(*size);
      to_send_ += pieces_of(*size);
    }
  });
  count();
  try {
    mpi::agree(comm_, [&] { start(); });
  } catch (mpi::AgreedError const&) {
    stop();
    throw;
  }
}

FileExchange::~FileExchange() {
  stop();
  auto const keep = [](std::array<Parcel, parcels_each_way>& parcels) {
    for (Parcel& parcel : parcels) {
      if (parcel.message.is_under_way()) {
        // MPI may still read or write it.
        (void)new memory::HugeBuffer{
            std::move(parcel.buffer)};  // NOLINT(cppcoreguidelines-owning-memory)
      }
    }
  };
  keep(out_);
  keep(in_);
}

/// Counts the messages and bytes that each rank sends and receives.
void FileExchange::count() {
  struct Count {
    std::int64_t messages;
    Bytes bytes;
  };
  std::vector<Count> mine(static_cast<std::size_t>(comm_.size()));
  for (std::size_t i = 0; i < files_.size(); ++i) {
    Count& to = mine[static_cast<std::size_t>(files_[i].to)];
    to.messages += pieces_of(sizes_[i]);
    to.bytes += sizes_[i];
    bytes_ += sizes_[i];
  }
  bytes_ = comm_.sum(bytes_);
  std::vector<mpi::Slice> slices;
  for (std::size_t rank = 0; rank < mine.size(); ++rank) {
    slices.push_back({static_cast<Bytes>(rank * sizeof(Count)), sizeof(Count)});
  }
  std::vector<Count> coming(mine.size());
  comm_.all_to_all(std::as_bytes(std::span{mine}), slices,
                   std::as_writable_bytes(std::span{coming}), slices);
  Bytes space = 0;
  for (Count const& from : coming) {
    to_receive_ += from.messages;
    space += from.bytes;
  }
  space = node_.sum(space);
  mpi::agree(comm_, [&] {
    if (Bytes const free = aio::free_bytes(directory_); space > free) {
      throw IoError{fmt::format("{}: files from other nodes need {}, but {} is free there",
                                directory_, format_bytes(space), format_bytes(free))};
    }
  });
}

void FileExchange::start() {
  for (Parcel& parcel : out_) {
    parcel.buffer = memory::HugeBuffer{head_bytes + piece_bytes};
    to_read_.push(&parcel);
  }
  for (Parcel& parcel : in_) {
    parcel.buffer = memory::HugeBuffer{head_bytes + piece_bytes};
    to_ask_.push(&parcel);
  }
  reader_.emplace("partner-read", [this] { read_all(); });
  writer_.emplace("partner-write", [this] { write_all(); });
}

void FileExchange::stop() noexcept {
  given_up_ = true;
  to_read_.close();
  to_write_.close();
  reader_.reset();
  writer_.reset();
}

void FileExchange::look_in() {
  for (Parcel& parcel : out_) {
    if (parcel.message.is_under_way() && parcel.message.has_ended()) {
      ++sent_;
      to_read_.push(&parcel);
    }
  }
  for (Parcel& parcel : in_) {
    if (parcel.message.is_under_way() && parcel.message.has_ended()) {
      parcel.length = parcel.message.received();
      to_write_.push(&parcel);
    }
  }
  while (Parcel* const parcel = to_hand_.try_pop()) {
    parcel->message = mpi::Message::send(
        comm_, parcel->buffer.bytes().first(static_cast<std::size_t>(parcel->length)), parcel->to);
  }
  while (asked_ < to_receive_) {
    Parcel* const parcel = to_ask_.try_pop();
    if (parcel == nullptr) {
      break;
    }
    parcel->message = mpi::Message::receive(comm_, parcel->buffer.bytes());
    ++asked_;
  }
}

bool FileExchange::is_done() const noexcept {
  return sent_ == to_send_ && written_;
}

void FileExchange::finish() {
  wait_for_all();
  reader_.reset();
  writer_.reset();
  mpi::agree(comm_, [&] {
    for (std::exception_ptr const& error : {read_error_, write_error_}) {
      if (error) {
        std::rethrow_exception(error);
      }
    }
    if (given_up_) {
      throw IoError{directory_ + ": was given up"};
    }
  });
}

/// Waits for all ranks. A rank that only waits makes progress as long as any rank does.
void FileExchange::wait_for_all() {
  Waiting const waiting{"files to and from other nodes"};
  std::int64_t moved = 0;
  for (bool all_done = false; !all_done;) {
    Stopwatch const watch;
    mpi::PendingSums state{comm_, {is_done() ? 1 : 0, moved_}};
    while (!state.has_ended() || (!is_done() && watch.elapsed() < between_sums)) {
      look_in();
      std::this_thread::sleep_for(between_looks);
    }
    all_done = state.sums()[0] == comm_.size();
    if (state.sums()[1] > moved) {
      moved = state.sums()[1];
      made_progress();
    }
  }
}

/// Sends as many messages as were announced, also after errors.
void FileExchange::read_all() {
  for (std::size_t i = 0; i < files_.size(); ++i) {
    read_file(files_[i], sizes_[i]);
  }
}

void FileExchange::read_file(SentFile const& file, Bytes bytes) {
  std::optional<aio::File> from;
  for (std::int64_t piece = 0; piece < pieces_of(bytes); ++piece) {
    Parcel* const parcel = to_read_.pop();
    if (parcel == nullptr) {
      return;
    }
    Bytes const offset = piece * piece_bytes;
    Bytes const count = std::min(piece_bytes, bytes - offset);
    bool good = !given_up_ && !read_error_;
    try {
      if (good && !from) {
        from = aio::File::open_read(file.path);
      }
      fill(*parcel, file, offset, count, bytes, good ? &*from : nullptr);
    } catch (...) {
      read_error_ = std::current_exception();
      fill(*parcel, file, offset, count, bytes, nullptr);
    }
    ++moved_;
    to_hand_.push(parcel);
  }
}

/// Fills a buffer with a piece of a file. `from` null: the piece failed.
void FileExchange::fill(Parcel& parcel, SentFile const& file, Bytes offset, Bytes bytes,
                        Bytes whole, aio::File const* from) const {
  auto const memory = parcel.buffer.bytes();
  if (from != nullptr) {
    Bytes const pages = ceil_div(bytes, aio::direct_alignment) * aio::direct_alignment;
    read_at(*from, memory.subspan(head_bytes, static_cast<std::size_t>(pages)), offset, bytes);
  }
  Head head{.name = {}, .offset = offset, .bytes = bytes, .whole = whole, .failed = 0};
  head.failed = from == nullptr ? 1 : 0;
  std::ranges::copy(file.name, head.name.begin());
  std::memcpy(memory.data(), &head, sizeof(head));
  parcel.length = head_bytes + (from != nullptr ? bytes : 0);
  parcel.to = file.to;
}

/// Takes as many messages as were announced, also after errors.
void FileExchange::write_all() {
  for (std::int64_t done = 0; done < to_receive_; ++done) {
    Parcel* const parcel = to_write_.pop();
    if (parcel == nullptr) {
      return;
    }
    try {
      if (!write_error_ && !given_up_) {
        write(*parcel);
      }
    } catch (...) {
      write_error_ = std::current_exception();
    }
    ++moved_;
    to_ask_.push(parcel);
  }
  try {
    if (!write_error_ && !given_up_) {
      require(incoming_.empty(), "FileExchange: every file has come whole");
      aio::sync_directory(directory_);
    }
  } catch (...) {
    write_error_ = std::current_exception();
  }
  incoming_.clear();
  written_ = true;
}

void FileExchange::write(Parcel const& parcel) {
  auto const memory = parcel.buffer.bytes();
  Head head{};
  std::memcpy(&head, memory.data(), sizeof(head));
  std::string const name = name_in(head);
  if (head.failed != 0) {
    throw IoError{fmt::format("{}/{}: its node could not send it", directory_, name)};
  }
  if (parcel.length != head_bytes + head.bytes) {
    throw DataError{fmt::format("{}/{}: its message is damaged", directory_, name)};
  }
  std::string const whole = directory_ + "/" + name;
  std::string const path = whole + unfinished_suffix;
  auto found = incoming_.find(name);
  if (found == incoming_.end()) {
    remove_file(path);
    remove_file(whole);
    found = incoming_.emplace(name, Incoming{aio::File::create(path), head.whole}).first;
    if (head.whole > 0) {
      found->second.file.allocate(head.whole);
    }
  }
  Incoming& to = found->second;
  auto const piece = memory.subspan(head_bytes, static_cast<std::size_t>(head.bytes));
  Bytes const pages = head.bytes / aio::direct_alignment * aio::direct_alignment;
  write_at(to.file, piece.first(static_cast<std::size_t>(pages)), head.offset);
  if (pages < head.bytes) {
    FilePart const rest{head.offset + pages, piece.subspan(static_cast<std::size_t>(pages))};
    write_parts(path, {&rest, 1});
  }
  to.left -= head.bytes;
  if (to.left == 0) {
    to.file.sync();
    incoming_.erase(found);
    rename_file("cannot rename to", path, whole);
  }
}

}  // namespace offstage::checkpoint
