#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "device/device.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/attention_gpu_support.hpp"
#include "kernels/gpu_support.hpp"
#include "kernels/pretended_attention.hpp"
#include "platform/cuda/check.hpp"
#include "platform/cuda/gpus.hpp"
#include "platform/cudnn/attention.hpp"
#include "platform/cudnn/library.hpp"

namespace offstage::kernels {
namespace {

/// Both directions on a calling stream, by `attention` if it is not null; all views are aligned,
/// and what lies beside the workspace is looked at.
template <class T>
void solve_on_stream(Problem<T>& p, cudnn::Attention* attention, Bytes workspace_bytes) {
  auto const device = device::make_cuda_device(0, 0);
  auto const stream = device->make_calling_stream("model");
  DeviceArray<T> const qkv{p.qkv};
  DeviceArray<T> const d_out{p.d_out};
  DeviceArray<T> const out{p.out};
  DeviceArray<T> const d_qkv{p.d_qkv};
  DeviceArray<float> const log_sum_exp{p.log_sum_exp};
  auto const bytes = static_cast<std::size_t>(workspace_bytes);
  std::vector<std::byte> around(bytes + margin, std::byte{0x5A});
  DeviceArray<std::byte> const workspace{around};
  auto const qkv_view = qkv.view(0, p.qkv.size());
  auto const out_view = out.view(margin, p.d_out.size());
  auto const log_view = log_sum_exp.view(margin, p.inner(p.log_sum_exp));
  attention_forward<T>(*stream, {p.shape, qkv_view, out_view, log_view, attention});
  attention_backward<T>(*stream,
                        {p.shape, qkv_view, out_view, d_out.view(0, p.d_out.size()), log_view,
                         d_qkv.view(margin, p.qkv.size()), workspace.view(0, bytes), attention});
  stream->synchronize();
  out.copy_to(p.out);
  d_qkv.copy_to(p.d_qkv);
  log_sum_exp.copy_to(p.log_sum_exp);
  workspace.copy_to(around);
  EXPECT_TRUE(std::all_of(around.begin() + static_cast<std::ptrdiff_t>(bytes), around.end(),
                          [](std::byte b) { return b == std::byte{0x5A}; }));
}

cudnn::AttentionShape shape_for_cudnn(AttentionShape const& shape, DType type) {
  return {type, shape.batch, shape.sequence, shape.heads, shape.kv_heads, shape.head_dim};
}

class AttentionByPlans : public testing::Test {
 protected:
  void SetUp() override {
    if (offstage::cuda::find_gpus().count == 0) {
      GTEST_SKIP() << "no GPU: not run";
    }
  }
};

TEST_F(AttentionByPlans, TakeItsTensorsAndTheirWorkspaceInThePlaceOfTheOwnKernels) {
  Problem<bfloat16> own{{2, 66, 4, 2, 64}};
  auto planned = own;
  PretendedAttention pretended{own.shape};
  solve_on_stream(own, nullptr, attention_workspace<bfloat16>(own.shape));
  solve_on_stream(planned, &pretended, pretended.workspace());
  EXPECT_EQ(pretended.forwards, 1);
  EXPECT_EQ(pretended.backwards, 1);
  EXPECT_TRUE(own.out == planned.out && own.d_qkv == planned.d_qkv);
  EXPECT_EQ(own.log_sum_exp, planned.log_sum_exp);
}

TEST_F(AttentionByPlans, RefuseOtherTypesAndTensorsOfAnotherSize) {
  Problem<float> wide{{1, 8, 2, 1, 64}};
  PretendedAttention pretended{wide.shape};
  EXPECT_THROW(solve_on_stream(wide, &pretended, MiB), PreconditionError);
  Problem<bfloat16> other{{1, 8, 2, 1, 64}};
  other.shape.sequence = 9;
  EXPECT_THROW(solve_on_stream(other, &pretended, MiB), PreconditionError);
  EXPECT_EQ(pretended.forwards, 0);
}

/// The library itself, on a GPU (not on the stand-in for one).
template <class T>
class AttentionByCudnn : public AttentionByPlans {
 protected:
  void SetUp() override {
    AttentionByPlans::SetUp();
    if (IsSkipped()) {
      return;
    }
    try {
      library_ = cudnn::load_library();
    } catch (cudnn::CudnnError const& error) {
      GTEST_SKIP() << error.what() << ": not run";
    }
  }
  std::unique_ptr<cudnn::Attention> plan(AttentionShape const& shape) {
    offstage::cuda::check(cudaSetDevice(0));
    return library_->plan(shape_for_cudnn(shape, dtype_of<T>()));
  }

 private:
  std::unique_ptr<cudnn::Library> library_;
};
using Types = testing::Types<bfloat16, float16>;
TYPED_TEST_SUITE(AttentionByCudnn, Types);

TYPED_TEST(AttentionByCudnn, AgreesWithTheReferenceAndTheOwnKernelsAndRepeatsItsBits) {
  using T = TypeParam;
  for (AttentionShape const& shape : {AttentionShape{2, 130, 2, 1, 64},
                                      {1, 200, 4, 1, 80},
                                      {1, 257, 2, 2, 96},
                                      {2, 65, 2, 1, 128},
                                      {1, 64, 4, 4, 64},
                                      {1, 7, 2, 1, 32},
                                      {1, 1000, 8, 2, 64}}) {
    auto const attention = this->plan(shape);
    SCOPED_TRACE(attention->plans());
    Problem<T> problem{shape};
    auto again = problem;
    auto own = problem;
    solve_on_stream(problem, attention.get(), attention->workspace());
    Wanted<T> const wanted{problem};
    expect_close(problem, wanted, tolerance<T>);
    solve_on_stream(own, nullptr, attention_workspace<T>(shape));
    expect_close(own, wanted, tolerance<T>);
    solve_on_stream(again, attention.get(), attention->workspace());
    EXPECT_TRUE(problem.out == again.out && problem.d_qkv == again.d_qkv);
    EXPECT_EQ(problem.log_sum_exp, again.log_sum_exp);
  }
}

}  // namespace
}  // namespace offstage::kernels
