#include "checkpoint/older_layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/directory.hpp"
#include "checkpoint/inspect.hpp"
#include "checkpoint/reader.hpp"
#include "checkpoint/sample.hpp"
#include "platform/h5/file.hpp"
#include "platform/scratch_directory.hpp"

namespace offstage::checkpoint {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int of_one_layer = format_of_two_layers - 1;

TEST(OlderLayout, HadABlockAsOneLayerWithAllMatricesFirst) {
  auto const layers = layers_of(small_model(), of_one_layer);
  ASSERT_EQ(layers.size(), 4U);
  state::LayerLayout const& block = layers[2];
  // Rows of 24: q 24, k 12, v 12, o 24, then gate and up of 40, down of 24 rows of 40.
  EXPECT_EQ(block.tensor("q_proj.weight").offset, 0);
  EXPECT_EQ(block.tensor("gate_proj.weight").offset, 24 * (24 + 12 + 12 + 24));
  EXPECT_EQ(block.tensor("down_proj.weight").offset, 24 * (24 + 12 + 12 + 24 + 40 + 40));
  EXPECT_EQ(block.decayed_elements, 24 * (24 + 12 + 12 + 24 + 3 * 40));
  EXPECT_EQ(block.tensor("input_layernorm.weight").offset, block.decayed_elements);
  EXPECT_EQ(block.tensor("post_attention_layernorm.weight").offset, block.decayed_elements + 24);
  EXPECT_EQ(block.elements, block.decayed_elements + 48);
  EXPECT_EQ(layers.back().elements, state::layers_of(small_model()).back().elements);
}

TEST(OlderLayout, IsTodaysFromFormatFiveOn) {
  auto const today = state::layers_of(small_model());
  EXPECT_EQ(layers_of(small_model(), format_of_two_layers).size(), today.size());
  auto const sections = sections_of({4, {1, 1}, 8192}, today, today);
  ASSERT_EQ(sections.size(), 1U);
  EXPECT_EQ(sections[0].layer, 4);
  EXPECT_EQ(sections[0].begin, chunk_elements);
  EXPECT_EQ(sections[0].target, 8192);
  EXPECT_EQ(sections[0].elements, chunk_elements);
}

TEST(OlderLayout, SaysWhereEachTensorOfALayerWas) {
  auto const today = state::layers_of(small_model());
  auto const then = layers_of(small_model(), of_one_layer);
  int const mlp = state::mlp_layer(1);
  auto const sections = sections_of({mlp, {0, 1}, 100}, today, then);
  std::int64_t const matrices = 24 * 3 * 40;
  std::int64_t found = 0;
  for (Section const& section : sections) {
    EXPECT_EQ(section.layer, 2);
    EXPECT_EQ(section.target, 100 + found);
    found += section.elements;
  }
  EXPECT_EQ(found, matrices + 24);
  EXPECT_EQ(sections.front().begin, 24 * (24 + 12 + 12 + 24));
  EXPECT_EQ(sections.back().begin, then[2].decayed_elements + 24);  // behind attention's norm
}

/// Format 4, written by the last program that knew no newer one: two ranks, two blocks of two
/// chunks, two steps with Lion.
std::string const format_4 = OFFSTAGE_FORMATS "/format-4";

//// A plane of the layers of that format, as the rank files show it through HDF5 alone.
std::vector<std::vector<float>> stored_plane(std::string const& path, Reader const& reader,
                                             std::string const& plane) {
  std::vector<std::vector<float>> layers;
  for (state::LayerLayout const& layer : layers_of(reader.meta().model, of_one_layer)) {
    layers.emplace_back(static_cast<std::size_t>(layer.padded_elements()));
  }
  for (int rank = 0; rank < 2; ++rank) {
    Manifest const manifest = reader.manifest(rank);
    h5::File const file = h5::File::open_read(path + "/" + manifest.file);
    for (std::size_t k = 0; k < manifest.subgroups.size(); ++k) {
      StoredSubgroup const& stored = manifest.subgroups[k];
      auto const values =
          file.read<float>("/subgroup/" + std::to_string(k) + "/" + plane, {stored.elements});
      for (state::Piece const& piece : stored.pieces) {
        std::copy_n(values.begin() + piece.offset, piece.chunks.count * chunk_elements,
                    layers[static_cast<std::size_t>(piece.layer)].begin() +
                        piece.chunks.first * chunk_elements);
      }
    }
  }
  return layers;
}

TEST(OlderLayout, IsReadTensorByTensorAsItsFilesShowIt) {
  auto const all = list(format_4);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].state, Completeness::complete) << all[0].problem;
  EXPECT_THAT(verify(all[0]), IsEmpty());
  Reader reader{all[0].path, read_master(all[0].path)};
  ASSERT_EQ(reader.layout().size(), 2U);
  auto const& layers = reader.map().layers();
  ASSERT_EQ(layers.size(), 6U);
  auto const then = layers_of(reader.meta().model, of_one_layer);
  std::array const stored{stored_plane(all[0].path, reader, "parameter"),
                          stored_plane(all[0].path, reader, "momentum")};
  std::array const numbers{0, 1, 1, 2, 2, 3};
  for (int number = 0; number < 6; ++number) {
    state::LayerLayout const& layer = layers[static_cast<std::size_t>(number)];
    auto const older = static_cast<std::size_t>(numbers.at(static_cast<std::size_t>(number)));
    std::vector<state::Piece> const pieces{{number, {0, layer.chunks()}, 0}};
    std::int64_t const padded = layer.padded_elements();
    memory::HugeBuffer const extent{reader.layout().bytes(padded)};
    std::ranges::fill(extent.bytes(), std::byte{1});
    reader.read(pieces, extent.bytes());
    for (std::size_t plane = 0; plane < 2; ++plane) {
      auto const values = extent.as<float>().subspan(
          static_cast<std::size_t>(reader.layout().plane_offset(plane, padded)) / sizeof(float),
          static_cast<std::size_t>(padded));
      for (state::TensorLayout const& tensor : layer.tensors) {
        auto const part = values.subspan(static_cast<std::size_t>(tensor.offset),
                                         static_cast<std::size_t>(tensor.elements()));
        auto const expected = std::span{stored.at(plane)[older]}.subspan(
            static_cast<std::size_t>(then[older].tensor(tensor.name).offset), part.size());
        EXPECT_TRUE(std::ranges::equal(part, expected)) << tensor.name;
        EXPECT_TRUE(std::ranges::any_of(part, [](float value) { return value != 0.0F; }))
            << tensor.name;
      }
      EXPECT_TRUE(std::ranges::all_of(values.subspan(static_cast<std::size_t>(layer.elements)),
                                      [](float value) { return value == 0.0F; }))
          << layer.name;
    }
  }
}

/// Formats 5 and 6, written by the last program that knew no newer one: four ranks, Lion with
/// moments in bf16, two steps of a model whose largest layer has five chunks, of which the ranks
/// had 2, 1, 1 and 1.
class OlderDeal : public ::testing::TestWithParam<char const*> {};
INSTANTIATE_TEST_SUITE_P(Checkpoint, OlderDeal,
                         ::testing::Values(OFFSTAGE_FORMATS "/format-5",
                                           OFFSTAGE_FORMATS "/format-6"));

/// Of every tensor, as the virtual datasets of the master show it.
std::map<std::string, std::vector<float>> shown_parameters(
    std::string const& step, std::vector<state::LayerLayout> const& layers) {
  h5::File const master = h5::File::open_read(step + "/" + master_name);
  std::map<std::string, std::vector<float>> shown;
  for (state::LayerLayout const& layer : layers) {
    for (state::TensorLayout const& tensor : layer.tensors) {
      h5::Shape shape{tensor.rows};
      if (tensor.columns > 0) {
        shape.push_back(tensor.columns);
      }
      shown[tensor.name] = master.read_mapped("/parameter/" + tensor.name, shape);
    }
  }
  return shown;
}

TEST_P(OlderDeal, IsReadAsItsMasterShowsIt) {
  auto const all = list(GetParam());
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].state, Completeness::complete) << all[0].problem;
  EXPECT_THAT(verify(all[0]), IsEmpty());
  auto const layers = state::layers_of(all[0].meta.model);
  int const mlp = state::mlp_layer(0);
  ASSERT_EQ(layers[static_cast<std::size_t>(mlp)].chunks(), 5);
  // Before the reader opens the same files, which HDF5 opens in one way at a time.
  auto const shown = shown_parameters(all[0].path, layers);
  Reader reader{all[0].path, read_master(all[0].path)};
  EXPECT_EQ(reader.map().chunks(mlp, 3).count, 1) << "equal parts would leave it none";
  for (std::size_t number = 0; number < layers.size(); ++number) {
    state::LayerLayout const& layer = layers[number];
    state::Piece const piece{static_cast<int>(number), {0, layer.chunks()}, 0};
    memory::HugeBuffer const read{layer.padded_elements() * static_cast<Bytes>(sizeof(float))};
    reader.read_parameters({&piece, 1}, read.as<float>());
    for (state::TensorLayout const& tensor : layer.tensors) {
      auto const part = read.as<float>().subspan(static_cast<std::size_t>(tensor.offset),
                                                 static_cast<std::size_t>(tensor.elements()));
      EXPECT_TRUE(std::ranges::equal(part, shown.at(tensor.name))) << tensor.name;
      EXPECT_TRUE(std::ranges::any_of(part, [](float value) { return value != 0.0F; }))
          << tensor.name;
    }
  }
}

TEST(OlderDeals, OfRanksAndOfNodesHoldTheSame) {
  auto const of_ranks = list(OFFSTAGE_FORMATS "/format-5");
  auto const of_nodes = list(OFFSTAGE_FORMATS "/format-6");
  ASSERT_EQ(of_ranks.size(), 1U);
  ASSERT_EQ(of_nodes.size(), 1U);
  EXPECT_EQ(read_master(of_ranks[0].path).format, 5);
  EXPECT_EQ(read_master(of_nodes[0].path).format, 6);
  EXPECT_THAT(compare(of_ranks[0], of_nodes[0]), IsEmpty());
}

// What a rank reads of a master it gets from another rank as bytes.
TEST(Master, IsTheSameAfterItWasPacked) {
  for (char const* const format : {"1", "2", "3", "4", "5", "6"}) {
    auto const all = list(std::string{OFFSTAGE_FORMATS "/format-"} + format);
    ASSERT_EQ(all.size(), 1U);
    Master read = read_master(all[0].path);
    read.meta.configuration += "data.train=" + std::string(100'000, 'x') + "\n";
    Master const packed = unpack_master(pack_master(read, all[0].path), all[0].path);
    EXPECT_EQ(packed.format, read.format);
    EXPECT_EQ(checksum_of_contents(packed), checksum_of_contents(read));
    EXPECT_EQ(packed.meta.model, read.meta.model);
    EXPECT_EQ(packed.meta.configuration, read.meta.configuration);
  }
}

TEST(OlderLayout, IsRefusedWhereOneScaleIsOfTwoTensors) {
  ScratchDirectory const scratch;
  OptimizerState state;
  state.layout = small_layout();
  auto const path = write_checkpoint(scratch.path(), 1, 1, chunk_elements, 3, small_model(), state);
  Master master = read_master(path);
  master.format = of_one_layer;
  Reader reader{path, std::move(master)};
  state::Piece const piece{state::mlp_layer(0), {0, 1}, 0};
  memory::HugeBuffer const extent{reader.layout().bytes(chunk_elements)};
  auto const problem = message_of<Refused>([&] { reader.read({&piece, 1}, extent.bytes()); });
  EXPECT_THAT(problem, HasSubstr(path));
  EXPECT_THAT(problem, HasSubstr("momentum_scale of 256 elements"));
  EXPECT_THAT(problem, HasSubstr("train.init-from="));
}

}  // namespace
}  // namespace offstage::checkpoint
