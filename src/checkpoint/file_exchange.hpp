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

/// A file that a rank sends to a rank, perhaps to itself.
struct SentFile {
  std::string path;
  std::string name;  ///< file name in the receiver's directory
  int to{};
};

/// Sends files between ranks, piece by piece, while their main threads do something else. The main
/// thread calls look_in() from time to time and never waits. One thread reads the files that are
/// sent, another writes those that come.
///
/// Memory:     host_bytes().
/// Threads:    one calls the members, the one that calls MPI.
/// Collective: construction and finish().
/// Errors:     mpi::AgreedError. Construction: a file is not there, or a node has no room for the
///             files that it is sent. finish(): a file could not be read or written, or a message
///             is damaged.
class FileExchange {
 public:
  /// Received files go to `directory`, which exists on every node, and replace files of the same
  /// names. A file gets its name once it is whole and durable. Nobody else uses `comm` meanwhile.
  /// `node`: the ranks that see `directory`.
  FileExchange(std::vector<SentFile> files, std::string directory, mpi::Communicator const& comm,
               mpi::Communicator const& node);
  /// If messages are still under way, because finish() was not called, their memory stays until the
  /// process ends.
  ~FileExchange();
  FileExchange(FileExchange const&) = delete;
  FileExchange& operator=(FileExchange const&) = delete;

  /// Sends pieces that have been read, and hands received pieces to the writer. Does not wait.
  void look_in();
  /// Returns true once this rank has sent all its files, and those that it was sent are durable.
  [[nodiscard]] bool is_done() const noexcept;
  /// Stops reading and writing. finish() then soon returns, and throws.
  void give_up() noexcept { given_up_ = true; }
  /// Waits until all ranks are done. A piece that any rank reads or writes counts as progress of
  /// each (base/watch.hpp).
  void finish();
  /// Bytes that all ranks send.
  [[nodiscard]] Bytes bytes() const noexcept { return bytes_; }

  /// Host memory that an exchange takes on a rank.
  [[nodiscard]] static Bytes host_bytes() noexcept;

 private:
  /// A buffer for one piece of a file, and the message that sends or receives it.
  struct Parcel {
    memory::HugeBuffer buffer;
    mpi::Message message;
    Bytes length{};
    int to{};
  };
  /// Parcels on their way from one thread to another.
  class Queue {
   public:
    void push(Parcel* parcel);
    /// Waits for a parcel; null once the queue is closed.
    [[nodiscard]] Parcel* pop();
    /// Returns null if the queue is empty.
    [[nodiscard]] Parcel* try_pop();
    void close();

   private:
    std::mutex mutex_;  ///< guards all members below
    std::condition_variable filled_;
    std::deque<Parcel*> parcels_;
    bool closed_ = false;
  };
  struct Incoming {
    aio::File file;
    Bytes left{};
  };
  static constexpr std::size_t parcels_each_way = 3;

  void count();
  void start();
  void stop() noexcept;
  void wait_for_all();
  void read_all();
  void read_file(SentFile const& file, Bytes bytes);
  void fill(Parcel& parcel, SentFile const& file, Bytes offset, Bytes bytes, Bytes whole,
            aio::File const* from) const;
  void write_all();
  void write(Parcel const& parcel);

  mpi::Communicator const& comm_;
  mpi::Communicator const& node_;
  std::vector<SentFile> files_;
  std::vector<Bytes> sizes_;  ///< bytes of each of files_
  std::string directory_;
  Bytes bytes_ = 0;
  std::int64_t to_send_ = 0;     ///< messages that this rank sends
  std::int64_t to_receive_ = 0;  ///< messages that this rank receives
  std::int64_t sent_ = 0;        ///< messages whose send has ended
  std::int64_t asked_ = 0;       ///< receives that have begun
  std::atomic<bool> given_up_{false};
  std::atomic<bool> written_{false};          ///< the writer has ended
  std::atomic<std::int64_t> moved_{0};        ///< pieces that were read or written here
  std::exception_ptr read_error_;             ///< the reader's; looked at after its end
  std::exception_ptr write_error_;            ///< the writer's; looked at after its end
  std::map<std::string, Incoming> incoming_;  ///< files that the writer has open
  std::array<Parcel, parcels_each_way> out_;
  std::array<Parcel, parcels_each_way> in_;
  Queue to_read_;   ///< free parcels for the reader
  Queue to_hand_;   ///< full parcels for the caller, which sends them
  Queue to_write_;  ///< full parcels for the writer
  Queue to_ask_;    ///< free parcels for the caller, which receives into them
  std::optional<NamedThread> reader_;
  std::optional<NamedThread> writer_;  ///< last, with reader_: both use all members above
};

}  // namespace offstage::checkpoint
