// How fast the program makes its memory's pages, beside what all threads reach: perf_start [BYTES]
// The same bytes in turns: in HugeBuffers as large as those of a training run, from hundreds of MiB
// down to the buffers of a block; and in one mapping of huge pages, of which each thread touches a
// part. Prints the medians and a RESULT line.
#include <fmt/format.h>
#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "base/team.hpp"
#include "base/units.hpp"
#include "platform/memory/huge_buffer.hpp"

namespace {

using namespace offstage;

constexpr int rounds = 9;

/// Sizes of a run's buffers: half of the bytes in one, the rest in parts of 48 and of 10 MiB.
std::vector<Bytes> sizes_of(Bytes total) {
  std::vector<Bytes> sizes{total / 2};
  for (Bytes left = total - total / 2; left > 0; left -= sizes.back()) {
    sizes.push_back(std::min(left, sizes.size() % 2 == 0 ? 48 * MiB : 10 * MiB + 276 * KiB));
  }
  return sizes;
}

Seconds make_buffers(std::vector<Bytes> const& sizes) {
  std::vector<memory::HugeBuffer> buffers;
  buffers.reserve(sizes.size());
  Stopwatch const watch;
  for (Bytes const size : sizes) {
    buffers.emplace_back(size);
  }
  return watch.elapsed();
}

/// Each thread has a part of the mapping.
Seconds touch_with_all_threads(Bytes total) {
  auto const length = static_cast<std::size_t>(total);
  void* const raw =
      mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(raw != MAP_FAILED, "perf_start: no memory");
  madvise(raw, length, MADV_HUGEPAGE);
  auto* const data = static_cast<std::byte volatile*>(raw);
  Stopwatch const watch;
#pragma omp parallel
  {
    Bytes const threads = omp_get_num_threads();
    Bytes const thread = omp_get_thread_num();
    Bytes const end = total / threads * (thread + 1);
    for (Bytes at = total / threads * thread; at < end; at += 4 * KiB) {
      data[at] = std::byte{0};
    }
  }
  Seconds const taken = watch.elapsed();
  munmap(raw, length);
  return taken;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  Bytes const total = (argc > 1 ? std::atoll(argv[1]) : 2 * GiB) / (64 * KiB) * (64 * KiB);
  auto const sizes = sizes_of(total);
  set_team_size(team_size());
  std::vector<double> ours;
  std::vector<double> reached;
  std::vector<double> ratios;
  for (int round = -1; round < rounds; ++round) {  // the first finds the memory and does not count
    Seconds const buffers = make_buffers(sizes);
    Seconds const all = touch_with_all_threads(total);
    if (round < 0) {
      fmt::print("memory of the machine that this process has for the first time: {:.1f} GB/s\n",
                 static_cast<double>(total) / buffers.count() * 1e-9);
      continue;
    }
    ours.push_back(static_cast<double>(total) / buffers.count() * 1e-9);
    reached.push_back(static_cast<double>(total) / all.count() * 1e-9);
    ratios.push_back(all / buffers);
  }
  fmt::print("{} in {} buffers, {} threads: {:.1f} GB/s; all threads reach {:.1f} GB/s\n",
             format_bytes(total), sizes.size(), team_size(), median(ours), median(reached));
  fmt::print("RESULT start_touch_vs_memory {:.3f}\n", median(ratios));
}
