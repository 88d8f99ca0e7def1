// The master, as programs without Offstage read it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "checkpoint/directory.hpp"
#include "checkpoint/inspect.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/master.hpp"
#include "checkpoint/older_layout.hpp"
#include "checkpoint/sample.hpp"
#include "checkpoint/writer.hpp"
#include "platform/aio/file.hpp"
#include "platform/h5/file.hpp"
#include "platform/scratch_directory.hpp"

namespace offstage::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;

TEST(CheckpointMaster, ShowsEveryTensorWhole) {
  ScratchDirectory const scratch;
  for (int const ranks : {1, 3}) {
    std::string const step = write_checkpoint(scratch.path(), ranks, ranks, two_chunks, 9);
    expect_every_tensor(step + "/" + master_name, 9);
  }
}

TEST(CheckpointMaster, OfVeryManyPiecesShowsNoTensors) {
  ScratchDirectory const scratch;
  std::string const step = scratch / step_name(1);
  aio::make_directory(step);
  StateLayout const layout = adamw_layout();
  std::int64_t const most = 32768 / std::ssize(layout.planes());
  Manifest manifest{.format = format_of_rank_files,
                    .rank = 0,
                    .ranks = 1,
                    .file = rank_file_name(0),
                    .file_bytes = 4096};
  for (std::int64_t k = 0; k <= most; ++k) {
    StoredSubgroup& added = manifest.subgroups.emplace_back();
    added.elements = chunk_elements;
    added.pieces = {{.layer = 0, .chunks = {.first = k, .count = 1}, .offset = 0}};
    added.offset = manifest.file_bytes;
    manifest.file_bytes += layout.bytes(chunk_elements);
  }
  EXPECT_FALSE(can_show({&manifest, 1}, layout));
  std::ofstream{step + "/" + manifest.file};
  fs::resize_file(step + "/" + manifest.file, static_cast<std::uintmax_t>(manifest.file_bytes));
  overwrite(step + "/" + manifest_name(0), to_json(manifest));
  commit_master(step, sample_meta(small_model(), 1), {to_json(manifest)});
  auto const file = h5::File::open_read(step + "/" + master_name);
  EXPECT_EQ(file.text("tensors"), "not shown; offstage export writes the parameters");

  manifest.subgroups.pop_back();
  EXPECT_TRUE(can_show({&manifest, 1}, layout));
}

TEST(CheckpointMaster, FindsItsRanksAfterAMove) {
  ScratchDirectory const scratch;
  std::string const step = write_checkpoint(scratch.path(), 1, 2, two_chunks, 9);
  fs::rename(step, scratch / "elsewhere");
  h5::File const master = h5::File::open_read(scratch / "elsewhere/master.h5");
  auto const values = master.read_mapped("/momentum/model.embed_tokens.weight", {600, 24});
  EXPECT_EQ(values[14'399], value_at(9, 0, 14'399, 1));
  EXPECT_THAT(verify(list(scratch / "elsewhere").at(0)), IsEmpty());
}

TEST(CheckpointMaster, WithAnotherConfigurationShowsTheSameTensors) {
  ScratchDirectory const scratch;
  std::string const step = write_checkpoint(scratch.path(), 1, 2, two_chunks, 9);
  rewrite_configuration(step, "another");
  EXPECT_EQ(read_master(step).meta.configuration, "another");
  expect_every_tensor(step + "/" + master_name, 9);
  EXPECT_THAT(verify(list(step).at(0)), IsEmpty());
}

TEST(CheckpointMaster, OfADamagedManifestIsNotWrittenAnew) {
  ScratchDirectory const scratch;
  std::string const step = write_checkpoint(scratch.path(), 1, 2, two_chunks, 9);
  std::string const manifest = step + "/" + manifest_name(1);
  std::string text = read_text(manifest);
  char& digit = text.at(text.find(R"("checksum": ")") + 13);
  digit = digit == '0' ? '1' : '0';  // it is well-formed, and its master has a checksum of it
  overwrite(manifest, text);
  EXPECT_THROW(rewrite_configuration(step, "another"), DataError);
  EXPECT_NE(read_master(step).meta.configuration, "another");
}

TEST(CheckpointMaster, OfAFormatWithOtherLayersKeepsItsConfiguration) {
  for (int format = 1; format <= 6; ++format) {
    ScratchDirectory const scratch;
    std::string const step = scratch / step_name(2);
    fs::copy(std::string{OFFSTAGE_FORMATS "/format-"} + std::to_string(format) + "/" + step_name(2),
             step, fs::copy_options::recursive);
    Master const before = read_master(step);
    rewrite_configuration(step, "another");
    Master const after = read_master(step);
    EXPECT_EQ(after.meta.configuration,
              format < format_of_two_layers ? before.meta.configuration : "another")
        << format;
    EXPECT_EQ(after.format, before.format);
    EXPECT_THAT(verify(list(step).at(0)), IsEmpty()) << format;
  }
}

}  // namespace
}  // namespace offstage::checkpoint
