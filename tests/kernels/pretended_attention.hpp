#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <iterator>
#include <span>
#include <string>

#include "base/dtype.hpp"
#include "base/units.hpp"
#include "kernels/attention/attention.hpp"
#include "platform/cudnn/attention.hpp"

namespace offstage::kernels {

/// In the place of cuDNN: the own kernels, and what they were called with.
class PretendedAttention final : public cudnn::Attention {
 public:
  explicit PretendedAttention(AttentionShape const& shape)
      : shape_{shape}, workspace_{attention_workspace<bfloat16>(shape) + 512} {}

  [[nodiscard]] std::string plans() const override { return "pretended"; }
  [[nodiscard]] Bytes workspace() const noexcept override { return workspace_; }
  void forward(cudnn::ForwardTensors const& tensors, std::span<std::byte> workspace,
               CUstream_st* stream) override {
    EXPECT_GE(std::ssize(workspace), cudnn::forward_workspace);
    cuda::attention_forward<bfloat16>({shape_,
                                       {static_cast<bfloat16 const*>(tensors.qkv), qkv_size()},
                                       {static_cast<bfloat16*>(tensors.out), out_size()},
                                       {tensors.log_sum_exp, rows()}},
                                      stream);
    ++forwards;
  }
  void backward(cudnn::BackwardTensors const& tensors, std::span<std::byte> workspace,
                CUstream_st* stream) override {
    EXPECT_EQ(std::ssize(workspace), workspace_);
    cuda::attention_backward<bfloat16>({shape_,
                                        {static_cast<bfloat16 const*>(tensors.qkv), qkv_size()},
                                        {static_cast<bfloat16 const*>(tensors.out), out_size()},
                                        {static_cast<bfloat16 const*>(tensors.d_out), out_size()},
                                        {tensors.log_sum_exp, rows()},
                                        {static_cast<bfloat16*>(tensors.d_qkv), qkv_size()}},
                                       workspace, stream);
    ++backwards;
  }

  int forwards = 0;
  int backwards = 0;

 private:
  [[nodiscard]] std::size_t rows() const {
    return static_cast<std::size_t>(shape_.batch * shape_.heads * shape_.sequence);
  }
  [[nodiscard]] std::size_t out_size() const {
    return rows() * static_cast<std::size_t>(shape_.head_dim);
  }
  [[nodiscard]] std::size_t qkv_size() const {
    return static_cast<std::size_t>(shape_.batch * shape_.sequence *
                                    (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim);
  }

  AttentionShape shape_;
  Bytes workspace_;
};

}  // namespace offstage::kernels
