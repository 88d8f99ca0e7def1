#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/units.hpp"

struct CUstream_st;

namespace offstage::cudnn {

class CudnnError : public Error {
 public:
  explicit CudnnError(std::string const& message) : Error{ExitCode::other, "cuDNN: " + message} {}
};

/// Causal attention of one layer; its tensors are laid out as those of kernels::AttentionForward
/// and AttentionBackward.
struct AttentionShape {
  DType type{};
  std::int64_t batch{}, sequence{}, heads{}, kv_heads{}, head_dim{};
};

/// Why cuDNN has no attention of this shape whose backward repeats its bits, on a GPU of this
/// compute capability (90: 9.0); empty: it has. A newer or older library may still refuse, which
/// shows when it plans.
[[nodiscard]] std::string reason_against(AttentionShape const& shape, int capability);

/// Device memory that backward takes at most, for a plan where there is no GPU to ask: the
/// gradients of all scores, and those of keys and values by query head where heads share them.
[[nodiscard]] Bytes largest_workspace(AttentionShape const& shape);

/// Scratch memory that is enough for every forward; Hopper takes 256 bytes.
constexpr Bytes forward_workspace = 64 * KiB;

/// Device memory, aligned to 16 bytes.
struct ForwardTensors {
  void const* qkv{};
  void* out{};
  float* log_sum_exp{};
};
struct BackwardTensors {
  void const* qkv{};
  void const* out{};
  void const* d_out{};
  float const* log_sum_exp{};
  void* d_qkv{};  ///< overwritten
};

/// Attention by cuDNN for one shape on one GPU.
///
/// Exact:   sums in FP32, and log_sum_exp as the own kernels leave it. A run repeats its bits; they
///          are not the own kernels', and depend on the version of the library and on plans().
/// Memory:  nothing but the workspace, aligned to 256 bytes, which it has for itself until it is
///          done.
/// Order:   queued on `stream`, of the GPU that was planned for.
/// Threads: one at a time.
/// Errors:  CudnnError.
class Attention {
 public:
  virtual ~Attention() = default;
  /// Plans that were chosen for forward and backward: "eng2_k24=7, eng6_k24=26".
  [[nodiscard]] virtual std::string plans() const = 0;
  /// Bytes that backward takes.
  [[nodiscard]] virtual Bytes workspace() const noexcept = 0;
  /// `workspace`: forward_workspace bytes.
  virtual void forward(ForwardTensors const& tensors, std::span<std::byte> workspace,
                       CUstream_st* stream) = 0;
  virtual void backward(BackwardTensors const& tensors, std::span<std::byte> workspace,
                        CUstream_st* stream) = 0;
};

}  // namespace offstage::cudnn
