#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "platform/faulty_kernel.hpp"
#include "platform/scratch_directory.hpp"
#include "tiers/tiers.hpp"
#include "tiers/virtual_tiers.hpp"

namespace offstage::tiers {

inline void set(Lease& lease, int value) {
  std::ranges::fill(lease.mutable_bytes(), static_cast<std::byte>(value));
}
inline void put(Tiers& tiers, Key key, int value) {
  Lease lease = tiers.create(key);
  set(lease, value);
  lease.commit();
}
inline bool all(std::span<std::byte const> bytes, int value) {
  return std::ranges::all_of(bytes,
                             [&](std::byte b) { return b == static_cast<std::byte>(value); });
}

template <class Failure = IoError, class Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (Failure const& error) {
    return error.what();
  }
  return "no such error";
}

inline std::size_t count(std::string const& text, std::string const& word) {
  std::size_t found = 0;
  for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    ++found;
  }
  return found;
}

/// Keys 0 .. n - 1, or the other way round.
inline std::vector<Key> ascending(Key n) {
  std::vector<Key> keys;
  for (Key key = 0; key < n; ++key) {
    keys.push_back(key);
  }
  return keys;
}
inline std::vector<Key> descending(Key n) {
  std::vector<Key> keys = ascending(n);
  std::ranges::reverse(keys);
  return keys;
}

/// Storage paths in a scratch directory, with a kernel that a test can make fail, and small
/// requests.
class VirtualFixture {
 public:
  static constexpr char const* spill = "offstage-test-3";

  VirtualFixture() {
    settings.spill = spill;
    settings.buffers = 1;
  }

  /// `rate` each way.
  void add_path(double rate = 1e9) {
    PathSettings path;
    path.directory = scratch / std::to_string(paths.size());
    std::filesystem::create_directory(path.directory);
    path.read_rate = path.write_rate = rate;
    path.engine = {64 * KiB, 2};
    paths.push_back(path);
  }
  void add_paths(int number) {
    for (int i = 0; i < number; ++i) {
      add_path();
    }
  }

  std::unique_ptr<Tiers> make(std::vector<Bytes> const& sizes) {
    settings.paths = make_paths({.paths = paths, .kernel = kernel});
    return make_virtual_tiers(sizes, settings);
  }
  /// `n` extents of 8 KiB, each with its key in every byte.
  std::unique_ptr<Tiers> make_filled(Key n, Bytes bytes = 8 * KiB) {
    auto tiers = make(std::vector<Bytes>(static_cast<std::size_t>(n), bytes));
    for (Key key = 0; key < n; ++key) {
      put(*tiers, key, static_cast<int>(key));
    }
    return tiers;
  }

  /// Which of the paths a transfer goes to, by the name that its file had.
  [[nodiscard]] std::size_t path_of(aio::Transfer const& transfer) const {
    std::string const link = "/proc/self/fd/" + std::to_string(transfer.descriptor);
    std::string const target = std::filesystem::read_symlink(link).string();
    for (std::size_t i = 0; i < paths.size(); ++i) {
      if (target.starts_with(paths[i].directory + "/")) {
        return i;
      }
    }
    return paths.size();
  }

  ScratchDirectory scratch;
  std::shared_ptr<aio::FaultyKernel> kernel = std::make_shared<aio::FaultyKernel>();
  std::vector<PathSettings> paths;
  VirtualSettings settings;
};

/// Fetches and commits every key in turn, changed by `change` in every byte; true if all held
/// key + `before`.
inline bool pass(Tiers& tiers, std::vector<Key> const& order, int before, int change = 1) {
  tiers.begin_pass();
  bool good = true;
  for (Key const key : order) {
    Lease lease = tiers.fetch(key);
    int const value = static_cast<int>(key) + before;
    good = good && all(lease.bytes(), value);
    set(lease, value + change);
    lease.commit();
  }
  return good;
}

}  // namespace offstage::tiers
