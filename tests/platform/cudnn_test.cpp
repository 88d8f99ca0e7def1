#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "effort.hpp"
#include "platform/cudnn/attention.hpp"
#include "platform/cudnn/library.hpp"

namespace offstage::cudnn {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::MatchesRegex;
using testing::Not;

std::string error_of(auto const& call) {
  try {
    static_cast<void>(call());
  } catch (CudnnError const& error) {
    return error.what();
  }
  return {};
}

AttentionShape of_width(std::int64_t head_dim, DType type = DType::bf16) {
  return {
      .type = type, .batch = 2, .sequence = 256, .heads = 8, .kv_heads = 2, .head_dim = head_dim};
}

TEST(CudnnAttention, HasADeterministicBackwardOfTheWidthsOfEachGpu) {
  for (auto const type : {DType::bf16, DType::fp16}) {
    for (std::int64_t const head_dim : {8, 64, 72, 80, 96, 128}) {
      for (int const capability : {80, 86, 89, 90, 100, 120}) {
        EXPECT_THAT(reason_against(of_width(head_dim, type), capability), IsEmpty());
      }
    }
    for (std::int64_t const head_dim : {136, 192, 256}) {
      EXPECT_THAT(reason_against(of_width(head_dim, type), 90), IsEmpty());
      for (int const capability : {80, 86, 89, 100, 120}) {
        EXPECT_THAT(reason_against(of_width(head_dim, type), capability), HasSubstr("up to 128"));
      }
    }
  }
  EXPECT_THAT(reason_against(of_width(100), 90), HasSubstr("multiples of 8 up to 256, not of 100"));
  EXPECT_THAT(reason_against(of_width(264), 90), HasSubstr("not of 264"));
  EXPECT_THAT(reason_against(of_width(64, DType::fp32), 90), HasSubstr("fp32"));
  EXPECT_THAT(reason_against(of_width(64), 75), HasSubstr("7.5"));
  EXPECT_THAT(reason_against({DType::bf16, 4, 1, 2, 2, 64}, 90), HasSubstr("single position"));
}

// batch * heads * T * T * 2 bytes are 1 GiB here; dK and dV of each query head 64 MiB.
TEST(CudnnAttention, WorkspaceIsTheGradientsOfAllScoresAndOfSharedHeads) {
  AttentionShape const shape{.type = DType::bf16,
                             .batch = 4,
                             .sequence = 2048,
                             .heads = 32,
                             .kv_heads = 4,
                             .head_dim = 64};
  EXPECT_EQ(largest_workspace(shape), GiB + 64 * MiB + MiB + 4 * KiB);
  auto alone = shape;
  alone.kv_heads = shape.heads;
  EXPECT_EQ(largest_workspace(alone), GiB + MiB + 4 * KiB);
}

TEST(CudnnLibrary, NamesWhatItLooksForAndWhatBringsIt) {
  if (!is_built_in()) {
    EXPECT_THAT(error_of([] { return load_library(); }), HasSubstr("built without it"));
    return;
  }
  EXPECT_THAT(error_of([] { return load_library("/nowhere/libcudnn.so.9"); }),
              AllOf(HasSubstr("/nowhere/libcudnn.so.9: cannot open"), HasSubstr("LD_LIBRARY_PATH"),
                    HasSubstr("PyTorch")));
  EXPECT_THAT(error_of([] { return load_library("libc.so.6"); }), HasSubstr("cudnnGetVersion"));
}

/// As an H100, A100 and others would describe themselves.
DescribedGpu described(int capability) {
  struct Facts {
    int capability, multiprocessors, shared_bytes;
  };
  for (auto const& gpu :
       {Facts{80, 108, 166912}, Facts{86, 84, 101376}, Facts{89, 128, 101376},
        Facts{90, 132, 232448}, Facts{100, 148, 232448}, Facts{120, 170, 101376}}) {
    if (gpu.capability == capability) {
      return {capability,
              fmt::format(
                  R"({{"deviceName": "GPU", "deviceVer": {}, "driverVer": 13000, "cudaDeviceId": 0,
                     "pciDeviceId": 0, "multiProcessorCount": {}, "maxGridSize": [2147483647, 65535, 65535],
                     "maxBlockSize": [1024, 1024, 64], "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048,
                     "maxCtasPerSM": 32, "warpSize": 32, "regsPerBlock": 65536, "maxRegistersPerSM": 65536,
                     "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": {},
                     "reservedSharedMemoryPerBlock": 1024, "l2CacheSize": 52428800, "isTccDriver": 0,
                     "supportCoopLaunch": 1, "smClockRateKHz": 1980000, "memClockRateKHz": 2619000,
                     "totalGlobalMem": 85899345920}})",
                  10 * capability, gpu.multiprocessors, gpu.shared_bytes)};
    }
  }
  throw std::invalid_argument{"no such GPU"};
}

/// The library itself, on the driver of driver_without_gpu.cpp.
class CudnnPlans : public testing::Test {
 protected:
  void SetUp() override {
    if (!is_built_in()) {
      GTEST_SKIP() << "built without cuDNN: not run";
    }
    try {
      library_ = load_library();
    } catch (CudnnError const& error) {
      GTEST_SKIP() << error.what() << ": not run";
    }
  }
  [[nodiscard]] std::unique_ptr<Attention> plan(AttentionShape const& shape, int capability) const {
    auto const gpu = described(capability);
    return library_->plan(shape, &gpu);
  }

  std::unique_ptr<Library> library_;
};

TEST_F(CudnnPlans, ExistForTheShapesOfAllGpusWithinTheWorkspaceThatIsPlanned) {
  std::vector<AttentionShape> const shapes{{DType::bf16, 4, 2048, 32, 4, 64},
                                           {DType::fp16, 1, 1000, 8, 8, 80},
                                           {DType::bf16, 3, 129, 6, 1, 128}};
  // A plan takes cuDNN two seconds.
  std::map<int, std::size_t> counts{{80, 1}, {90, 2}, {120, 1}};
  if (tries_all()) {
    counts = {{80, 3}, {86, 1}, {89, 1}, {90, 3}, {100, 1}, {120, 1}};
  }
  for (auto const& [capability, count] : counts) {
    for (auto const& shape : std::span{shapes}.first(count)) {
      SCOPED_TRACE(fmt::format("{}: {} x {}, {} on {} of {}", capability, shape.batch,
                               shape.sequence, shape.heads, shape.kv_heads, shape.head_dim));
      auto const attention = plan(shape, capability);
      EXPECT_LE(attention->workspace(), largest_workspace(shape));
      if (capability < 100) {  // Blackwell's takes much less
        EXPECT_GE(2 * attention->workspace(), largest_workspace(shape));
      }
    }
  }
}

TEST_F(CudnnPlans, OfWideHeadsAreHoppersAlone) {
  EXPECT_NE(plan(of_width(256), 90), nullptr);
  EXPECT_THAT(error_of([&] { return plan(of_width(256), 80); }), HasSubstr("up to 128"));
}

TEST_F(CudnnPlans, AreTheSameEachTimeSayTheirEnginesAndDoNotRunOnADescribedGpu) {
  auto const once = plan(of_width(64), 90);
  EXPECT_THAT(once->plans(), MatchesRegex("eng[0-9]+_[^ ]*, eng[0-9]+_.*"));
  EXPECT_EQ(once->plans(), plan(of_width(64), 90)->plans());
  EXPECT_THAT(library_->version(), MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_THROW(once->forward({}, {}, nullptr), PreconditionError);
  EXPECT_THROW(once->backward({}, {}, nullptr), PreconditionError);
}

TEST_F(CudnnPlans, AreAnErrorOfOneLineWhereTheLibraryHasNone) {
  DescribedGpu const nothing{90, "{}"};
  auto const error = error_of([&] { return library_->plan(of_width(64), &nothing); });
  EXPECT_THAT(error, AllOf(HasSubstr("a GPU's description"), Not(HasSubstr("\n"))));
}

TEST_F(CudnnPlans, AreAnErrorWithoutAGpu) {
  EXPECT_THAT(error_of([&] { return library_->plan(of_width(64)); }), HasSubstr("no GPU"));
}

}  // namespace
}  // namespace offstage::cudnn
