#include "platform/memory/huge_buffer.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

#include "base/error.hpp"
#include "base/team.hpp"
#include "base/watch.hpp"

namespace offstage::memory {
namespace {

constexpr Bytes page_bytes = 4 * KiB;
constexpr Bytes huge_page_bytes = 2 * MiB;
constexpr Bytes team_bytes = 4 * MiB;  ///< two pages: from here on a team gains

/// Makes the pages of [begin, end), 2 MiB at a time.
void touch(std::byte* begin, std::byte* end) {
#pragma omp parallel for schedule(dynamic) if (end - begin >= team_bytes)
  for (std::byte* piece = begin; piece < end; piece += huge_page_bytes) {
    for (std::byte* page = piece; page < std::min(end, piece + huge_page_bytes);
         page += page_bytes) {
      *static_cast<std::byte volatile*>(page) = std::byte{0};
    }
  }
}

/// Makes every page. A thread clears 20 GB/s of what the machine has, less than 1 where it is a
/// guest whose host must find the memory first. The threads of the caller's team run where the rank
/// may run, so that the pages are of its NUMA domains.
void touch_all(std::byte* data, Bytes size) {
  if (size >= team_bytes) {
    require_team();
  }
  for (Bytes begin = 0; begin < size; begin += GiB) {
    touch(data + begin, data + std::min(size, begin + GiB));
    made_progress();  // hundreds of GiB take minutes
  }
}

}  // namespace

HugeBuffer::HugeBuffer(Bytes size) : HugeBuffer{} {  // whose memory goes, whatever is thrown below
  size_ = size;
  require(size >= 0, "HugeBuffer: negative size");
  if (size == 0) {
    return;
  }
  bool const huge = size >= huge_page_bytes;
  // Rounded to small pages alone: a huge page is never made beyond the end of the mapping, so
  // memory plans may count the bytes asked for.
  mapped_ = round_up(size, page_bytes);
  // Map one huge page more than needed and cut both ends off: the rest starts on a huge page.
  Bytes const reserve = huge ? mapped_ + huge_page_bytes : mapped_;
  void* const raw = mmap(nullptr, static_cast<std::size_t>(reserve), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) {
    throw Error{ExitCode::other, "out of memory: cannot map " + format_bytes(size)};
  }
  data_ = static_cast<std::byte*>(raw);
  if (huge) {
    auto const address = reinterpret_cast<std::uintptr_t>(raw);
    auto const lead =
        static_cast<Bytes>(-address & static_cast<std::uintptr_t>(huge_page_bytes - 1));
    if (lead > 0) {
      munmap(data_, static_cast<std::size_t>(lead));
    }
    data_ += lead;
    Bytes const tail = reserve - lead - mapped_;
    if (tail > 0) {
      munmap(data_ + mapped_, static_cast<std::size_t>(tail));
    }
    madvise(data_, static_cast<std::size_t>(mapped_), MADV_HUGEPAGE);
  }
  touch_all(data_, mapped_);
}

void HugeBuffer::reset() noexcept {
  if (data_ != nullptr) {
    munmap(data_, static_cast<std::size_t>(mapped_));
  }
  data_ = nullptr;
  size_ = mapped_ = 0;
}

}  // namespace offstage::memory
