// Checkpoints whose checksums are right and that no run wrote.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/inspect.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/plausible.hpp"
#include "checkpoint/reader.hpp"
#include "checkpoint/retention.hpp"
#include "checkpoint/sample.hpp"
#include "platform/scratch_directory.hpp"

namespace offstage::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ForgedCheckpoint : public ::testing::Test {
 protected:
  // A test that hangs ends here.
  void SetUp() override { alarm(60); }
  void TearDown() override { alarm(0); }

  /// Writes a master with a right checksum.
  void write(Master const& master) const {
    fs::remove(step + "/" + master_name);
    write_master(step + "/" + master_name, master, {});
  }
  void forge(std::function<void(Master&)> const& change) const {
    Master master = good;
    change(master);
    write(master);
  }
  void forge_text(int rank, std::string const& text) const {
    RankEntry const& entry = good.ranks.at(static_cast<std::size_t>(rank));
    overwrite(step + "/" + entry.manifest, text);
    forge([&](Master& master) {
      master.ranks.at(static_cast<std::size_t>(rank)).manifest_checksum = checksum_of(text);
    });
  }
  void forge_manifest(int rank, std::function<void(Manifest&)> const& change) const {
    Manifest manifest = manifests.at(static_cast<std::size_t>(rank));
    change(manifest);
    forge_text(rank, to_json(manifest));
  }
  [[nodiscard]] std::string problem() const {
    return message_of<DataError>([&] { (void)read_master(step); });
  }
  [[nodiscard]] std::vector<std::string> problems() const {
    return verify(list(scratch.path()).at(0));
  }

  ScratchDirectory scratch;
  std::string step = write_checkpoint(scratch.path(), 3, 2, two_chunks, 5);
  Master good = read_master(step);
  std::vector<Manifest> manifests = [this] {
    Reader const reader{step, good};
    return std::vector<Manifest>{reader.manifest(0), reader.manifest(1)};
  }();
};

TEST_F(ForgedCheckpoint, IsGoodAsLongAsNothingIsChanged) {
  forge([](Master&) {});
  forge_manifest(1, [](Manifest&) {});
  EXPECT_THAT(problems(), IsEmpty());
}

TEST_F(ForgedCheckpoint, NamesNoFileElsewhereAndNoneTwice) {
  for (char const* const name : {"../rank-0001.h5", "/dev/zero", "..", "rank-0000.h5", "", "x"}) {
    forge([&](Master& master) { master.ranks[1].file = name; });
    EXPECT_THAT(problem(), AllOf(HasSubstr("master.h5"), HasSubstr("rank-0001.h5"))) << name;
    forge([&](Master& master) { master.ranks[1].manifest = name; });
    EXPECT_THAT(problem(), AllOf(HasSubstr("master.h5"), HasSubstr("rank-0001.json"))) << name;
    forge([&](Master& master) { master.extents = {{name, 7}}; });
    EXPECT_THAT(problem(), HasSubstr("extent")) << name;
    forge_text(1, [&] {
      std::string text = to_json(manifests[1]);
      return text.replace(text.find("rank-0001.h5"), 12, name);
    }());
    EXPECT_THAT(problems(), Contains(HasSubstr("field file must be"))) << name;
  }
}

TEST_F(ForgedCheckpoint, NamesEachExtentAsItsSubgroupIsCalled) {
  for (char const* const name : {"extent-0001-000000.h5", "extent-0000-000000.h5", "../x"}) {
    forge_manifest(1, [&](Manifest& manifest) {
      manifest.subgroups[1].own_file = {name, 1 << 20, 100'000};
    });
    EXPECT_THAT(problems(), Contains(HasSubstr("subgroups[1].file must be"))) << name;
  }
}

TEST_F(ForgedCheckpoint, IsRefusedWhereAFileIsAPipeALinkOrADirectory) {
  for (std::string const name :
       {"master.h5", "rank-0000.json", "rank-0001.json", "rank-0000.h5", "rank-0001.h5"}) {
    std::string const path = step + "/" + name;
    std::string const away = scratch / "away";
    fs::rename(path, away);
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    EXPECT_THAT(list(scratch.path()).at(0).problem, HasSubstr(name + " is no regular file"));
    EXPECT_THAT(problems(), ElementsAre(HasSubstr(name + " is no regular file")));
    fs::remove(path);
    fs::create_symlink(away, path);
    EXPECT_THAT(problems(), ElementsAre(HasSubstr(name + " is no regular file")));
    fs::remove(path);
    fs::create_directory(path);
    EXPECT_THAT(problems(), ElementsAre(HasSubstr(name + " is no regular file")));
    fs::remove(path);
    fs::rename(away, path);
  }
  EXPECT_THAT(problems(), IsEmpty());
}

TEST_F(ForgedCheckpoint, HasNoPipeForAListOfNames) {
  ASSERT_EQ(mkfifo((step + "/" + passed_over_name).c_str(), 0600), 0);
  EXPECT_THAT(message_of<DataError>([&] { (void)set_listed_aside(scratch.path(), ""); }),
              HasSubstr("passed-over is no regular file"));
}

TEST_F(ForgedCheckpoint, IsNotReadWhereItsManifestIsLargerThanItsShardAllows) {
  fs::resize_file(step + "/rank-0001.json", 1 << 20);
  EXPECT_THAT(problems(),
              ElementsAre(AllOf(HasSubstr("rank-0001.json"), HasSubstr("beyond the limit"))));
  fs::resize_file(step + "/rank-0001.json", std::uintmax_t{1} << 33);
  EXPECT_THAT(list(scratch.path()).at(0).problem,
              AllOf(HasSubstr("rank-0001.json"), HasSubstr("its size is 8589934592")));
}

TEST_F(ForgedCheckpoint, CountsNothingThatARunDoesNot) {
  struct Case {
    char const* name;
    std::function<void(Meta&)> change;
  };
  constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  for (Case const& c : std::vector<Case>{
           {"step is -1", [](Meta& meta) { meta.step = -1; }},
           {"step is 9223372036854775807", [](Meta& meta) { meta.step = huge; }},
           {"samples is -7", [](Meta& meta) { meta.samples = -7; }},
           {"samples is 92233", [](Meta& meta) { meta.samples = huge; }},
           {"bad_steps is -1", [](Meta& meta) { meta.bad_steps = -1; }},
           {"optimizer_step is -1", [](Meta& meta) { meta.optimizer_step = -1; }},
           {"loss_scale_steps is -1", [](Meta& meta) { meta.loss_scale_steps = -1; }},
           {"threads is -1", [](Meta& meta) { meta.threads = -1; }},
           {"threads is 92233", [](Meta& meta) { meta.threads = huge; }},
           {"ranks is 0", [](Meta& meta) { meta.ranks = 0; }},
           {"ranks is -2", [](Meta& meta) { meta.ranks = -2; }},
           {"ranks is 2000000000", [](Meta& meta) { meta.ranks = 2'000'000'000; }},
           {"loss_scale=0", [](Meta& meta) { meta.loss_scale = 0.0; }},
           {"loss_scale=nan", [](Meta& meta) { meta.loss_scale = std::nan(""); }},
           {"learning_rate=-inf", [](Meta& meta) { meta.learning_rate = -HUGE_VAL; }},
           {"model.kv-heads=3", [](Meta& meta) { meta.model.kv_heads = 3; }},
           {"model.rope-theta=nan", [](Meta& meta) { meta.model.rope_theta = std::nan(""); }},
       }) {
    forge([&](Master& master) { c.change(master.meta); });
    EXPECT_THAT(problem(), AllOf(HasSubstr("master.h5: "), HasSubstr(c.name)));
    EXPECT_THAT(list(scratch.path()).at(0).problem, HasSubstr(c.name));
  }
}

TEST_F(ForgedCheckpoint, HasFilesThatAreLargeEnoughForItsModel) {
  forge([](Master& master) { master.meta.model.vocab = 1 << 30; });
  EXPECT_THAT(problem(), AllOf(HasSubstr("its files have"), HasSubstr("its model needs")));
  constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  for (Bytes const bytes : {Bytes{-1}, Bytes{0}, huge}) {
    forge([&](Master& master) { master.ranks[1].file_bytes = bytes; });
    EXPECT_THAT(problem(), HasSubstr("the size of rank-0001.h5 is"));
  }
  forge([&](Master& master) {
    master.extents.assign(9, {"extent-0000-000000.h5", Bytes{1} << 59});
  });
  EXPECT_THAT(problem(), HasSubstr("the size of extent-0000-000000.h5 is"));
}

TEST_F(ForgedCheckpoint, HoldsEachRanksShardAndNothingElse) {
  auto const problem_of_rank_1 = [&](std::function<void(Manifest&)> const& change) {
    forge_manifest(1, change);
    auto const found = problems();
    return found.empty() ? "none" : found.front();
  };
  EXPECT_THAT(problem_of_rank_1([](Manifest& manifest) { manifest.subgroups.pop_back(); }),
              AllOf(HasSubstr("rank-0001.json"), HasSubstr("the number of elements")));
  EXPECT_THAT(problem_of_rank_1(
                  [](Manifest& manifest) { manifest.subgroups.back().pieces.back().layer = 99; }),
              HasSubstr("a layer is 99"));
  EXPECT_THAT(problem_of_rank_1([](Manifest& manifest) {
                manifest.subgroups.front().pieces.front().chunks.first = 0;
              }),
              HasSubstr("the first chunk of a piece of layer 0"));
  EXPECT_THAT(problem_of_rank_1([](Manifest& manifest) {
                manifest.subgroups[1].offset = manifest.subgroups[0].offset;
              }),
              HasSubstr("subgroups must not share bytes"));
  EXPECT_THAT(problem_of_rank_1([](Manifest& manifest) { manifest.ranks = 3; }),
              HasSubstr("names another rank"));
}

TEST_F(ForgedCheckpoint, SaysWhereItsBytesAreAsHDF5Does) {
  forge_manifest(0, [](Manifest& manifest) {
    std::swap(manifest.subgroups[0].offset, manifest.subgroups[1].offset);
  });
  EXPECT_THAT(problems(),
              Contains(HasSubstr("rank-0000.h5: /subgroup/0/parameter is not at the place that the "
                                 "manifest names")));
}

TEST(Plausible, ManifestsOfRunsStayBelowTheirLimit) {
  for (int const ranks : {1, 3, 5}) {
    for (std::int64_t const subgroup : {chunk_elements, two_chunks, 99 * chunk_elements}) {
      for (int rank = 0; rank < ranks; ++rank) {
        Shard const shard{small_model(), ranks, rank, subgroup};
        // The widest numbers and names that there are.
        Manifest manifest{.rank = rank, .ranks = ranks, .file = rank_file_name(1 << 30)};
        for (state::Subgroup const& part : shard.subgroups) {
          constexpr std::int64_t wide = std::numeric_limits<std::int64_t>::max();
          StoredSubgroup stored{wide, wide, ~std::uint64_t{0}, part.pieces};
          stored.own_file = {extent_file_name(1 << 30, std::size_t{1} << 40), wide, wide};
          for (state::Piece& piece : stored.pieces) {
            piece = {1 << 30, {wide, wide}, 0};
          }
          manifest.subgroups.push_back(stored);
        }
        EXPECT_LE(std::ssize(to_json(manifest)), manifest_limit(shard.map, rank));
      }
    }
  }
}

}  // namespace
}  // namespace offstage::checkpoint
