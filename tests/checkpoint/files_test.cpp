// Files of a checkpoint, written and read without MPI: one process plays all ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/inspect.hpp"
#include "checkpoint/reader.hpp"
#include "checkpoint/sample.hpp"
#include "platform/aio/file.hpp"
#include "platform/h5/file.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "platform/scratch_directory.hpp"

/// The leak sanitizer asks for this: HDF5 1.10 itself loses memory where it meets damaged metadata.
extern "C" char const* __lsan_default_suppressions() {
  return "leak:libhdf5";
}

namespace offstage::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

/// Reads the shards of all of `ranks` ranks and compares every bit.
bool reads_back(Reader& reader, int ranks, std::int64_t subgroup_elements, std::uint64_t seed) {
  bool equal = true;
  for (int rank = 0; rank < ranks; ++rank) {
    Shard const shard{reader.meta().model, ranks, rank, subgroup_elements, reader.layout()};
    equal = shard.is_read_by(reader, seed) && equal;
  }
  return equal;
}

TEST(CheckpointFiles, AreReadByAnyNumberOfRanksWithAnySubgroupSize) {
  for (state::ModelShape const& model : {small_model(), tiny_model()}) {
    for (int const writers : {1, 3, 5}) {
      ScratchDirectory const scratch;
      std::string const step = write_checkpoint(scratch.path(), 1, writers, two_chunks, 3, model);
      Reader reader{step, read_master(step)};
      for (int const readers : {1, 2, 3, 5}) {
        for (std::int64_t const subgroup : {chunk_elements, 3 * chunk_elements, 99 * two_chunks}) {
          EXPECT_TRUE(reads_back(reader, readers, subgroup, 3))
              << writers << " to " << readers << " ranks, subgroups of " << subgroup;
        }
      }
      EXPECT_THAT(verify(list(step).at(0)), IsEmpty());
    }
  }
}

StateLayout bf16_layout() {
  return StateLayout{{{"parameter", PlaneType::fp32}, {"momentum", PlaneType::bf16}}};
}

// Planes of one or two bytes, and scales, begin and end inside of what has a checksum.
TEST(CheckpointFiles, OfSmallMomentsAreReadByAnyNumberOfRanksWithAnySubgroupSize) {
  for (StateLayout const& layout : {small_layout(), bf16_layout()}) {
    for (int const writers : {1, 3}) {
      ScratchDirectory const scratch;
      std::string const step =
          write_checkpoint(scratch.path(), 1, writers, 3 * chunk_elements, 3, small_model(),
                           {.optimizer = "x", .moments = "y", .layout = layout});
      Reader reader{step, read_master(step)};
      EXPECT_EQ(reader.layout(), layout);
      EXPECT_EQ(reader.meta().state.optimizer, "x");
      EXPECT_EQ(reader.meta().state.moments, "y");
      for (int const readers : {1, 2, 5}) {
        for (std::int64_t const subgroup : {chunk_elements, 3 * chunk_elements, 99 * two_chunks}) {
          EXPECT_TRUE(reads_back(reader, readers, subgroup, 3))
              << writers << " to " << readers << " ranks, subgroups of " << subgroup;
        }
      }
      EXPECT_THAT(verify(list(step).at(0)), IsEmpty());
    }
  }
}

TEST(CheckpointFiles, AnyBitOfSmallMomentsIsCovered) {
  ScratchDirectory const scratch;
  std::string const step = write_checkpoint(scratch.path(), 1, 1, 3 * chunk_elements, 3,
                                            small_model(), {.layout = small_layout()});
  std::string const file = step + "/rank-0000.h5";
  Manifest const manifest = Reader{step, read_master(step)}.manifest(0);
  std::int64_t const elements = manifest.subgroups[0].elements;
  for (std::size_t plane = 0; plane < small_layout().size(); ++plane) {
    Bytes const last = manifest.subgroups[0].offset + small_layout().plane_offset(plane, elements) +
                       small_layout().plane_bytes(plane, elements) - 1;
    flip_bit(file, last);
    auto const problems = verify(list(step).at(0));
    ASSERT_THAT(problems, Not(IsEmpty())) << plane;
    EXPECT_THAT(problems[0], HasSubstr("does not match its checksum"));
    flip_bit(file, last);
  }
  EXPECT_THAT(verify(list(step).at(0)), IsEmpty());
}

/// A shard's subgroups, all begun before the first is finished.
class AllBegun {
 public:
  AllBegun(Reader& reader, Shard const& shard) : reader_{reader}, shard_{shard} {
    for (state::Subgroup const& subgroup : shard.subgroups) {
      buffers_.emplace_back(shard.layout.bytes(subgroup.size));
      reader.begin(subgroup.pieces, buffers_.back().bytes());
    }
    reader.begun_all();
  }
  ~AllBegun() { reader_.abandon(); }
  AllBegun(AllBegun const&) = delete;
  AllBegun& operator=(AllBegun const&) = delete;

  /// Finishes the next one; whether it holds state `seed`.
  [[nodiscard]] bool next_holds(std::uint64_t seed) {
    state::Subgroup const& subgroup = shard_.subgroups[next_];
    reader_.finish();
    auto const bytes = buffers_[next_++].bytes();
    shard_.layout.clear_padding(bytes, subgroup.size);
    return std::ranges::equal(bytes, shard_.expected(subgroup, seed));
  }
  [[nodiscard]] bool is_over() const { return next_ == buffers_.size(); }

 private:
  Reader& reader_;
  Shard const& shard_;
  std::vector<memory::HugeBuffer> buffers_;
  std::size_t next_ = 0;
};

TEST(CheckpointFiles, AreTheSameReadAhead) {
  for (StateLayout const& layout : {adamw_layout(), small_layout()}) {
    ScratchDirectory const scratch;
    std::string const step = write_checkpoint(scratch.path(), 1, 3, 3 * chunk_elements, 3,
                                              small_model(), {.layout = layout});
    Reader reader{step, read_master(step)};
    Shard const shard{small_model(), 2, 1, chunk_elements, layout};
    for (int time = 0; time < 2; ++time) {
      AllBegun begun{reader, shard};
      while (!begun.is_over()) {
        EXPECT_TRUE(begun.next_holds(3));
      }
    }
    { AllBegun const forgotten{reader, shard}; }
    EXPECT_TRUE(shard.is_read_by(reader, 3));
  }
}

TEST(CheckpointFiles, KeepEveryFieldOfMeta) {
  ScratchDirectory const scratch;
  state::ModelShape model = small_model();
  model.tied_head = true;
  model.rope_theta = 12'345.678;
  std::string const step = write_checkpoint(scratch.path(), 40, 2, two_chunks, 1, model);
  Meta const meta = read_master(step).meta;
  Meta const written = sample_meta(model, 40);
  EXPECT_EQ(meta.step, 40);
  EXPECT_EQ(meta.samples, written.samples);
  EXPECT_EQ(meta.seed, written.seed);
  EXPECT_EQ(meta.loss_scale, written.loss_scale);
  EXPECT_EQ(meta.learning_rate, written.learning_rate);
  EXPECT_EQ(meta.bad_steps, written.bad_steps);
  EXPECT_EQ(meta.optimizer_step, written.optimizer_step);
  EXPECT_EQ(meta.configuration, written.configuration);
  EXPECT_EQ(meta.program, written.program);
  EXPECT_EQ(meta.threads, written.threads);
  EXPECT_EQ(meta.ranks, 2);
  EXPECT_TRUE(meta.model == model);
}

TEST(CheckpointFiles, KeepEveryKeyOfAModel) {
  auto const changed = [](auto change) {
    auto model = small_model();
    change(model);
    return model;
  };
  using state::ModelShape;
  using state::QkNorm;
  using state::RopeScaling;
  std::vector<ModelShape> const models{
      changed([](ModelShape& model) { model.head_size = 6; }),
      changed([](ModelShape& model) { model.qkv_bias = true; }),
      changed([](ModelShape& model) { model.qk_norm = QkNorm::head; }),
      changed([](ModelShape& model) {
        model.qk_norm = QkNorm::all;
        model.norms_after = true;
      }),
      changed([](ModelShape& model) { model.window = 5; }),
      changed([](ModelShape& model) {
        model.rope_scaling = RopeScaling::linear;
        model.rope_factor = 2.5;
      }),
      changed([](ModelShape& model) {
        model.rope_scaling = RopeScaling::llama3;
        model.rope_low_frequency = 1.5;
        model.rope_high_frequency = 4.5;
        model.rope_original_sequence = 8;
      }),
      changed([](ModelShape& model) {
        model.rope_scaling = RopeScaling::yarn;
        model.rope_attention_factor = 1.25;
      }),
      changed([](ModelShape& model) { model.norm_epsilon = 1e-6; }),
      changed([](ModelShape& model) {
        model.family = state::Family::gpt2;
        model.kv_heads = model.heads;
        model.exact_gelu = true;
      })};
  for (ModelShape const& model : models) {
    ScratchDirectory const scratch;
    ASSERT_FALSE(model == small_model());
    auto const step = write_checkpoint(scratch.path(), 40, 2, two_chunks, 1, model);
    EXPECT_TRUE(read_master(step).meta.model == model);
  }
}

TEST(CheckpointFiles, StateIsAlignedForDirectAccess) {
  ScratchDirectory const scratch;
  std::string const step = write_checkpoint(scratch.path(), 1, 1, chunk_elements, 1);
  Reader const reader{step, read_master(step)};
  Manifest const manifest = reader.manifest(0);
  ASSERT_GT(manifest.subgroups.size(), 5U);
  for (StoredSubgroup const& subgroup : manifest.subgroups) {
    EXPECT_EQ(subgroup.offset % 4096, 0);
  }
  EXPECT_LT(manifest.file_bytes,
            static_cast<Bytes>(manifest.subgroups.size()) * (3 * block_bytes + 8192) + 64 * KiB);
}

TEST(CheckpointFiles, ARankThatOwnsNothingHasAFileWithoutArrays) {
  ScratchDirectory const scratch;
  std::string const step = write_checkpoint(scratch.path(), 1, 2, two_chunks, 1, tiny_model());
  EXPECT_TRUE(fs::exists(step + "/rank-0001.h5"));
  EXPECT_THAT(Reader(step, read_master(step)).manifest(1).subgroups, IsEmpty());
  fs::remove(step + "/rank-0001.h5");
  EXPECT_THAT(list(scratch.path()).at(0).problem, HasSubstr("rank-0001.h5 is missing"));
}

/// A checkpoint of two ranks, to damage.
class DamagedCheckpoint : public ::testing::Test {
 protected:
  [[nodiscard]] std::string problem() const {
    return message_of<DataError>([&] {
      Reader reader{step, read_master(step)};
      (void)reads_back(reader, 1, chunk_elements, 5);
    });
  }
  [[nodiscard]] Bytes offset_of(int rank, std::size_t subgroup) const {
    return Reader(step, read_master(step)).manifest(rank).subgroups.at(subgroup).offset;
  }

  ScratchDirectory scratch;
  std::string step = write_checkpoint(scratch.path(), 1, 2, two_chunks, 5);
};

TEST_F(DamagedCheckpoint, NamesTheChunkWhoseBitIsFlipped) {
  // Chunk 1 of v in a subgroup of two chunks.
  flip_bit(step + "/rank-0001.h5", offset_of(1, 1) + 5 * block_bytes + 100);
  EXPECT_THAT(problem(), AllOf(HasSubstr("rank-0001.h5"), HasSubstr("chunk 1"),
                               HasSubstr("variance"), HasSubstr("/subgroup/1")));
  EXPECT_THAT(verify(list(scratch.path()).at(0)), ElementsAre(HasSubstr("/subgroup/1")));
}

TEST_F(DamagedCheckpoint, ReadAheadIsReadAnewUntilItIsRight) {
  Reader reader{step, read_master(step)};
  Shard const shard{small_model(), 1, 0, two_chunks};
  ASSERT_GT(shard.subgroups.size(), 2U);
  Bytes const wrong = offset_of(0, 0) + 100;
  flip_bit(step + "/rank-0000.h5", wrong);
  AllBegun begun{reader, shard};
  EXPECT_THROW((void)begun.next_holds(5), DataError);
  EXPECT_THROW((void)begun.next_holds(5), DataError);
  flip_bit(step + "/rank-0000.h5", wrong);
  while (!begun.is_over()) {
    EXPECT_TRUE(begun.next_holds(5));
  }
}

TEST_F(DamagedCheckpoint, ReadAheadTellsOfAMissingFileWhenItIsFinished) {
  Reader reader{step, read_master(step)};
  Shard const shard{small_model(), 1, 0, two_chunks};
  fs::rename(step + "/rank-0000.h5", step + "/elsewhere");
  AllBegun begun{reader, shard};
  EXPECT_THROW((void)begun.next_holds(5), DataError);
  fs::rename(step + "/elsewhere", step + "/rank-0000.h5");
  while (!begun.is_over()) {
    EXPECT_TRUE(begun.next_holds(5));
  }
}

TEST_F(DamagedCheckpoint, FindsDamageInTheChecksumsThemselves) {
  {
    h5::File file = h5::File::open_read_write(step + "/rank-0000.h5");
    std::vector<std::uint64_t> const wrong(6);
    file.fill<std::uint64_t>("/checksum/0", wrong);
    file.close();
  }
  EXPECT_THAT(problem(), AllOf(HasSubstr("rank-0000.h5"), HasSubstr("/checksum/0")));
}

TEST_F(DamagedCheckpoint, ReportsEveryRankThatIsDamaged) {
  flip_bit(step + "/rank-0000.h5", offset_of(0, 0));
  flip_bit(step + "/rank-0001.h5", offset_of(1, 0));
  EXPECT_THAT(verify(list(scratch.path()).at(0)),
              ElementsAre(HasSubstr("rank-0000.h5"), HasSubstr("rank-0001.h5")));
}

TEST_F(DamagedCheckpoint, FindsAFileThatIsShortOrMissing) {
  shorten(step + "/rank-0001.h5", 1);
  EXPECT_THAT(problem(), AllOf(HasSubstr("rank-0001.h5 has"), HasSubstr("expected")));
  Listed const listed = list(scratch.path()).at(0);
  EXPECT_NE(listed.state, Completeness::complete);
  EXPECT_NE(listed.state, Completeness::unfinished);
  EXPECT_THAT(listed.problem, HasSubstr("rank-0001.h5"));
  EXPECT_EQ(inspect(step).state, Completeness::incomplete);

  fs::remove(step + "/rank-0001.h5");
  EXPECT_THAT(problem(), HasSubstr("rank-0001.h5 is missing"));
  EXPECT_THAT(verify(listed), ElementsAre(HasSubstr("rank-0001.h5 is missing")));
}

TEST_F(DamagedCheckpoint, IsNoneOnceItWasRemoved) {
  Listed const listed = list(scratch.path()).at(0);
  fs::remove(step + "/rank-0001.h5");
  EXPECT_FALSE(was_removed(listed));
  remove_checkpoint(step);
  EXPECT_FALSE(verify(listed).empty());
  EXPECT_TRUE(was_removed(listed));
}

TEST_F(DamagedCheckpoint, FindsAManifestThatIsMissingOrChanged) {
  std::string const path = step + "/rank-0000.json";
  std::string const text = read_text(path);
  overwrite(path, text + " ");
  EXPECT_THAT(problem(), AllOf(HasSubstr("rank-0000.json"), HasSubstr("checksum")));
  EXPECT_THAT(verify(list(scratch.path()).at(0)), Contains(HasSubstr("rank-0000.json")));
  fs::remove(path);
  EXPECT_THAT(problem(), HasSubstr("rank-0000.json"));
  EXPECT_EQ(inspect(step).state, Completeness::incomplete);
}

TEST_F(DamagedCheckpoint, IsNoneWithoutAMaster) {
  fs::rename(step + "/master.h5", step + "/master.h5.tmp");
  Listed const listed = list(scratch.path()).at(0);
  EXPECT_NE(listed.state, Completeness::complete);
  EXPECT_EQ(listed.state, Completeness::unfinished);
  EXPECT_THAT(listed.problem, HasSubstr("has no master.h5"));
  EXPECT_EQ(inspect(step).state, Completeness::unfinished);
}

TEST_F(DamagedCheckpoint, RefusesAMasterThatIsGarbageEmptyOrShort) {
  std::string const path = step + "/master.h5";
  shorten(path, 1);
  EXPECT_THAT(problem(), HasSubstr("master.h5"));
  overwrite(path, "garbage");
  EXPECT_THAT(problem(), HasSubstr("master.h5"));
  overwrite(path, "");
  EXPECT_THAT(problem(), HasSubstr("master.h5"));
  EXPECT_EQ(inspect(step).state, Completeness::unreadable);
}

// Any bit may flip: the master then is refused, or says exactly what was written.
TEST_F(DamagedCheckpoint, NeverTakesOtherContentsFromADamagedMaster) {
  std::string const path = step + "/master.h5";
  auto const size = static_cast<std::int64_t>(fs::file_size(path));
  int refused = 0;
  for (std::int64_t byte = 0; byte < size; byte += 31) {
    flip_bit(path, byte);
    try {
      Master const master = read_master(step);
      EXPECT_EQ(master.meta.step, 1) << byte;
      EXPECT_EQ(master.ranks.at(1).file, "rank-0001.h5") << byte;
    } catch (DataError const&) {
      ++refused;
    }
    flip_bit(path, byte);
  }
  EXPECT_GT(refused, 10);
  EXPECT_EQ(problem(), "no such error");
}

void write_format_version(std::string const& path, std::int64_t version) {
  fs::remove(path);
  h5::File file = h5::File::create(path);
  file.set("format_version", version);
  file.close();
}

TEST_F(DamagedCheckpoint, RefusesANewerFormatByName) {
  write_format_version(step + "/master.h5", format_version + 1);
  EXPECT_THAT(message_of<Refused>([&] { (void)read_master(step); }),
              AllOf(HasSubstr(step), HasSubstr("format 9, this program reads up to 8"),
                    HasSubstr("newer offstage")));
  Listed const listed = list(scratch.path()).at(0);
  EXPECT_EQ(listed.state, Completeness::newer);
  EXPECT_THAT(listed.problem, HasSubstr("format 9"));
}

class OlderFormat : public ::testing::TestWithParam<char const*> {};
INSTANTIATE_TEST_SUITE_P(Checkpoint, OlderFormat,
                         ::testing::Values(OFFSTAGE_FORMATS "/format-1",
                                           OFFSTAGE_FORMATS "/format-2",
                                           OFFSTAGE_FORMATS "/format-3"));

/// Each written by the last program that knew no newer one: two steps of a model of one block.
TEST_P(OlderFormat, IsReadWithDefaultsForWhatItDidNotKnow) {
  auto const all = list(GetParam());
  ASSERT_THAT(all, SizeIs(1));
  EXPECT_EQ(all[0].state, Completeness::complete) << all[0].problem;
  EXPECT_THAT(verify(all[0]), IsEmpty());

  Meta const& meta = all[0].meta;
  EXPECT_EQ(meta.step, 2);
  EXPECT_EQ(meta.samples, 4);
  EXPECT_EQ(meta.optimizer_step, 2);
  EXPECT_EQ(meta.loss_scale, 1.0);
  EXPECT_EQ(meta.loss_scale_steps, 0);
  EXPECT_EQ(meta.model, (state::ModelShape{.layers = 1,
                                           .hidden = 4,
                                           .heads = 1,
                                           .kv_heads = 1,
                                           .ffn_hidden = 4,
                                           .vocab = 256,
                                           .max_sequence = 8,
                                           .tied_head = true}));

  Reader reader{all[0].path, read_master(all[0].path)};
  constexpr std::size_t elements = 4 * chunk_elements;
  memory::HugeBuffer const parameters{static_cast<Bytes>(elements * sizeof(float))};
  std::vector<state::Piece> const pieces{{0, {0, 1}, 0},
                                         {1, {0, 1}, chunk_elements},
                                         {2, {0, 1}, 2 * chunk_elements},
                                         {3, {0, 1}, 3 * chunk_elements}};
  reader.read_parameters(pieces, parameters.as<float>());
  // The head is tied: its layer is the last norm alone, which two steps have moved a little.
  EXPECT_NEAR(parameters.as<float>()[3 * chunk_elements], 1.0F, 0.01F);
  // As the norms before attention, behind matrices of 4 x 4, and before the MLP.
  EXPECT_NEAR(parameters.as<float>()[chunk_elements + 4 * 16], 1.0F, 0.01F);
  EXPECT_NEAR(parameters.as<float>()[2 * chunk_elements + 3 * 16], 1.0F, 0.01F);
}

TEST(CheckpointModel, NamesTheKeysThatDiffer) {
  state::ModelShape run = small_model();
  run.hidden = 128;
  run.tied_head = true;
  run.max_sequence *= 2;
  EXPECT_THAT(message_of<Refused>([&] { require_same_model("dir/step-1", small_model(), run); }),
              AllOf(HasSubstr("dir/step-1"), HasSubstr("model.hidden: checkpoint 24, run 128"),
                    HasSubstr("model.tied-head: checkpoint false, run true"),
                    Not(HasSubstr("model.max-sequence"))));
  EXPECT_NO_THROW(require_same_model("dir/step-1", run, run));
  run = small_model();
  run.max_sequence *= 2;
  EXPECT_NO_THROW(require_same_model("dir/step-1", small_model(), run));
}

TEST(CheckpointList, GivesAllOfADirectoryOrOneOfThem) {
  ScratchDirectory const scratch;
  std::string const second = write_checkpoint(scratch.path(), 20, 2, two_chunks, 2);
  std::string const first = write_checkpoint(scratch.path(), 3, 1, two_chunks, 1);
  (void)write_ranks(scratch / "step-000000030", small_model(), 1, two_chunks, 3);
  auto const all = list(scratch.path());
  ASSERT_THAT(all, SizeIs(3));
  EXPECT_EQ(all[0].path, first);
  EXPECT_EQ(all[0].state, Completeness::complete);
  EXPECT_EQ(all[0].problem, "");
  EXPECT_EQ(all[1].meta.step, 20);
  EXPECT_GT(all[1].bytes, 12 * state::count_parameters(state::layers_of(small_model())));
  EXPECT_NE(all[2].state, Completeness::complete);
  EXPECT_EQ(all[2].state, Completeness::unfinished);
  ASSERT_THAT(list(second), SizeIs(1));
  EXPECT_EQ(list(second + "/")[0].meta.step, 20);
}

TEST(CheckpointList, SaysWhatIsWrongWithItsPath) {
  ScratchDirectory const scratch;
  EXPECT_THAT(message_of<DataError>([&] { (void)list(scratch.path()); }),
              HasSubstr("holds no checkpoint"));
  EXPECT_THAT(message_of<DataError>([&] { (void)list(scratch / "absent"); }), HasSubstr("absent"));
}

/// Tells whether a file of a directory has been opened since it was made.
class Opened {
 public:
  explicit Opened(std::string const& directory)
      : descriptor_{inotify_init1(IN_NONBLOCK | IN_CLOEXEC)},
        watch_{inotify_add_watch(descriptor_, directory.c_str(), IN_OPEN)} {}
  ~Opened() { close(descriptor_); }
  Opened(Opened const&) = delete;
  Opened& operator=(Opened const&) = delete;

  [[nodiscard]] bool watches() const { return watch_ >= 0; }
  [[nodiscard]] bool any() const {
    std::array<char, 4096> events{};
    return read(descriptor_, events.data(), events.size()) > 0;
  }

 private:
  int descriptor_;
  int watch_;
};

TEST(CheckpointList, LooksForTheNewestAndForAStepAtNoOther) {
  ScratchDirectory const scratch;
  std::string const old = write_checkpoint(scratch.path(), 3, 1, two_chunks, 1);
  std::string const newest = write_checkpoint(scratch.path(), 20, 2, two_chunks, 2);
  Opened const in_old{old};
  ASSERT_TRUE(in_old.watches());
  auto const found = newest_complete(scratch.path());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->path, newest);
  EXPECT_EQ(found->meta.step, 20);
  auto const of_step = list_step(scratch.path(), 20);
  ASSERT_THAT(of_step, SizeIs(1));
  EXPECT_EQ(of_step[0].path, newest);
  EXPECT_THAT(list_step(scratch.path(), 4), IsEmpty());
  EXPECT_FALSE(in_old.any());
  EXPECT_THAT(list_step(scratch.path(), 3), SizeIs(1));
  EXPECT_TRUE(in_old.any());
}

TEST(CheckpointCompare, FindsNoDifferenceWhateverRanksWrote) {
  ScratchDirectory const scratch;
  write_checkpoint(scratch.path(), 1, 1, chunk_elements, 7);
  write_checkpoint(scratch.path(), 2, 3, two_chunks, 7);
  auto const all = list(scratch.path());
  EXPECT_THAT(compare(all[0], all[1]), IsEmpty());
}

TEST(CheckpointCompare, CountsWhatDiffersPerTensorAndArray) {
  ScratchDirectory const scratch;
  std::string const a = write_checkpoint(scratch.path(), 1, 1, chunk_elements * 99, 7);
  std::string const b = scratch / step_name(2);
  aio::make_directory(b);
  Shard shard{small_model(), 1, 0, chunk_elements * 99};
  shard.fill(7);
  {
    tiers::Lease lease = shard.tiers->fetch(0);
    auto* const state = reinterpret_cast<float*>(lease.mutable_bytes().data());
    state[5] += 0.5F;
    state[9] += 0.25F;
    state[shard.subgroups[0].size + 30] = std::nanf("");
    lease.commit();
  }
  commit_master(b, sample_meta(small_model(), 2),
                {write_rank_file(b, 0, 1, adamw_layout(), shard.subgroups, *shard.tiers).manifest});
  EXPECT_THAT(compare(list(a)[0], list(b)[0]),
              ElementsAre("parameter model.embed_tokens.weight: 2 of 14400 elements differ, the "
                          "first at 5, largest difference 0.5",
                          "momentum model.embed_tokens.weight: 1 of 14400 elements differ, the "
                          "first at 30, largest difference inf"));
}

TEST(CheckpointCompare, TakesAnotherLongestSequenceForTheSameModel) {
  ScratchDirectory const scratch;
  state::ModelShape longer = small_model();
  longer.max_sequence *= 2;
  write_checkpoint(scratch.path(), 1, 1, chunk_elements, 7);
  write_checkpoint(scratch.path(), 2, 1, chunk_elements, 7, longer);
  auto const all = list(scratch.path());
  EXPECT_EQ(all[1].meta.model.max_sequence, longer.max_sequence);
  EXPECT_THAT(compare(all[0], all[1]), IsEmpty());
}

TEST(CheckpointCompare, RefusesOtherModelsAndDamage) {
  ScratchDirectory const scratch;
  write_checkpoint(scratch.path(), 1, 1, chunk_elements, 7);
  write_checkpoint(scratch.path(), 2, 1, chunk_elements, 7, tiny_model());
  auto const all = list(scratch.path());
  EXPECT_THAT(message_of<DataError>([&] { (void)compare(all[0], all[1]); }),
              HasSubstr("different models (model.layers: the first"));
  fs::remove(all[1].path + "/rank-0000.h5");
  EXPECT_THROW((void)compare(all[0], all[1]), DataError);
}

}  // namespace
}  // namespace offstage::checkpoint
