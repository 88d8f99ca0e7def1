#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "base/thread.hpp"
#include "platform/scratch_directory.hpp"
#include "tiers/counting_kernel.hpp"
#include "tiers/processes.hpp"
#include "tiers/storage_path.hpp"

namespace offstage::tiers {

inline constexpr Bytes block = aio::direct_alignment;

/// Aligned bytes; no page is touched, so a lot of them costs nothing.
class Memory {
 public:
  explicit Memory(Bytes size)
      : data_{static_cast<std::byte*>(std::aligned_alloc(block, static_cast<std::size_t>(size))),
              &std::free},
        size_{static_cast<std::size_t>(size)} {}
  [[nodiscard]] std::span<std::byte> bytes() const { return {data_.get(), size_}; }

 private:
  std::unique_ptr<std::byte, decltype(&std::free)> data_;
  std::size_t size_;
};

/// Paths whose kernel moves nothing, all in one directory.
class StoragePathTest : public ::testing::Test {
 protected:
  [[nodiscard]] PathSettings settings() const {
    PathSettings result;
    result.directory = scratch.path();
    result.engine = {64 * MiB, 1};
    return result;
  }
  void read(StoragePath& path, int times = 1) {
    for (int i = 0; i < times; ++i) {
      Memory const memory{block};
      path.read(file, memory.bytes(), i * block);
    }
  }
  void write(StoragePath& path, int times = 1) {
    for (int i = 0; i < times; ++i) {
      Memory const memory{block};
      path.write(file, memory.bytes(), i * block);
    }
  }
  /// Two threads that read and two that write, so many times each.
  void hurry(StoragePath& path, int times) {
    std::vector<NamedThread> threads;
    for (int t = 0; t < 2; ++t) {
      threads.emplace_back("reader", [&] { read(path, times); });
      threads.emplace_back("writer", [&] { write(path, times); });
    }
  }

  ScratchDirectory scratch;
  aio::File file = aio::File::create(scratch / "file");
  aio::TransferCount count{};
  std::shared_ptr<aio::CountingKernel> kernel = std::make_shared<aio::CountingKernel>(count);
  Shared<PathShared> shared;
};

/// Of processes that share paths.
struct SharedCount {
  PathShared paths[2];
  aio::TransferCount count;
};

}  // namespace offstage::tiers
