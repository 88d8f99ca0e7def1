// A small complete checkpoint in memory for fuzz targets to damage: two ranks, the second owns
// nothing, a subgroup in the rank file and one in an extent file.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/extent_file.hpp"
#include "checkpoint/inspect.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/master.hpp"
#include "checkpoint/reader.hpp"
#include "platform/aio/file.hpp"
#include "platform/aio/kernel.hpp"
#include "platform/h5/file.hpp"
#include "platform/memory/huge_buffer.hpp"

/// The leak sanitizer asks for this: HDF5 1.10 itself loses memory where it meets damaged metadata.
extern "C" char const* __lsan_default_suppressions() {
  return "leak:libhdf5";
}
extern "C" char const* __lsan_default_options() {
  return "print_suppressions=0";
}

namespace offstage::checkpoint {

/// A directory in memory if there is one, for thousands of rounds; removed with what is in it.
class FuzzDirectory {
 public:
  FuzzDirectory() {
    std::string const shared = "/dev/shm";
    path_ = (access(shared.c_str(), W_OK) == 0 ? shared
                                               : std::filesystem::temp_directory_path().string()) +
            "/offstage-fuzz-XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) {
      __builtin_trap();
    }
  }
  ~FuzzDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  FuzzDirectory(FuzzDirectory const&) = delete;
  FuzzDirectory& operator=(FuzzDirectory const&) = delete;
  [[nodiscard]] std::string const& path() const { return path_; }

 private:
  std::string path_;
};

/// Reads at once: ending a context of the real one takes 40 ms.
class BlockingKernel final : public aio::Kernel {
 public:
  int setup(int /*depth*/, Context& /*context*/) override { return 0; }
  int submit(Context /*context*/, aio::Transfer const& transfer) override {
    ssize_t const moved = pread(transfer.descriptor, transfer.memory,
                                static_cast<std::size_t>(transfer.length), transfer.offset);
    done_.push_back({transfer.tag, moved < 0 ? -errno : moved});
    return 0;
  }
  int get_events(Context /*context*/, std::span<aio::Completion> completions) override {
    completions[0] = done_.back();
    done_.pop_back();
    return 1;
  }
  void destroy(Context /*context*/) noexcept override {}

 private:
  static inline thread_local std::vector<aio::Completion> done_;
};

/// Two subgroups of one and three chunks; every layer is one chunk.
inline state::ModelShape sample_model() {
  return {.layers = 1,
          .hidden = 4,
          .heads = 1,
          .kv_heads = 1,
          .ffn_hidden = 4,
          .vocab = 8,
          .max_sequence = 4,
          .tied_head = true};
}

class SampleCheckpoint {
 public:
  static constexpr int ranks = 2;

  SampleCheckpoint() {
    aio::make_directory(directory());
    for (int layer = 0; layer < 4; ++layer) {
      expected_.push_back(state_of(layer, layer + 1));
    }
    for (int rank = 0; rank < ranks; ++rank) {
      write_rank(rank);
    }
    master.meta.step = 7;
    master.meta.ranks = ranks;
    master.meta.model = sample_model();
    master.meta.configuration = "train.seed=1\n";
    master.meta.program = "offstage";
    write_master(path(master_name), master, manifests);
  }

  [[nodiscard]] std::string directory() const { return directory_.path() + "/" + step_name(7); }
  [[nodiscard]] std::string path(std::string const& name) const { return directory() + "/" + name; }
  [[nodiscard]] std::vector<std::string> files() const {
    return {master_name,      rank_file_name(0), extent_file_name(0, 1),
            manifest_name(0), rank_file_name(1), manifest_name(1)};
  }

  /// Reads the state as a restart does. True if all of it was read; what was read is what was
  /// written, if `strict`.
  /// Errors: DataError.
  bool read_all(bool strict) {
    Inspection found = inspect(directory());
    if (found.state != Completeness::complete) {
      return false;
    }
    Reader reader{directory(), std::move(found.master), kernel_};
    for (int rank = 0; rank < reader.map().ranks(); ++rank) {
      (void)reader.manifest(rank);
    }
    for (int layer = 0; layer < static_cast<int>(reader.map().layers().size()); ++layer) {
      state::Piece const piece{layer, {0, 1}, 0};
      auto const state =
          buffer_.bytes().first(static_cast<std::size_t>(reader.layout().bytes(chunk_elements)));
      reader.read({&piece, 1}, state);
      if (strict && !std::ranges::equal(state, expected_[static_cast<std::size_t>(layer)])) {
        __builtin_trap();
      }
    }
    return true;
  }

  Master master;                    ///< as written
  std::vector<Manifest> manifests;  ///< as written

 private:
  static std::byte value_at(int layer, std::int64_t byte) {
    return static_cast<std::byte>(1 + 37 * layer + byte % 101);
  }

  /// p, m and v of a subgroup that is layers [first, last) of one chunk each.
  [[nodiscard]] static std::vector<std::byte> state_of(int first, int last) {
    std::int64_t const row = 4 * chunk_elements * (last - first);
    std::vector<std::byte> state(static_cast<std::size_t>(3 * row));
    for (int array = 0; array < 3; ++array) {
      for (int layer = first; layer < last; ++layer) {
        for (std::int64_t i = 0; i < 4 * chunk_elements; ++i) {
          state[static_cast<std::size_t>(array * row + (layer - first) * 4 * chunk_elements + i)] =
              value_at(layer, array * 4 * chunk_elements + i);
        }
      }
    }
    return state;
  }

  static void write_at(std::string const& path, Bytes offset, std::span<std::byte const> bytes) {
    int const file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (pwrite(file, bytes.data(), bytes.size(), offset) != std::ssize(bytes) || close(file) != 0) {
      __builtin_trap();
    }
  }

  void write_rank(int rank) {
    Manifest manifest{
        .format = format_of_rank_files, .rank = rank, .ranks = ranks, .file = rank_file_name(rank)};
    if (rank == 0) {
      manifest.subgroups.push_back({.elements = chunk_elements, .pieces = {{0, {0, 1}, 0}}});
      manifest.subgroups.push_back(
          {.elements = 3 * chunk_elements,
           .pieces = {
               {1, {0, 1}, 0}, {2, {0, 1}, chunk_elements}, {3, {0, 1}, 2 * chunk_elements}}});
      manifest.subgroups[1].own_file.emplace().name = extent_file_name(0, 1);
    }
    write_arrays(manifest);
    manifest.file_bytes = size_of(path(manifest.file)).value();
    std::string const text = to_json(manifest);
    write_text(path(manifest_name(rank)), text);
    master.ranks.push_back(
        {manifest.file, manifest.file_bytes, manifest_name(rank), checksum_of(text)});
    manifests.push_back(std::move(manifest));
  }

  void write_arrays(Manifest& manifest) {
    h5::File file = h5::File::create(path(manifest.file), {4096, aio::direct_alignment, 16 * KiB});
    std::vector<std::vector<std::byte>> states;
    for (std::size_t k = 0; k < manifest.subgroups.size(); ++k) {
      StoredSubgroup& stored = manifest.subgroups[k];
      auto const first = static_cast<int>(k);
      auto const& state = states.emplace_back(state_of(first, k == 0 ? 1 : 4));
      std::vector<std::uint64_t> checksums(static_cast<std::size_t>(stored.blocks(adamw_layout())));
      checksum_blocks(state, checksums);
      stored.checksum = checksum_of(std::as_bytes(std::span{checksums}));
      if (stored.own_file) {
        write_extent(stored, state);
      } else {
        stored.offset =
            reserve_planes(file, manifest.place(k), adamw_layout(), stored.elements).value();
      }
      file.write<std::uint64_t>(manifest.checksum_name(k), {std::ssize(checksums)}, checksums);
    }
    file.close();
    for (std::size_t k = 0; k < states.size(); ++k) {
      if (!manifest.subgroups[k].own_file) {
        write_at(path(manifest.file), manifest.subgroups[k].offset, states[k]);
      }
    }
  }

  void write_extent(StoredSubgroup& stored, std::span<std::byte const> state) {
    ExtentFile& own = *stored.own_file;
    h5::File file =
        h5::File::create(path(own.name), {aio::direct_alignment, aio::direct_alignment, 16 * KiB});
    stored.offset = reserve_planes(file, "/", adamw_layout(), stored.elements).value();
    file.close();
    write_at(path(own.name), stored.offset, state);
    own.bytes = size_of(path(own.name)).value();
    master.extents.push_back({own.name, own.bytes});
  }

  FuzzDirectory directory_;
  std::vector<std::vector<std::byte>> expected_;  ///< of each layer
  std::shared_ptr<BlockingKernel> kernel_ = std::make_shared<BlockingKernel>();
  memory::HugeBuffer buffer_{16 * 4 *
                             chunk_elements};  // of the most planes that a checkpoint may have
};

/// One file, to be changed and put right again.
class Target {
 public:
  explicit Target(std::string path) : path_{std::move(path)}, good_{read_text(path_)} {}

  [[nodiscard]] std::string const& path() const { return path_; }
  [[nodiscard]] std::string const& good() const { return good_; }
  void write(Bytes offset, std::span<std::uint8_t const> bytes) {
    change([&](int file) {
      return pwrite(file, bytes.data(), bytes.size(), offset) == std::ssize(bytes);
    });
  }
  void resize(Bytes size) {
    change([&](int file) { return ftruncate(file, size) == 0; });
  }
  void put(std::string const& text) {
    resize(0);
    write(0, {reinterpret_cast<std::uint8_t const*>(text.data()), text.size()});
  }
  void remove() {
    changed_ = true;
    unlink(path_.c_str());
  }
  /// Somebody else has changed it.
  void touch() { changed_ = true; }
  void restore() {
    if (std::exchange(changed_, false)) {
      change([&](int file) {
        return ftruncate(file, std::ssize(good_)) == 0 &&
               pwrite(file, good_.data(), good_.size(), 0) == std::ssize(good_);
      });
      changed_ = false;
    }
  }

 private:
  template <class Work>
  void change(Work&& work) {
    changed_ = true;
    int const file = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || !work(file) || close(file) != 0) {
      __builtin_trap();
    }
  }

  std::string path_;
  std::string good_;
  bool changed_{};
};

/// The sample and its files.
struct DamagedSample {
  DamagedSample() {
    for (std::string const& name : checkpoint.files()) {
      targets.push_back(std::make_unique<Target>(checkpoint.path(name)));
    }
    if (!checkpoint.read_all(true)) {
      __builtin_trap();
    }
  }
  void restore() {
    for (auto const& target : targets) {
      target->restore();
    }
  }

  SampleCheckpoint checkpoint;
  std::vector<std::unique_ptr<Target>> targets;  ///< as checkpoint.files()
};

}  // namespace offstage::checkpoint
