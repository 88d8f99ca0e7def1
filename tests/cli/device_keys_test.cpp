#include <gmock/gmock.h>

#include "options_fixture.hpp"

namespace offstage::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using DeviceKeys = OptionsFixture;

TEST_F(DeviceKeys, DefaultsLeaveTheChoiceToThePlan) {
  auto const config = parse();
  EXPECT_EQ(config.device.kind, config::DeviceKind::automatic);
  EXPECT_FALSE(config.device.emulation.any());
  EXPECT_EQ(config.share.device_share, std::nullopt);
  EXPECT_EQ(config.share.device_resident, 0.0);
  EXPECT_EQ(config.share.device_chunk, 976 * 4096) << "4M in whole chunks";
  EXPECT_EQ(config.share.transfers, plan::Transfers::overlap);
  EXPECT_EQ(config.platform.cpu_update, 0.0);
  EXPECT_EQ(config.platform_measured, "");
}

TEST_F(DeviceKeys, SaysWhereAndHowTheUpdateRuns) {
  auto const config = parse({"--device.kind=host", "--device.emulate=h2d=3GB/s,update=900M",
                             "--update.device-share=0.33", "--update.device-resident=0.2",
                             "--update.device-chunk=1", "--update.transfers=blocking"});
  EXPECT_EQ(config.device.kind, config::DeviceKind::host);
  EXPECT_EQ(config.device.emulation.host_to_device, 3e9);
  EXPECT_EQ(config.device.emulation.device_update, 9e8);
  EXPECT_EQ(config.share.device_share, 0.33);
  EXPECT_EQ(config.share.device_resident, 0.2);
  EXPECT_EQ(config.share.device_chunk, 4096);
  EXPECT_EQ(config.share.transfers, plan::Transfers::blocking);
  EXPECT_EQ(parse({"--update.device-share=auto"}).share.device_share, std::nullopt);
}

TEST_F(DeviceKeys, APlatformIsReadAsProbeWritesIt) {
  auto const name = file("platform.cfg",
                         "[platform]\n"
                         "measured = 2026-11-21 on node7\n"
                         "cpu-update = 1.93G\n"
                         "device-update = 25G/s\n"
                         "products = 2250T\n"
                         "host-to-device = 25.1GB/s\n"
                         "device-to-host = 26GB\n"
                         "host-to-device-both = 20GB/s\n"
                         "device-to-host-both = 21GB/s\n"
                         "host-memory = 60GB/s\n");
  auto const config = parse({"--config", name});
  EXPECT_EQ(config.platform_measured, "2026-11-21 on node7");
  EXPECT_EQ(config.platform.cpu_update, 1.93e9);
  EXPECT_EQ(config.platform.device_update, 25e9);
  EXPECT_EQ(config.platform_products, 2.25e15);
  EXPECT_EQ(config.platform.host_to_device, 25.1e9);
  EXPECT_EQ(config.platform.device_to_host, 26e9);
  EXPECT_EQ(config.platform.host_to_device_both, 20e9);
  EXPECT_EQ(config.platform.device_to_host_both, 21e9);
  EXPECT_EQ(config.platform.host_memory, 60e9);
}

TEST_F(DeviceKeys, MistakesNameTheKeyAndWhatIsRight) {
  EXPECT_THAT(error({"--device.kind=gpu"}),
              AllOf(HasSubstr("device.kind=gpu"), HasSubstr("auto, cuda, host")));
  EXPECT_THAT(error({"--device.kind=cuda", "--device.emulate=update=1G"}),
              HasSubstr("leave device.emulate out"));
  EXPECT_THAT(error({"--device.emulate=h2x=1GB/s"}),
              AllOf(HasSubstr("device.emulate=h2x=1GB/s"), HasSubstr("the nearest is h2d")));
  EXPECT_THAT(error({"--update.device-share=1.01"}), HasSubstr("update.device-share=1.01 must be"));
  EXPECT_THAT(error({"--update.device-share=half"}), HasSubstr("update.device-share=half: 'half'"));
  EXPECT_THAT(error({"--update.device-resident=-1"}), HasSubstr("update.device-resident=-1 must"));
  EXPECT_THAT(error({"--update.device-chunk=0"}), HasSubstr("update.device-chunk=0: "));
  EXPECT_THAT(error({"--update.device-chunk=2G"}), HasSubstr("from 1 to 1G"));
  EXPECT_THAT(error({"--update.transfers=async"}), HasSubstr("overlap, blocking"));
  EXPECT_THAT(error({"--platform.cpu-update=1GB/s"}), HasSubstr("platform.cpu-update=1GB/s: "));
  EXPECT_THAT(error({"--platform.cpu-update=5"}), HasSubstr("no rate"));
  EXPECT_THAT(error({"--platform.host-memory=fast"}), HasSubstr("platform.host-memory=fast: "));
  EXPECT_THAT(error({"--platform.host-memory=99999TB/s"}), HasSubstr("no rate"));
  EXPECT_THAT(error({"--platform.host-to-devise=1GB/s"}), HasSubstr("platform.host-to-device"));
}

}  // namespace
}  // namespace offstage::cli
