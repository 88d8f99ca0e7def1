#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "device/device.hpp"

namespace offstage::device {
namespace {

using testing::HasSubstr;

TEST(ParseEmulation, ReadsRatesOfTheLinkOfProductsOfUpdatesAndOfSums) {
  Emulation const all = parse_emulation(
      "h2d=3GB/s,d2h=2.5GB,compute=1.5T,update=900M,host-update=50M/s,host-sum=90GB/s");
  EXPECT_EQ(all.host_to_device, 3e9);
  EXPECT_EQ(all.device_to_host, 2.5e9);
  EXPECT_EQ(all.device_update, 900e6);
  EXPECT_EQ(all.host_update, 50e6);
  EXPECT_EQ(all.compute, 1.5e12);
  EXPECT_EQ(all.host_sum, 90e9);
  EXPECT_TRUE(all.any());
}

TEST(ParseEmulation, TakesAnyOfThemInAnyOrder) {
  Emulation const some = parse_emulation("update=1B,h2d=1GiB/s");
  EXPECT_EQ(some.host_to_device, static_cast<double>(GiB));
  EXPECT_EQ(some.device_to_host, 0.0);
  EXPECT_EQ(some.device_update, 1e9);
  EXPECT_EQ(some.host_update, 0.0);
  EXPECT_EQ(some.compute, 0.0);
  EXPECT_EQ(some.host_sum, 0.0);
}

TEST(ParseEmulation, AnyRateByItselfIsAnEmulation) {
  for (auto const* const text :
       {"h2d=1MB", "d2h=1MB", "compute=1G", "update=1M", "host-update=1M", "host-sum=1MB"}) {
    EXPECT_TRUE(parse_emulation(text).any()) << text;
  }
}

TEST(ParseEmulation, AnEmptyTextEmulatesNothing) {
  EXPECT_FALSE(parse_emulation("").any());
}

TEST(ParseEmulation, SaysWhatIsWrongAndWhatWouldBeRight) {
  std::vector<std::pair<std::string, std::string>> const cases{
      {"h2b=3GB/s", "unknown rate 'h2b'; the nearest is h2d"},
      {"host_update=3M", "unknown rate 'host_update'; the nearest is host-update"},
      {" h2d=3GB/s", "unknown rate ' h2d'; the nearest is h2d"},
      {"=3GB/s", "unknown rate ''"},
      {"h2d", "h2d has no value; write h2d=..."},
      {"h2d=", "h2d= is not right: bytes per second are wanted; write for example h2d=3GB/s"},
      {"h2d=fast", "h2d=fast is not right"},
      {"h2d=3GB/s/s", "h2d=3GB/s/s is not right"},
      {"d2h=900X", "write for example d2h=3GB/s"},
      {"update=3GB",
       "update=3GB is not right: parameters per second are wanted; write for "
       "example update=900M"},
      {"host-update=-1M", "write for example host-update=900M"},
      {"h2d=0", "h2d=0 is not right: a rate lies between 1 kB/s and 1000 TB/s; leave h2d out"},
      {"d2h=99999TB/s", "between 1 kB/s and 1000 TB/s"},
      {"d2h=1e999", "is not right"},
      {"update=99999999999999999999999999", "is not right"},
      {"compute=3GB",
       "compute=3GB is not right: floating-point operations per second are wanted; write for "
       "example compute=400T"},
      {"compute=1k", "a rate lies between 1M and 1000000T (FLOP/s); leave compute out"},
      {"compute=1000001T", "a rate lies between 1M and"},
      {"host-sum=3X", "bytes per second are wanted; write for example host-sum=3GB/s"},
      {"update=999", "update=999 is not right: a rate lies between 1k and"},
      {"h2d=3GB/s,h2d=3GB/s", "h2d comes twice; write it once"},
      {",h2d=3GB/s", "a rate is empty; write one name=rate between two commas"},
      {"h2d=3GB/s,", "a rate is empty"},
      {"h2d=3GB/s,,d2h=1GB/s", "a rate is empty"},
      {",", "a rate is empty"}};
  for (auto const& [text, message] : cases) {
    SCOPED_TRACE(text);
    try {
      (void)parse_emulation(text);
      ADD_FAILURE() << "must throw";
    } catch (UsageError const& error) {
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  }
}

}  // namespace
}  // namespace offstage::device
