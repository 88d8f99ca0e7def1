#include "base/units.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"

namespace offstage {
namespace {

TEST(ParseBytes, ReadsDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_bytes("0"), 0);
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("4096B"), 4096);
  EXPECT_EQ(parse_bytes("2kB"), 2000);
  EXPECT_EQ(parse_bytes("1.5GB"), 1'500'000'000);
  EXPECT_EQ(parse_bytes("512MiB"), 512 * MiB);
  EXPECT_EQ(parse_bytes("512 MiB"), 512 * MiB);
  EXPECT_EQ(parse_bytes("0.5GiB"), 512 * MiB);
  EXPECT_EQ(parse_bytes("3G"), 3 * GiB);
  EXPECT_EQ(parse_bytes("1TB"), 1'000'000'000'000);
}

TEST(ParseBytes, RefusesWhatIsNoSize) {
  for (char const* text :
       {"", "MiB", "-1", "12 parsecs", "1MiBs", "nan", "inf", "1e3", "0x10", " 1"}) {
    EXPECT_THROW((void)parse_bytes(text), UsageError) << text;
  }
  EXPECT_THROW((void)parse_bytes("9999999TiB"), UsageError);
  EXPECT_THROW((void)parse_bytes("0.4"), UsageError) << "0 may mean that there is no limit";
}

TEST(ParseBytes, SaysWhatWasReadAndWhatWouldBeRight) {
  try {
    (void)parse_bytes("12 parsecs");
    FAIL();
  } catch (UsageError const& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("'12 parsecs'"));
    EXPECT_THAT(error.what(), testing::HasSubstr("512MiB"));
  }
}

TEST(ParseCount, ReadsPowersOfTen) {
  EXPECT_EQ(parse_count("17"), 17);
  EXPECT_EQ(parse_count("4k"), 4000);
  EXPECT_EQ(parse_count("100M"), 100'000'000);
  EXPECT_EQ(parse_count("1.5B"), 1'500'000'000);
  EXPECT_EQ(parse_count("2.5T"), 2'500'000'000'000);
  EXPECT_THROW((void)parse_count("1MiB"), UsageError);
  EXPECT_THROW((void)parse_count("ten"), UsageError);
}

TEST(ParseDuration, ReadsUnitsAndClockTimes) {
  EXPECT_EQ(parse_duration("90").count(), 90.0);
  EXPECT_EQ(parse_duration("90s").count(), 90.0);
  EXPECT_EQ(parse_duration("1.5min").count(), 90.0);
  EXPECT_EQ(parse_duration("2h").count(), 7200.0);
  EXPECT_EQ(parse_duration("1d").count(), 86400.0);
  EXPECT_DOUBLE_EQ(parse_duration("250ms").count(), 0.25);
  EXPECT_DOUBLE_EQ(parse_duration("80us").count(), 80e-6);
  EXPECT_EQ(parse_duration("1:30").count(), 90.0);
  EXPECT_EQ(parse_duration("01:02:03").count(), 3723.0);
}

TEST(ParseDuration, ReadsDaysAsSlurmWritesThem) {
  EXPECT_EQ(parse_duration("1-00:00:00").count(), 86400.0);
  EXPECT_EQ(parse_duration("2-12").count(), 2 * 86400.0 + 12 * 3600.0);
  EXPECT_EQ(parse_duration("0-01:02").count(), 3720.0);
  EXPECT_EQ(parse_duration("1-02:03:04").count(), 86400.0 + 2 * 3600.0 + 3 * 60.0 + 4.0);
}

TEST(ParseDuration, RefusesWhatIsNoDuration) {
  for (char const* text : {"", "soon", "-5s", "1:", ":30", "1:2:3:4", "1-", "-1", "1-2-3",
                           "a-01:00:00", "1-1:2:3:4", "1:2x", "5 fortnights"}) {
    EXPECT_THROW((void)parse_duration(text), UsageError) << text;
  }
}

TEST(FormatBytes, ShowsThreeFigures) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(640), "640 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(1536 * MiB), "1.50 GiB");
  EXPECT_EQ(format_bytes(10 * MiB), "10.0 MiB");
  EXPECT_EQ(format_bytes(512 * MiB), "512 MiB");
  EXPECT_EQ(format_bytes(GiB - 1), "1.00 GiB");
}

TEST(FormatDuration, ShowsWhatAPersonReads) {
  EXPECT_EQ(format_duration(Seconds{4.24}), "4.2 s");
  EXPECT_EQ(format_duration(Seconds{200.0}), "3 min 20 s");
  EXPECT_EQ(format_duration(Seconds{3599.6}), "1 h 00 min");
  EXPECT_EQ(format_duration(Seconds{3725.0}), "1 h 02 min");
}

TEST(Rounding, UpAndCeiling) {
  EXPECT_EQ(round_up(0, 4), 0);
  EXPECT_EQ(round_up(5, 4), 8);
  EXPECT_EQ(ceil_div(8, 4), 2);
  EXPECT_EQ(ceil_div(9, 4), 3);
}

}  // namespace
}  // namespace offstage
