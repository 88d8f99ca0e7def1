#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/chunk.hpp"
#include "base/random.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/listing.hpp"
#include "checkpoint/writer.hpp"
#include "platform/aio/file.hpp"
#include "platform/h5/file.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "state/shard.hpp"
#include "tiers/host_tiers.hpp"
#include "tiers/tiers.hpp"
#include "tiers/virtual_tiers.hpp"

namespace offstage::checkpoint {

constexpr std::int64_t two_chunks = 2 * chunk_elements;

/// Layers of two to four chunks whose chunk borders lie inside rows.
inline state::ModelShape small_model() {
  return {.layers = 2,
          .hidden = 24,
          .heads = 2,
          .kv_heads = 1,
          .ffn_hidden = 40,
          .vocab = 600,
          .max_sequence = 16};
}

/// Every layer is one chunk: ranks beyond the first own nothing.
inline state::ModelShape tiny_model() {
  return {.layers = 1,
          .hidden = 4,
          .heads = 1,
          .kv_heads = 1,
          .ffn_hidden = 4,
          .vocab = 8,
          .max_sequence = 4,
          .tied_head = true};
}

/// What p, m or v (array 0, 1, 2) in FP32 holds at an element of a layer in state `seed`.
inline float value_at(std::uint64_t seed, int layer, std::int64_t element, int array) {
  std::uint64_t const key = seed * 1000 + static_cast<std::uint64_t>(10 * layer + array);
  auto const words = philox(key, 0, static_cast<std::uint64_t>(element));
  return static_cast<float>(words[0]) * 0x1p-32F - 0.5F;
}

/// AdamW's planes in 8 bits.
inline StateLayout small_layout() {
  return StateLayout{{{"parameter", PlaneType::fp32},
                      {"momentum", PlaneType::signed8},
                      {"variance", PlaneType::unsigned8},
                      {"momentum_scale", PlaneType::fp32, scale_block},
                      {"variance_scale", PlaneType::fp32, scale_block}}};
}

/// One rank's shard in host memory.
class Shard {
 public:
  Shard(state::ModelShape const& model, int ranks, int rank, std::int64_t subgroup_elements,
        StateLayout of_state = adamw_layout())
      : layout{std::move(of_state)},
        map{state::layers_of(model), ranks},
        subgroups{state::subgroups_of(map, rank, subgroup_elements)} {
    tiers = tiers::make_host_tiers(sizes());
  }

  [[nodiscard]] std::vector<Bytes> sizes() const {
    std::vector<Bytes> bytes;
    for (state::Subgroup const& subgroup : subgroups) {
      bytes.push_back(layout.bytes(subgroup.size));
    }
    return bytes;
  }

  void fill(std::uint64_t seed) {
    for (state::Subgroup const& subgroup : subgroups) {
      tiers::Lease lease = tiers->create(subgroup.index);
      std::ranges::copy(expected(subgroup, seed), lease.mutable_bytes().data());
      lease.commit();
    }
  }

  /// True if every bit is that of state `seed`.
  [[nodiscard]] bool holds(std::uint64_t seed) {
    return std::ranges::all_of(subgroups, [&](state::Subgroup const& subgroup) {
      tiers::Lease const lease = tiers->fetch(subgroup.index);
      return std::ranges::equal(lease.bytes(), expected(subgroup, seed));
    });
  }

  /// Whether the reader finds that state, which was written with this layout.
  [[nodiscard]] bool is_read_by(auto& reader, std::uint64_t seed) const {
    return std::ranges::all_of(subgroups, [&](state::Subgroup const& subgroup) {
      memory::HugeBuffer const buffer{layout.bytes(subgroup.size)};
      reader.read(subgroup.pieces, buffer.bytes());
      layout.clear_padding(buffer.bytes(), subgroup.size);
      return std::ranges::equal(buffer.bytes(), expected(subgroup, seed));
    });
  }

  /// Zeros where planes are padded.
  [[nodiscard]] std::vector<std::byte> expected(state::Subgroup const& subgroup,
                                                std::uint64_t seed) const {
    std::vector<std::byte> extent(static_cast<std::size_t>(layout.bytes(subgroup.size)));
    for (std::size_t plane = 0; plane < layout.size(); ++plane) {
      auto const per_value = layout.planes()[plane].elements_per_value;
      auto const width = static_cast<std::size_t>(bytes_of(layout.planes()[plane].type));
      for (state::Piece const& piece : subgroup.pieces) {
        std::byte* const target = extent.data() + layout.plane_offset(plane, subgroup.size) +
                                  layout.plane_bytes(plane, piece.offset);
        std::int64_t const first = piece.chunks.first * chunk_elements / per_value;
        for (std::int64_t i = 0; i < piece.chunks.count * chunk_elements / per_value; ++i) {
          float const value = value_at(seed, piece.layer, first + i, static_cast<int>(plane));
          std::memcpy(target + i * static_cast<std::int64_t>(width), &value, width);
        }
      }
    }
    return extent;
  }

  StateLayout layout;
  state::ShardMap map;
  std::vector<state::Subgroup> subgroups;
  std::unique_ptr<tiers::Tiers> tiers;
};

inline Meta sample_meta(state::ModelShape const& model, std::int64_t step) {
  return {.step = step,
          .samples = 7 * step,
          .seed = ~std::uint64_t{41},
          .loss_scale = 1024.0,
          .learning_rate = 0.1 + 1e-9,
          .bad_steps = 2,
          .optimizer_step = step - 1,
          .state = {},
          .model = model,
          .configuration = "train.seed=1\nrun.dir=somewhere\n",
          .program = "offstage 0.1.0",
          .threads = 2,
          .ranks = 1};
}

/// Writes what all ranks of a run would, up to the master; returns the manifests.
inline std::vector<std::string> write_ranks(std::string const& directory,
                                            state::ModelShape const& model, int ranks,
                                            std::int64_t subgroup_elements, std::uint64_t seed,
                                            StateLayout const& layout = adamw_layout()) {
  aio::make_directory(directory);
  std::vector<std::string> manifests;
  for (int rank = 0; rank < ranks; ++rank) {
    Shard shard{model, ranks, rank, subgroup_elements, layout};
    shard.fill(seed);
    manifests.push_back(
        write_rank_file(directory, rank, ranks, layout, shard.subgroups, *shard.tiers).manifest);
  }
  return manifests;
}

/// Writes a whole checkpoint without MPI; returns its step directory.
inline std::string write_checkpoint(std::string const& parent, std::int64_t step, int ranks,
                                    std::int64_t subgroup_elements, std::uint64_t seed,
                                    state::ModelShape const& model = small_model(),
                                    OptimizerState const& state = {}) {
  std::string directory = parent + "/" + step_name(step);
  auto const manifests =
      write_ranks(directory, model, ranks, subgroup_elements, seed, state.layout);
  Meta meta = sample_meta(model, step);
  meta.state = state;
  commit_master(directory, meta, manifests);
  return directory;
}

/// Inverts one bit of a file.
inline void flip_bit(std::string const& path, std::int64_t byte) {
  std::fstream file{path, std::ios::in | std::ios::out | std::ios::binary};
  file.seekg(byte);
  auto const value = static_cast<char>(file.get() ^ 1);
  file.seekp(byte);
  file.put(value);
}

inline void overwrite(std::string const& path, std::string const& text) {
  std::ofstream{path, std::ios::binary | std::ios::trunc} << text;
}

inline void shorten(std::string const& path, std::uintmax_t bytes) {
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - bytes);
}

/// A master of the small model, whose shards were filled with `seed`, shows every tensor whole.
inline void expect_every_tensor(std::string const& master_path, std::uint64_t seed) {
  h5::File const master = h5::File::open_read(master_path);
  auto const layers = state::layers_of(small_model());
  char const* const groups[]{"/parameter/", "/momentum/", "/variance/"};
  for (std::size_t l = 0; l < layers.size(); ++l) {
    for (state::TensorLayout const& tensor : layers[l].tensors) {
      h5::Shape shape{tensor.rows};
      if (tensor.columns > 0) {
        shape.push_back(tensor.columns);
      }
      for (int array = 0; array < 3; ++array) {
        auto const values = master.read_mapped(groups[array] + tensor.name, shape);
        for (std::size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(values[i], value_at(seed, static_cast<int>(l),
                                        tensor.offset + static_cast<std::int64_t>(i), array))
              << master_path << ": " << groups[array] << tensor.name << " element " << i;
        }
      }
    }
  }
}

template <class Failure, class Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (Failure const& error) {
    return error.what();
  }
  return "no such error";
}

}  // namespace offstage::checkpoint
