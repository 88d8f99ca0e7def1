// Checkpoints by reference, without MPI: one process plays all ranks.
#include "checkpoint/extent_file.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "checkpoint/inspect.hpp"
#include "checkpoint/reader.hpp"
#include "checkpoint/sample.hpp"
#include "platform/aio/file.hpp"
#include "platform/h5/file.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "platform/scratch_directory.hpp"
#include "tiers/host_tiers.hpp"

namespace offstage::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// What a run of some ranks has: their shards, on a persistent path but for `cached` extents each.
class ByReference : public ::testing::Test {
 protected:
  ByReference() { fs::create_directories(storage); }

  std::vector<Shard> make_shards(int ranks, std::int64_t cached = 0,
                                 std::int64_t subgroup_elements = two_chunks) {
    std::vector<Shard> shards;
    for (int rank = 0; rank < ranks; ++rank) {
      Shard& shard = shards.emplace_back(small_model(), ranks, rank, subgroup_elements, layout);
      std::int64_t largest = 0;
      for (state::Subgroup const& subgroup : shard.subgroups) {
        largest = std::max(largest, subgroup.size);
      }
      tiers::PathSettings path;
      path.directory = storage;
      path.persistent = true;
      tiers::VirtualSettings settings;
      settings.paths = tiers::make_paths({.paths = {path}});
      settings.spill = "offstage-test-" + std::to_string(rank);
      settings.cached = cached;
      settings.buffers = 1;
      if (largest > 0) {  // the last ranks may own nothing
        settings.kept = std::make_shared<tiers::KeptFileShape>(
            shape_of_slots(checkpoints, rank, layout, largest));
      }
      shard.tiers = tiers::make_virtual_tiers(shard.sizes(), settings);
    }
    return shards;
  }

  static void fill(std::vector<Shard>& shards, std::uint64_t seed) {
    for (Shard& shard : shards) {
      shard.fill(seed);
    }
  }

  [[nodiscard]] std::string path(std::int64_t step) const {
    return checkpoints + "/" + step_name(step);
  }

  /// Up to the master.
  std::vector<RankFiles> write(std::int64_t step, std::vector<Shard>& shards) const {
    aio::make_directory(path(step));
    std::vector<RankFiles> files;
    for (int rank = 0; rank < static_cast<int>(shards.size()); ++rank) {
      Shard& shard = shards[static_cast<std::size_t>(rank)];
      files.push_back(write_rank_file(path(step), rank, static_cast<int>(shards.size()), layout,
                                      shard.subgroups, *shard.tiers));
    }
    return files;
  }
  std::vector<RankFiles> save(std::int64_t step, std::vector<Shard>& shards) const {
    auto files = write(step, shards);
    std::vector<std::string> manifests;
    for (RankFiles const& file : files) {
      manifests.push_back(file.manifest);
    }
    Meta meta = sample_meta(small_model(), step);
    meta.state.layout = layout;
    commit_master(path(step), meta, manifests);
    return files;
  }

  /// Whether any number of ranks, of other subgroups, read state `seed` from it.
  [[nodiscard]] bool holds(std::string const& step, std::uint64_t seed) const {
    Reader reader{step, read_master(step)};
    bool equal = true;
    for (int const ranks : {1, 2, 3}) {
      for (int rank = 0; rank < ranks; ++rank) {
        Shard const shard{small_model(), ranks, rank, 3 * chunk_elements, layout};
        equal = shard.is_read_by(reader, seed) && equal;
      }
    }
    return equal && verify(list(step).at(0)).empty();
  }

  [[nodiscard]] std::vector<std::string> extents(std::int64_t step) const {
    std::vector<std::string> found;
    for (std::string const& name : names_of(path(step))) {
      if (name.starts_with("extent-")) {
        found.push_back(path(step) + "/" + name);
      }
    }
    std::ranges::sort(found);
    return found;
  }
  [[nodiscard]] std::ptrdiff_t slots() const {
    return fs::exists(checkpoints + "/slots")
               ? std::distance(fs::directory_iterator{checkpoints + "/slots"},
                               fs::directory_iterator{})
               : 0;
  }

  StateLayout layout = adamw_layout();
  ScratchDirectory scratch;
  std::string storage = scratch / "storage";
  std::string checkpoints = scratch / "checkpoints";
};

std::string bytes_of(std::string const& path) {
  return read_text(path);
}

// The bookkeeping of so many arrays is of several blocks, trees and heaps.
TEST(ExtentFile, HasPlanesInARowAmongManySubgroups) {
  ScratchDirectory const scratch;
  Shard shard{small_model(), 1, 0, chunk_elements, small_layout()};
  auto const one = shard.subgroups.front();
  shard.subgroups.clear();
  while (std::ssize(shard.subgroups) < 150) {
    shard.subgroups.push_back(one);
    shard.subgroups.back().index = std::ssize(shard.subgroups) - 1;
  }
  shard.tiers = tiers::make_host_tiers(shard.sizes());
  shard.fill(1);
  RankFiles const files =
      write_rank_file(scratch.path(), 0, 1, shard.layout, shard.subgroups, *shard.tiers);
  EXPECT_EQ(files.copied, 150 * shard.layout.bytes(chunk_elements));
  Manifest const manifest = parse_manifest(files.manifest, shard.layout, "path");
  EXPECT_LT(manifest.file_bytes, files.copied + space_for(shard.layout, {}) + 150 * 8192);
}

// The head of a slot is made at the start of a run, and compared with that of a checkpoint.
TEST_F(ByReference, HasHeadsWithoutTimes) {
  fs::create_directories(checkpoints);
  auto const head = extent_head(checkpoints + "/head", layout, two_chunks);
  std::string_view const text{reinterpret_cast<char const*>(head.data()), head.size()};
  constexpr std::string_view signature = "OHDR";  // of an object header; version and flags follow
  constexpr unsigned times_stored = 0x20;
  int headers = 0;
  for (auto at = text.find(signature); at != std::string_view::npos;
       at = text.find(signature, at + 1)) {
    EXPECT_EQ(std::to_integer<unsigned>(head.at(at + signature.size() + 1)) & times_stored, 0);
    ++headers;
  }
  EXPECT_GT(headers, 1);
}

// Subgroups of two sizes, whose planes begin at other places of equal slots.
TEST_F(ByReference, ShowsThePlanesOfSmallMoments) {
  layout = small_layout();
  auto shards = make_shards(1, 0, 5 * chunk_elements);
  fill(shards, 5);
  (void)save(1, shards);
  EXPECT_TRUE(holds(path(1), 5));
  (void)save(2, shards);  // the same files once more
  EXPECT_TRUE(holds(path(2), 5));
  EXPECT_TRUE(holds(path(1), 5));
  std::set<std::int64_t> sizes;
  for (state::Subgroup const& subgroup : shards[0].subgroups) {
    sizes.insert(subgroup.size);
  }
  EXPECT_THAT(sizes, SizeIs(2));
  h5::File const master = h5::File::open_read(path(1) + "/" + master_name);
  auto const shown = master.read_mapped("/parameter/model.embed_tokens.weight", {600, 24});
  EXPECT_EQ(shown[14'399], value_at(5, 0, 14'399, 0));
}

TEST_F(ByReference, CopiesNothingAndIsReadByAnyNumberOfRanks) {
  for (int const ranks : {1, 3}) {
    auto shards = make_shards(ranks);
    fill(shards, 5);
    std::size_t subgroups = 0;
    for (RankFiles const& files : save(ranks, shards)) {
      EXPECT_EQ(files.copied, 0);
    }
    for (Shard const& shard : shards) {
      subgroups += shard.subgroups.size();
    }
    EXPECT_THAT(extents(ranks), SizeIs(subgroups));
    EXPECT_TRUE(holds(path(ranks), 5));
    EXPECT_LT(fs::file_size(path(ranks) + "/rank-0000.h5"), 16U * 1024);
    EXPECT_TRUE(fs::is_empty(storage));
  }
}

TEST_F(ByReference, CopiesWhatIsInHostMemory) {
  auto shards = make_shards(2, 2);
  fill(shards, 6);
  Bytes copied = 0;
  Bytes referred = 0;
  for (RankFiles const& files : save(1, shards)) {
    copied += files.copied;
    referred += files.referred;
  }
  EXPECT_GT(copied, 0);
  EXPECT_GT(referred, 0);
  EXPECT_TRUE(holds(path(1), 6));
}

TEST_F(ByReference, ComparesWithACopyBitForBit) {
  auto shards = make_shards(2, 1);
  fill(shards, 7);
  save(1, shards);
  write_checkpoint(checkpoints, 2, 3, two_chunks, 7);
  write_checkpoint(checkpoints, 3, 1, two_chunks, 8);
  EXPECT_THAT(compare(list(path(1))[0], list(path(2))[0]), IsEmpty());
  EXPECT_THAT(compare(list(path(1))[0], list(path(3))[0]), Not(IsEmpty()));
}

TEST_F(ByReference, MasterShowsEveryTensorWholeAfterAMoveAsWell) {
  auto shards = make_shards(3, 1);
  fill(shards, 9);
  save(1, shards);
  fs::rename(path(1), scratch / "elsewhere");
  expect_every_tensor(scratch / "elsewhere/master.h5", 9);
}

TEST_F(ByReference, NeverWritesASlotThatACheckpointHas) {
  auto shards = make_shards(2, 1);
  fill(shards, 1);
  save(1, shards);
  std::vector<std::string> before;
  for (std::string const& file : extents(1)) {
    before.push_back(bytes_of(file));
  }
  for (std::uint64_t seed = 2; seed < 6; ++seed) {
    fill(shards, seed);
    save(static_cast<std::int64_t>(seed), shards);
    EXPECT_TRUE(shards[0].holds(seed) && shards[1].holds(seed));
  }
  std::size_t i = 0;
  for (std::string const& file : extents(1)) {
    EXPECT_EQ(bytes_of(file), before[i++]) << file;
  }
  for (std::uint64_t seed = 1; seed < 6; ++seed) {
    EXPECT_TRUE(holds(path(static_cast<std::int64_t>(seed)), seed)) << seed;
  }
}

TEST_F(ByReference, TwoCheckpointsMayHaveOneFile) {
  auto shards = make_shards(1);
  fill(shards, 1);
  save(1, shards);
  save(2, shards);
  struct stat status {};
  ASSERT_EQ(stat(extents(1).front().c_str(), &status), 0);
  EXPECT_EQ(status.st_nlink, 3U);
  remove_checkpoint(path(1));
  fill(shards, 2);
  EXPECT_TRUE(holds(path(2), 1));
  ASSERT_EQ(stat(extents(2).front().c_str(), &status), 0);
  EXPECT_EQ(status.st_nlink, 1U);
}

TEST_F(ByReference, TheSpaceOfACheckpointIsFreeWhenItIsRemoved) {
  auto shards = make_shards(1);
  fill(shards, 1);
  std::ptrdiff_t const slots_before = slots();
  int held = -1;
  {
    save(1, shards);
    fill(shards, 2);
    held = ::open(extents(1).front().c_str(), O_RDONLY | O_CLOEXEC);
    remove_checkpoint(path(1));
  }
  struct stat status {};
  ASSERT_EQ(fstat(held, &status), 0);
  ::close(held);
  EXPECT_EQ(status.st_nlink, 0U);
  EXPECT_FALSE(fs::exists(path(1)));
  for (std::uint64_t seed = 3; seed < 9; ++seed) {
    fill(shards, seed);
    save(1, shards);
    remove_checkpoint(path(1));
  }
  fill(shards, 9);
  fill(shards, 9);
  EXPECT_LE(slots(), slots_before) << "slots come again, but no more of them";
}

TEST_F(ByReference, OutlivesTheTiersAndLeavesNoSlots) {
  {
    auto shards = make_shards(2);
    fill(shards, 3);
    save(1, shards);
    EXPECT_GT(slots(), 0);
  }
  EXPECT_EQ(slots(), 0);
  EXPECT_TRUE(holds(path(1), 3));
}

TEST_F(ByReference, ARunThatWasKilledLeavesWhatTheNextStartRemoves) {
  auto shards = make_shards(1);
  fill(shards, 3);
  save(1, shards);
  write(2, shards);  // killed before its master
  std::ofstream{checkpoints + "/slots/notes"} << "mine";
  remove_old_slots(checkpoints);
  EXPECT_EQ(names_of(checkpoints + "/slots"), std::vector<std::string>{"notes"});
  EXPECT_TRUE(holds(path(1), 3));
  EXPECT_EQ(list(path(2)).at(0).state, Completeness::unfinished);
  remove_checkpoint(path(2));
  EXPECT_FALSE(fs::exists(path(2)));
  EXPECT_TRUE(holds(path(1), 3));
}

TEST_F(ByReference, CopiesWhatCannotBeLinked) {
  auto shards = make_shards(2);
  fill(shards, 3);
  fs::remove(checkpoints + "/slots/slot-0000-0-000000");
  auto const files = save(1, shards);
  EXPECT_EQ(files[0].copied, 12 * two_chunks);
  EXPECT_EQ(files[1].copied, 0);
  EXPECT_TRUE(holds(path(1), 3));
}

TEST_F(ByReference, SaysWhichFileIsDamagedMissingOrShort) {
  auto shards = make_shards(2);
  fill(shards, 3);
  auto const problem = [&](auto const& damage) {
    save(1, shards);
    std::string const file = extents(1).back();
    damage(file);
    auto const problems = verify(list(path(1)).at(0));
    fs::remove_all(path(1));
    fill(shards, 3);
    return problems.empty() ? "none" : problems.front();
  };
  EXPECT_THAT(problem([&](std::string const& file) {
                Reader const reader{path(1), read_master(path(1))};
                flip_bit(file, reader.manifest(1).subgroups.back().offset + 5);
              }),
              AllOf(HasSubstr("extent-0001-"), HasSubstr("/extent"), HasSubstr("checksum")));
  EXPECT_THAT(problem([](std::string const& file) { fs::remove(file); }),
              AllOf(HasSubstr("extent-0001-"), HasSubstr("is missing")));
  EXPECT_THAT(problem([](std::string const& file) { shorten(file, 1); }),
              AllOf(HasSubstr("extent-0001-"), HasSubstr("expected")));
  EXPECT_THAT(problem([](std::string const& file) { flip_bit(file, 3); }),
              AllOf(HasSubstr("extent-0001-"), HasSubstr("cannot open")));
  EXPECT_EQ(problem([](std::string const&) {}), "none");
}

TEST_F(ByReference, ListsItAsIncompleteIfAnExtentIsMissing) {
  auto shards = make_shards(1);
  fill(shards, 3);
  save(1, shards);
  Listed const whole = list(path(1)).at(0);
  EXPECT_EQ(whole.state, Completeness::complete);
  EXPECT_GT(whole.bytes, 12 * state::count_parameters(state::layers_of(small_model())));
  fs::remove(extents(1).front());
  Listed const listed = list(path(1)).at(0);
  EXPECT_NE(listed.state, Completeness::complete);
  EXPECT_THAT(listed.problem, HasSubstr("extent-0000-000000.h5 is missing"));
}

TEST_F(ByReference, ExtentFilesMayBeReadByWhoeverMayReadTheRankFile) {
  auto shards = make_shards(1);
  fill(shards, 3);
  save(1, shards);
  EXPECT_EQ(fs::status(extents(1).front()).permissions(),
            fs::status(path(1) + "/rank-0000.h5").permissions());
}

TEST_F(ByReference, RefusesAPathOnAnotherFileSystemThanTheCheckpoints) {
  if (fs::status("/dev/shm").type() != fs::file_type::directory) {
    GTEST_SKIP() << "there is no /dev/shm, a second file system";
  }
  struct stat here {};
  struct stat there {};
  ASSERT_EQ(stat(scratch.path().c_str(), &here) + stat("/dev/shm", &there), 0);
  if (here.st_dev == there.st_dev) {
    GTEST_SKIP() << "the scratch directory lies in /dev/shm";
  }
  storage = "/dev/shm";
  EXPECT_THAT(message_of<IoError>([&] { (void)make_shards(1); }),
              AllOf(HasSubstr("tiers.path = /dev/shm"), HasSubstr("another file system"),
                    HasSubstr("checkpoint.dir")));
  EXPECT_FALSE(fs::exists("/dev/shm/offstage-test-0"));
}

}  // namespace
}  // namespace offstage::checkpoint
