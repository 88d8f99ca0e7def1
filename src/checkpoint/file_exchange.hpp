#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/thread.hpp"
#include "base/units.hpp"
#include "platform/aio/file.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "platform/mpi/communicator.hpp"
#include "platform/mpi/message.hpp"

namespace offstage::checkpoint {

/// A file that a rank sends to a rank, itself perhaps.
struct SentFile {
  std::string path;
  std::string name;  ///< in the directory of the one that gets it
  int to{};
};

/// Files that ranks send each other, piece by piece, while their main threads do something else:
/// those look in from time to time and never wait. A thread reads what is sent, another writes what
/// comes.
///
/// Memory:     host_bytes().
/// Threads:    one calls, the one that calls MPI.
/// Collective: construction and finish().
/// Errors:     construction: IoError where a file is not there, or a node has no room for what it
///             is sent. finish(): IoError, DataError.
class FileExchange {
 public:
  /// Files come into `directory`, which is there on every node, and replace others of their names.
  /// `comm` is of nobody else meanwhile; `node`: the ranks that see `directory`.
  FileExchange(std::vector<SentFile> files, std::string directory, mpi::Communicator const& comm,
               mpi::Communicator const& node);
  /// Where messages are still under way, as finish() did not come, their memory stays until the
  /// process ends.
  ~FileExchange();
  FileExchange(FileExchange const&) = delete;
  FileExchange& operator=(FileExchange const&) = delete;

  /// Hands on what has been read, or has come. Does not wait.
  void look_in();
  /// All of this rank's is sent, and durable what it was sent.
  [[nodiscard]] bool is_done() const noexcept;
  /// Nothing more is read nor written: finish() soon returns, and throws.
  void give_up() noexcept { given_up_ = true; }
  /// Waits until all is done on all ranks. What is read or written on any of them is progress of
  /// each (base/watch.hpp).
  void finish();
  /// Bytes that all ranks send.
  [[nodiscard]] Bytes bytes() const noexcept { return bytes_; }

  /// Host memory that it takes on a rank.
  [[nodiscard]] static Bytes host_bytes() noexcept;

 private:
  struct Slot {
    memory::HugeBuffer buffer;
    mpi::Message message;
    Bytes length{};
    int to{};
  };
  /// Slots from one thread to another.
  class Queue {
   public:
    void push(Slot* slot);
    /// Waits for one; null once the queue is closed.
    [[nodiscard]] Slot* pop();
    /// Null: there is none.
    [[nodiscard]] Slot* try_pop();
    void close();

   private:
    std::mutex mutex_;  ///< guards all below
    std::condition_variable filled_;
    std::deque<Slot*> slots_;
    bool closed_ = false;
  };
  struct Incoming {
    aio::File file;
    Bytes left{};
  };
  static constexpr std::size_t slots_each_way = 3;

  void count();
  void start();
  void stop() noexcept;
  void wait_for_all();
  void read_all();
  void read_file(SentFile const& file, Bytes bytes);
  void fill(Slot& slot, SentFile const& file, Bytes offset, Bytes bytes, Bytes whole,
            aio::File const* from) const;
  void write_all();
  void write(Slot const& slot);

  mpi::Communicator const& comm_;
  mpi::Communicator const& node_;
  std::vector<SentFile> files_;
  std::vector<Bytes> sizes_;  ///< of files_
  std::string directory_;
  Bytes bytes_ = 0;
  std::int64_t to_send_ = 0;     ///< messages
  std::int64_t to_receive_ = 0;  ///< likewise
  std::int64_t sent_ = 0;        ///< have ended
  std::int64_t asked_ = 0;       ///< receives that have begun
  std::atomic<bool> given_up_{false};
  std::atomic<bool> written_{false};          ///< the writer has ended
  std::atomic<std::int64_t> moved_{0};        ///< pieces that were read here, and written
  std::exception_ptr read_error_;             ///< of the reader, whose end it is read after
  std::exception_ptr write_error_;            ///< of the writer, likewise
  std::map<std::string, Incoming> incoming_;  ///< the writer's
  std::array<Slot, slots_each_way> out_;
  std::array<Slot, slots_each_way> in_;
  Queue to_read_;   ///< free ones, to the reader
  Queue to_hand_;   ///< full ones, to the caller
  Queue to_write_;  ///< full ones, to the writer
  Queue to_ask_;    ///< free ones, to the caller
  std::optional<NamedThread> reader_;
  std::optional<NamedThread> writer_;  ///< last, with reader_: they use all above
};

}  // namespace offstage::checkpoint
