#include "probe/figures.hpp"

#include <gmock/gmock.h>

#include "probe/median.hpp"
#include "tiers/path_settings.hpp"

namespace offstage::probe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

Figures all_of(double value) {
  Figures figures;
  figures.fill(value);
  return figures;
}

Measured of_ranks(std::vector<Figures> const& figures) {
  Measured measured{figures, figures, {}};
  for (std::size_t rank = 0; rank < figures.size(); ++rank) {
    measured.hosts.push_back("node" + std::to_string(rank / 2));
  }
  return measured;
}

std::string joined(std::vector<std::string> const& lines) {
  std::string text;
  for (std::string const& line : lines) {
    text += line + '\n';
  }
  return text;
}

TEST(Median, IsTheMiddleOrTheMeanOfTheTwoInTheMiddle) {
  EXPECT_EQ(median({3.0}), 3.0);
  EXPECT_EQ(median({9.0, 1.0, 3.0}), 3.0);
  EXPECT_EQ(median({9.0, 1.0, 3.0, 4.0}), 3.5);
}

TEST(MedianRate, RepeatsUntilARoundIsLongEnough) {
  std::vector<int> asked;
  auto const timed = [&](int passes) {
    asked.push_back(passes);
    return Seconds{0.25 * passes};
  };
  EXPECT_EQ(median_rate({.rounds = 3, .least = Seconds{1.0}}, 10.0, timed), 40.0);
  EXPECT_THAT(asked, ElementsAre(1, 1, 4, 4, 4));
  asked.clear();
  EXPECT_EQ(median_rate({.rounds = 0, .least = Seconds{}}, 10.0, timed), 40.0);
  EXPECT_THAT(asked, ElementsAre(1, 1, 1)) << "one round at least";
}

TEST(MedianRate, OfWorkThatTakesNoTimeIsFinite) {
  EXPECT_GT(median_rate({}, 1.0, [](int) { return Seconds{}; }), 0.0);
}

TEST(Figure, HasThreeSignificantFigures) {
  EXPECT_EQ(format(Figure::to_device, 25.14e9), "25.1 GB/s");
  EXPECT_EQ(format(Figure::cpu_update, 1.934e9), "1.93 G/s");
  EXPECT_EQ(format(Figure::product, 392.4e9), "392 GFLOP/s");
  EXPECT_EQ(format(Figure::host_memory, 1.2e12), "1.20 TB/s");
  EXPECT_EQ(format(Figure::cpu_update, 450e3), "450 k/s");
}

TEST(Table, OfOneRankHasOneColumn) {
  Measured measured{{all_of(2e9)}, {}, {"node0"}};
  EXPECT_THAT(table(measured), SizeIs(1 + figure_count));
  EXPECT_THAT(joined(table(measured)), Not(HasSubstr("together")));
}

TEST(Table, LeavesOutWhatWasNotMeasured) {
  auto figures = all_of(2e9);
  figures[static_cast<std::size_t>(Figure::rank_link)] = 0.0;
  EXPECT_THAT(joined(table(Measured{{figures}, {}, {"node0"}})),
              Not(HasSubstr("from the other ranks")));
}

TEST(Table, ShowsTheSlowestRankWhereRanksDiffer) {
  auto const text = joined(table(of_ranks({all_of(2e9), all_of(2e9), all_of(1e9)})));
  EXPECT_THAT(text, HasSubstr("2.00 GB/s, least 1.00 GB/s"));
  EXPECT_THAT(joined(table(of_ranks({all_of(2e9), all_of(1.99e9)}))), Not(HasSubstr("least")));
}

TEST(Outliers, AreNamedWithRankHostAndFigure) {
  std::vector<Figures> figures(8, all_of(2e9));
  EXPECT_THAT(outliers(of_ranks(figures)), IsEmpty());
  figures[5][static_cast<std::size_t>(Figure::to_host)] = 1.5e9;
  EXPECT_THAT(
      outliers(of_ranks(figures)),
      ElementsAre("rank 5 on node2 is slow when alone: device to host, pinned 1.50 GB/s, the "
                  "median is 2.00 GB/s",
                  "rank 5 on node2 is slow when all run: device to host, pinned 1.50 GB/s, "
                  "the median is 2.00 GB/s"));
  figures[5][static_cast<std::size_t>(Figure::to_host)] = 1.7e9;
  EXPECT_THAT(outliers(of_ranks(figures)), IsEmpty());
}

TEST(Outliers, OfPathsNameTheNode) {
  std::vector<ProbedPath> const paths{
      {"/pfs,queue-depth=8", {{4e9, 2e9}, {4e9, 2e9}, {4e9, 1e9}}, {"a", "b", "c"}}};
  EXPECT_THAT(
      outliers(paths),
      ElementsAre("c is slow: writes /pfs 1.00 GB/s, the median of the nodes is 2.00 GB/s"));
}

TEST(PlatformConfig, HasMediansOfAllTogetherInTheUnitsOfTheKeys) {
  auto measured = of_ranks({all_of(2e9), all_of(4e9), all_of(3e9)});
  measured.alone = std::vector<Figures>(3, all_of(9e9));
  measured.together[0][static_cast<std::size_t>(Figure::device_update)] = 0.0;
  measured.together[1][static_cast<std::size_t>(Figure::device_update)] = 0.0;
  auto const text =
      platform_config(measured, {}, {"0.1.0", "2026-11-21", "NVIDIA H100", "", false, 2, 8});
  EXPECT_THAT(
      text, AllOf(HasSubstr("# Measured by offstage probe 0.1.0 on 2026-11-21: 3 ranks on 2 nodes, "
                            "8 threads each"),
                  HasSubstr("\n[platform]\nmeasured = 2026-11-21 on node0 and 1 more\n"),
                  HasSubstr("\ncpu-update = 3.00G\n"),
                  HasSubstr("\nhost-to-device-both = 3.00GB/s\n"), Not(HasSubstr("device-update")),
                  Not(HasSubstr("[device]")), Not(HasSubstr("[tiers]"))));
}

TEST(PlatformConfig, OfAnEmulatedDeviceRehearsesIt) {
  auto const text = platform_config(Measured{{all_of(2e9)}, {}, {"node0"}}, {},
                                    {"0.1.0", "2026-11-21", "host (emulated)", "h2d=3GB/s", true});
  EXPECT_THAT(text, AllOf(HasSubstr("measured = 2026-11-21 on node0\n"),
                          HasSubstr("\n[device]\nkind = host\nemulate = h2d=3GB/s\n")));
}

TEST(PlatformConfig, PathsHaveTheirMeasuredRatesAndKeepOtherAttributes) {
  std::vector<ProbedPath> const paths{
      {"/nvme,read=1GB/s,queue-depth=8,write=2GB/s,persistent", {{6.94e9, 5.3e9}}, {"a"}},
      {"relative", {{0.8e9, 250e6}}, {"a"}}};
  auto const text = platform_config(Measured{{all_of(2e9)}, {}, {"a"}}, paths, {});
  EXPECT_THAT(text, HasSubstr("\n[tiers]\npath = /nvme,queue-depth=8,persistent,read=6.94GB/s,"
                              "write=5.30GB/s\npath = /"));
  EXPECT_THAT(text, HasSubstr("/relative,read=800MB/s,write=250MB/s\n"));
  auto const begin = text.find("path = ") + 7;
  auto const path = tiers::parse_path(text.substr(begin, text.find('\n', begin) - begin));
  EXPECT_EQ(path.read_rate, 6.94e9);
  EXPECT_TRUE(path.persistent);
}

TEST(PlatformConfig, APathWithASemicolonBehindABlankIsQuoted) {
  std::vector<ProbedPath> const paths{{"/a ;b", {{1e9, 1e9}}, {"a"}}};
  EXPECT_THAT(platform_config(Measured{{all_of(2e9)}, {}, {"a"}}, paths, {}),
              HasSubstr("\npath = \"/a ;b,read=1.00GB/s,write=1.00GB/s\"\n"));
}

}  // namespace
}  // namespace offstage::probe
