#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/units.hpp"
#include "device/device.hpp"

namespace offstage::update {

/// Buffers in device memory through which chunks go one after the other, in a ring. Streams work in
/// order, so that the buffer used first is empty first. The first buffers are in lent memory, if
/// there is any.
///
/// Threads: one at a time takes buffers; another may give back what is lent meanwhile.
class ChunkBuffers {
 public:
  /// Errors: UsageError of the device, which names `purpose`.
  ChunkBuffers(device::Device& device, int count, Bytes buffer_bytes, std::span<std::byte> lent,
               std::string const& purpose);

  /// An empty buffer that is being filled. Ends without fill_until: as if it had not been taken;
  /// whoever began to fill it sees to it that no stream is at work in it.
  class Taken {
   public:
    Taken(Taken const&) = delete;
    Taken& operator=(Taken const&) = delete;
    Taken& operator=(Taken&&) = delete;
    Taken(Taken&& other) noexcept
        : owner_{std::exchange(other.owner_, nullptr)}, index_{other.index_} {}
    ~Taken();
    [[nodiscard]] std::byte* memory() const noexcept;
    [[nodiscard]] bool is_lent() const noexcept;
    /// Gives the buffer back, which its chunk has left when this event has come.
    void fill_until(std::shared_ptr<device::Event> left) noexcept;

   private:
    friend class ChunkBuffers;
    Taken(ChunkBuffers& owner, std::size_t index) noexcept : owner_{&owner}, index_{index} {}
    ChunkBuffers* owner_;  ///< null: ended
    std::size_t index_;
  };
  /// Blocks until the next buffer is empty. Errors: those of the streams, through the event;
  /// PreconditionError if every buffer is lent and given back.
  [[nodiscard]] Taken take();

  /// Says that buffers in lent memory are used again.
  void use_lent();
  /// They are empty when this returns, and not used from then on. False: a stream has failed, and
  /// the others may still be at work in them.
  [[nodiscard]] bool leave_lent();
  /// Whether there are buffers beside those in lent memory.
  [[nodiscard]] bool any_own() const noexcept { return own_.size() > 0; }

  /// Bytes that a buffer of this size takes.
  [[nodiscard]] static Bytes stride(Bytes buffer_bytes);
  /// How many of `count` buffers find room in lent memory.
  [[nodiscard]] static int lent_buffers(int count, Bytes buffer_bytes, std::span<std::byte> lent);

 private:
  struct Buffer {
    std::byte* memory{};
    bool lent = false;
    bool taken = false;
    std::shared_ptr<device::Event> left;  ///< null: it is empty
  };
  void give_back(std::size_t index) noexcept;

  device::Buffer own_;
  std::mutex mutex_;  ///< guards all below
  std::condition_variable released_;
  std::vector<Buffer> buffers_;
  std::size_t next_ = 0;
  bool use_lent_ = true;
};

}  // namespace offstage::update
