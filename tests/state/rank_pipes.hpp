#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace offstage {

/// Pipes between the ranks of one machine, which any thread may use where only one may call MPI.
/// Threads: one at a time; cancel: any.
class RankPipes {
 public:
  struct Out {
    int to{};
    std::span<std::byte const> bytes;
  };
  struct In {
    int from{};
    std::span<std::byte> bytes;
  };

  /// In a directory that all ranks name; whoever comes first makes a pipe.
  RankPipes(std::string const& directory, int rank, int ranks) {
    for (int other = 0; other < ranks; ++other) {
      out_.push_back(other == rank ? -1 : open_pipe(directory, rank, other));
      in_.push_back(other == rank ? -1 : open_pipe(directory, other, rank));
    }
  }
  ~RankPipes() {
    for (auto const* const files : {&out_, &in_}) {
      for (int const file : *files) {
        if (file >= 0) {
          ::close(file);
        }
      }
    }
  }
  RankPipes(RankPipes const&) = delete;
  RankPipes& operator=(RankPipes const&) = delete;

  /// Sends and receives all, to and from a rank in the order given; empty ones are fine. Returns
  /// when done, or when cancelled.
  void exchange(std::vector<Out> outs, std::vector<In> ins) {
    while (!cancelled_) {
      bool open = false;
      bool moved = false;
      for (auto at = outs.begin(); at != outs.end(); ++at) {
        if (!at->bytes.empty() && is_first(outs, at, &Out::to)) {
          open = true;
          auto const count = ::write(out_[index(at->to)], at->bytes.data(), at->bytes.size());
          moved = take(at->bytes, count) || moved;
        }
      }
      for (auto at = ins.begin(); at != ins.end(); ++at) {
        if (!at->bytes.empty() && is_first(ins, at, &In::from)) {
          open = true;
          auto const count = ::read(in_[index(at->from)], at->bytes.data(), at->bytes.size());
          moved = take(at->bytes, count) || moved;
        }
      }
      if (!open) {
        return;
      }
      if (!moved) {
        ::usleep(100);
      }
    }
  }
  void cancel() noexcept { cancelled_ = true; }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  static int open_pipe(std::string const& directory, int from, int to) {
    std::string const path = fmt::format("{}/{}-{}", directory, from, to);
    if (::mkfifo(path.c_str(), 0600) != 0 && errno != EEXIST) {
      throw std::runtime_error{"mkfifo " + path};
    }
    int const file = ::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) {
      throw std::runtime_error{"open " + path};
    }
    return file;
  }
  /// Of those with bytes to or from its rank.
  template <class Items, class Peer>
  static bool is_first(Items const& items, typename Items::iterator at, Peer peer) {
    for (auto before = items.begin(); before != at; ++before) {
      if (!before->bytes.empty() && (*before).*peer == (*at).*peer) {
        return false;
      }
    }
    return true;
  }
  template <class Bytes>
  static bool take(Bytes& bytes, ssize_t count) {
    if (count < 0 && errno != EAGAIN && errno != EINTR) {
      throw std::runtime_error{"a pipe between ranks failed"};
    }
    if (count > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
    return count > 0;
  }

  std::vector<int> out_;  ///< by rank
  std::vector<int> in_;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace offstage
