#include "tiers/path_settings.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.hpp"

namespace offstage::tiers {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ParsePath, TakesADirectoryAlone) {
  PathSettings const path = parse_path("/scratch/a b=c");
  EXPECT_EQ(path.directory, "/scratch/a b=c");
  EXPECT_EQ(path.read_rate, 0.0);
  EXPECT_EQ(path.write_rate, 0.0);
  EXPECT_EQ(path.duplex, Duplex::half);
  EXPECT_EQ(path.processes, 1);
  EXPECT_EQ(path.threads, 1);
  EXPECT_FALSE(path.persistent);
  EXPECT_EQ(path.engine.request_bytes, aio::EngineSettings{}.request_bytes);
  EXPECT_EQ(path.engine.queue_depth, aio::EngineSettings{}.queue_depth);
  EXPECT_FALSE(path.emulation);
}

TEST(ParsePath, TakesEveryAttributeInAnyOrder) {
  PathSettings const path = parse_path(
      "/nvme,persistent,write=5.3GB/s,read=6900MB,queue-depth=16,duplex=full,request-size=4MiB,"
      "processes=2,threads=3,endurance=600TB");
  EXPECT_EQ(path.directory, "/nvme");
  EXPECT_EQ(path.read_rate, 6.9e9);
  EXPECT_EQ(path.write_rate, 5.3e9);
  EXPECT_EQ(path.duplex, Duplex::full);
  EXPECT_EQ(path.engine.queue_depth, 16);
  EXPECT_EQ(path.engine.request_bytes, 4 * MiB);
  EXPECT_EQ(path.processes, 2);
  EXPECT_EQ(path.threads, 3);
  EXPECT_EQ(path.transfers(), 6);
  EXPECT_EQ(path.transfers_at_once(), 12) << "each way";
  EXPECT_TRUE(path.persistent);
  EXPECT_EQ(path.endurance, 600'000'000'000'000);
  EXPECT_FALSE(path.emulation);
}

TEST(ParsePath, AnEmulationsRatesAndDuplexAreThePaths) {
  PathSettings const path = parse_path(
      "/dev/shm,emulate-read=690MB/s,emulate-write=530MB/s,emulate-latency=80us,"
      "emulate-duplex=full,emulate-stream=200MB/s,emulate-sharing=0.5");
  ASSERT_TRUE(path.emulation);
  EXPECT_EQ(path.emulation->read_rate, 690e6);
  EXPECT_EQ(path.emulation->write_rate, 530e6);
  EXPECT_DOUBLE_EQ(path.emulation->latency.count(), 80e-6);
  EXPECT_EQ(path.emulation->stream_rate, 200e6);
  EXPECT_EQ(path.emulation->sharing, 0.5);
  EXPECT_EQ(path.emulation->duplex, Duplex::full);
  EXPECT_EQ(path.duplex, Duplex::full);
  EXPECT_EQ(path.read_rate, 690e6);
  EXPECT_EQ(path.write_rate, 530e6);
}

TEST(ParsePath, GivenRatesComeBeforeEmulatedOnes) {
  PathSettings const path = parse_path("/a,read=1GB/s,emulate-read=2GB/s,emulate-write=3GB/s");
  EXPECT_EQ(path.read_rate, 1e9);
  EXPECT_EQ(path.write_rate, 3e9);
  EXPECT_EQ(path.emulation->read_rate, 2e9);
}

TEST(ParsePath, AnEmulationHasTheDuplexOfThePathUnlessItSaysOtherwise) {
  EXPECT_EQ(parse_path("/a,emulate-read=1GB/s").emulation->duplex, Duplex::half);
  EXPECT_EQ(parse_path("/a,duplex=full,emulate-read=1GB/s").emulation->duplex, Duplex::full);
  EXPECT_EQ(parse_path("/a,duplex=half,emulate-duplex=half,emulate-read=1GB/s").duplex,
            Duplex::half);
}

TEST(ParsePath, WhatIsNotEmulatedIsNotLimited) {
  PathSettings const path = parse_path("/a,emulate-write=1GB/s");
  EXPECT_EQ(path.emulation->read_rate, 0.0);
  EXPECT_EQ(path.read_rate, 0.0);  // to be measured
  EXPECT_EQ(parse_path("/a,emulate-latency=1ms").emulation->write_rate, 0.0);
}

TEST(ParsePath, TakesTheEndsOfEachRange) {
  PathSettings const least =
      parse_path("/a,read=1kB/s,queue-depth=1,request-size=4096,processes=1,emulate-latency=0s");
  EXPECT_EQ(least.read_rate, 1e3);
  EXPECT_EQ(least.engine.queue_depth, 1);
  EXPECT_EQ(least.engine.request_bytes, 4096);
  PathSettings const most = parse_path(
      "/a,read=1000TB/s,queue-depth=1024,request-size=64MiB,processes=1024,emulate-latency=10s");
  EXPECT_EQ(most.read_rate, 1e15);
  EXPECT_EQ(most.engine.queue_depth, 1024);
  EXPECT_EQ(most.engine.request_bytes, 64 * MiB);
  EXPECT_EQ(most.processes, 1024);
  EXPECT_EQ(most.emulation->latency, Seconds{10.0});
}

struct Refusal {
  std::string text;
  std::string names;   ///< what the error names
  std::string remedy;  ///< what it says would be right
};

class RefusedPath : public ::testing::TestWithParam<Refusal> {};

TEST_P(RefusedPath, IsNamedWithTheRemedy) {
  auto const& [text, names, remedy] = GetParam();
  try {
    (void)parse_path(text);
    FAIL() << text << " was taken";
  } catch (UsageError const& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr(names), HasSubstr(remedy)));
  }
}

std::vector<Refusal> const refusals{
    {"", "no directory", "write DIR"},
    {",read=1GB/s", "no directory", "write DIR"},
    {"read=1GB/s", "read=1GB/s stands where the directory belongs", "write DIR,read=1GB/s"},
    {"/a,threads=0", "threads=0", "1 to 1024"},
    {"/a,emulate-read=1GB/s,emulate-sharing=0", "emulate-sharing=0", "0.01 to 1"},
    {"/a,emulate-read=1GB/s,emulate-sharing=1.5", "emulate-sharing=1.5", "0.01 to 1"},
    {"/a,emulate-sharing=0.5", "a share of emulated rates", "add emulate-read"},
    {"/a,", "empty", "name=value"},
    {"/a,,read=1GB/s", "empty", "name=value"},
    {"/a,raed=1GB/s", "unknown attribute 'raed'", "the nearest is read"},
    {"/a,emulate_read=1GB/s", "unknown attribute 'emulate_read'", "the nearest is emulate-read"},
    {"/a,=1GB/s", "unknown attribute ''", "nearest"},
    {"/a, read=1GB/s", "unknown attribute ' read'", "the nearest is read"},
    {"/a,read=1GB/s,read=2GB/s", "read comes twice", "once"},
    {"/a,persistent,persistent", "persistent comes twice", "once"},
    {"/a,read", "read has no value", "write read="},
    {"/a,persistent=yes", "persistent=yes", "write persistent"},
    {"/a,read=", "read=", "read=6.9GB/s"},
    {"/a,read=/s", "read=/s", "read=6.9GB/s"},
    {"/a,read=fast", "read=fast", "read=6.9GB/s"},
    {"/a,write=-1GB/s", "write=-1GB/s", "write=6.9GB/s"},
    {"/a,write=1GB/h", "write=1GB/h", "write=6.9GB/s"},
    {"/a,write=nan", "write=nan", "write=6.9GB/s"},
    {"/a,write=inf", "write=inf", "write=6.9GB/s"},
    {"/a,write=99999999999999999999999TB", "write=9999", "write=6.9GB/s"},
    {"/a,write=1=2", "write=1=2", "write=6.9GB/s"},
    {"/a,read=0", "read=0", "to be measured"},
    {"/a,emulate-read=0", "emulate-read=0", "not limited"},
    {"/a,read=999", "read=999", "between 1 kB/s and 1000 TB/s"},
    {"/a,read=1001TB/s", "read=1001TB/s", "between 1 kB/s and 1000 TB/s"},
    {"/a,duplex=both", "duplex=both", "half"},
    {"/a,duplex=", "duplex=", "full"},
    {"/a,emulate-read=1GB/s,emulate-duplex=Half", "emulate-duplex=Half", "half"},
    {"/a,emulate-duplex=full", "emulate-duplex", "duplex="},
    {"/a,emulate-read=1GB/s,duplex=half,emulate-duplex=full", "contradict", "leave duplex out"},
    {"/a,queue-depth=0", "queue-depth=0", "1 to 1024"},
    {"/a,queue-depth=1025", "queue-depth=1025", "1 to 1024"},
    {"/a,queue-depth=4k", "queue-depth=4k", "whole number"},
    {"/a,queue-depth=99999999999999999999", "queue-depth=9999", "1 to 1024"},
    {"/a,processes=0", "processes=0", "1 to 1024"},
    {"/a,processes=1.5", "processes=1.5", "whole number"},
    {"/a,processes=-1", "processes=-1", "1 to 1024"},
    {"/a,request-size=0", "request-size=0", "multiple of 4096 up to 64MiB"},
    {"/a,request-size=6000", "request-size=6000", "multiple of 4096"},
    {"/a,request-size=65MiB", "request-size=65MiB", "up to 64MiB"},
    {"/a,request-size=big", "request-size=big", "request-size=8MiB"},
    {"/a,endurance=long", "endurance=long", "endurance=600TB"},
    {"/a,endurance=600", "endurance=600", "1GB or more"},
    {"/a,emulate-latency=11s", "emulate-latency=11s", "up to 10s"},
    {"/a,emulate-latency=soon", "emulate-latency=soon", "0.5ms"},
    {"/a,emulate-latency=-1s", "emulate-latency=-1s", "0.5ms"},
};

INSTANTIATE_TEST_SUITE_P(ParsePath, RefusedPath, ::testing::ValuesIn(refusals));

}  // namespace
}  // namespace offstage::tiers
