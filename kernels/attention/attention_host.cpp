#include "kernels/attention/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/instantiate.hpp"
#include "base/simd.hpp"
#include "base/team.hpp"
#include "base/units.hpp"
#include "kernels/attention/attention_bf16.hpp"
#include "kernels/attention/attention_simd.hpp"
#include "kernels/attention/layout.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/host/bf16_unit.hpp"
#include "platform/cuda/check.hpp"
#include "platform/cudnn/attention.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace offstage::kernels {

namespace {

std::int64_t thread_index() {
#ifdef _OPENMP
  return omp_get_thread_num();
#else
  return 0;
#endif
}

/// FP32 copies of a head of the sequence in each thread's scratch memory.
struct Copies {
  std::int64_t forward, backward;
};
constexpr Copies copies_by_loops{2, 5};
constexpr Copies copies_by_unit{1, 4};  ///< bf16 takes half as much

/// Scratch memory of a thread, in floats: `whole` copies, and less than eight of a tile.
std::int64_t scratch_floats(AttentionShape const& shape, std::int64_t whole) {
  return (whole * round_up(shape.sequence, attention_tile) + 8 * attention_tile) *
         round_up(std::max(shape.head_dim, attention_tile), attention_padding);
}

/// Scratch memory of the whole team, also where it has fewer tasks than threads: OpenMP ends the
/// threads that a smaller team leaves out, and the next team must start them again. It is
/// uninitialised, so that each page is first touched by its user.
class ScratchPool {
 public:
  ScratchPool(AttentionShape const& shape, std::int64_t whole)
      : floats_{scratch_floats(shape, whole)}, data_{allocate(floats_ * team_size())} {}
  float* of_this_thread() const { return data_.get() + floats_ * thread_index(); }

 private:
  static constexpr std::align_val_t alignment{64};
  struct Free {
    void operator()(float* data) const noexcept { ::operator delete(data, alignment); }
  };
  static float* allocate(std::int64_t count) {
    auto const bytes = sizeof(float) * static_cast<std::size_t>(count);
    return static_cast<float*>(::operator new(bytes, alignment));
  }
  std::int64_t floats_;  ///< of each thread
  std::unique_ptr<float, Free> data_;
};

template <class T>
void run(Simd simd, AttentionForwardTask<T> const& task) {
  switch (simd) {
    case Simd::avx512:
      return avx512::attention_forward(task);
    case Simd::avx2:
      return avx2::attention_forward(task);
    case Simd::baseline:
      return baseline::attention_forward(task);
  }
}

template <class T>
void run(Simd simd, AttentionBackwardTask<T> const& task) {
  switch (simd) {
    case Simd::avx512:
      return avx512::attention_backward(task);
    case Simd::avx2:
      return avx2::attention_backward(task);
    case Simd::baseline:
      return baseline::attention_backward(task);
  }
}

#if !defined(__x86_64__)
/// best_bf16_unit() finds none.
template <class Task>
[[noreturn]] void refuse(Bf16Unit /*unit*/, Task const& /*task*/) {
  throw PreconditionError{"attention: this processor has no unit that multiplies bf16"};
}
#endif

void run(Bf16Unit unit, AttentionForwardTask<bfloat16> const& task) {
#if defined(__x86_64__)
  if (unit == Bf16Unit::amx) {
    amx::attention_forward(task);
  } else {
    avx512_bf16::attention_forward(task);
  }
#else
  refuse(unit, task);
#endif
}

void run(Bf16Unit unit, AttentionBackwardTask<bfloat16> const& task) {
#if defined(__x86_64__)
  if (unit == Bf16Unit::amx) {
    amx::attention_backward(task);
  } else {
    avx512_bf16::attention_backward(task);
  }
#else
  refuse(unit, task);
#endif
}

/// FirstKeys of all sequences.
class AllFirstKeys {
 public:
  AllFirstKeys(AttentionLayout const& at, AttentionShape const& shape,
               AttentionDocuments const& documents)
      : pitch_{round_up(shape.sequence, attention_tile)} {
    if (documents.begins.empty() && shape.reach() == shape.sequence) {
      return;
    }
    all_.reserve(static_cast<std::size_t>(shape.batch * pitch_));
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      for (std::int64_t i = 0; i < pitch_; ++i) {
        auto const query = std::min(i, shape.sequence - 1);
        all_.push_back(static_cast<std::int32_t>(at.first_key(documents, b, query)));
      }
    }
  }
  FirstKeys of(std::int64_t b) const { return {all_.empty() ? nullptr : all_.data() + b * pitch_}; }

 private:
  std::int64_t pitch_;
  std::vector<std::int32_t> all_;
};

/// A sequence, cut between tiles into pieces for several threads.
class Pieces {
 public:
  Pieces(std::int64_t sequence, std::int64_t wanted)
      : sequence_{sequence},
        tiles_{round_up(sequence, attention_tile) / attention_tile},
        count_{std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(1, tiles_))} {}
  std::int64_t count() const { return count_; }
  Positions operator[](std::int64_t piece) const { return {begin(piece), begin(piece + 1)}; }

 private:
  std::int64_t begin(std::int64_t piece) const {
    return std::min(sequence_, piece * tiles_ / count_ * attention_tile);
  }
  std::int64_t sequence_, tiles_, count_;
};

/// Pieces of each task, so many that a team of `threads` ends together. Later queries see more
/// keys, so pieces are of unequal work, and each thread has several. Together they do 1 to 8 % more
/// than the task.
Pieces forward_pieces(std::int64_t sequence, std::int64_t tasks, std::int64_t threads) {
  bool const even = tasks % threads == 0;
  return {sequence, even ? 1 : ceil_div(4 * threads, tasks)};
}

/// Pieces of queries, and again of keys, which compute the same scores. Together they do 1.6 to 1.7
/// times the work of the task, worth it if more than half of the team would be idle.
std::optional<Pieces> backward_pieces(std::int64_t sequence, std::int64_t tasks,
                                      std::int64_t threads) {
  bool const idle = 2 * tasks < ceil_div(tasks, threads) * threads;
  Pieces const pieces{sequence, ceil_div(2 * threads, tasks)};
  return idle && pieces.count() > 1 ? std::optional{pieces} : std::nullopt;
}

/// The number-th part of a task of backward, the longest first.
std::pair<BackwardPart, Positions> backward_part(std::int64_t sequence,
                                                 std::optional<Pieces> const& pieces,
                                                 std::int64_t number) {
  if (!pieces) {
    return {BackwardPart::all, {0, sequence}};
  }
  auto const count = pieces->count();
  return number < count ? std::pair{BackwardPart::keys, (*pieces)[number]}
                        : std::pair{BackwardPart::queries, (*pieces)[2 * count - 1 - number]};
}

/// Runs all tasks by `unit`, each thread's with room for `whole` copies of the sequence.
template <class Unit, class T>
void forward_by(Unit unit, std::int64_t whole, AttentionForward<T> const& in) {
  auto const at = AttentionLayout::checked(in);
  // Clang takes no structured binding into a parallel region.
  auto const sequence = in.shape.sequence;
  auto const kv_heads = in.shape.kv_heads;
  auto const width = in.shape.head_dim;
  auto const tasks = in.shape.batch * kv_heads;
  if (sequence == 0 || tasks == 0) {
    return;
  }
  auto const pieces = forward_pieces(sequence, tasks, team_size());
  auto const all = tasks * pieces.count();
  AllFirstKeys const first_keys{at, in.shape, in.documents};
  ScratchPool const scratch{in.shape, whole};
  auto const scale = 1 / std::sqrt(static_cast<float>(width));
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t index = 0; index < all; ++index) {
    auto const piece = pieces.count() - 1 - index / tasks;  // the longest first
    auto const b = index % tasks / kv_heads;
    auto const head = index % kv_heads * at.group();
    auto const* const qkv = in.qkv.data();
    run(unit, AttentionForwardTask<T>{
                  sequence, pieces[piece], first_keys.of(b), at.group(), width, at.qkv_stride(),
                  at.out_stride(), scale, qkv + at.query(b, head, 0), qkv + at.key(b, head, 0),
                  qkv + at.value(b, head, 0), in.out.data() + at.out(b, head, 0),
                  in.log_sum_exp.data() + at.row(b, head, 0), scratch.of_this_thread()});
  }
}

template <class Unit, class T>
void backward_by(Unit unit, std::int64_t whole, AttentionBackward<T> const& in) {
  auto const at = AttentionLayout::checked(in);
  // Clang takes no structured binding into a parallel region.
  auto const sequence = in.shape.sequence;
  auto const kv_heads = in.shape.kv_heads;
  auto const width = in.shape.head_dim;
  auto const tasks = in.shape.batch * kv_heads;
  if (sequence == 0 || tasks == 0) {
    return;
  }
  auto const pieces = backward_pieces(sequence, tasks, team_size());
  auto const parts = pieces ? 2 * pieces->count() : 1;
  AllFirstKeys const first_keys{at, in.shape, in.documents};
  ScratchPool const scratch{in.shape, whole};
  auto const scale = 1 / std::sqrt(static_cast<float>(width));
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t index = 0; index < tasks * parts; ++index) {
    auto const [part, positions] = backward_part(sequence, pieces, index / tasks);
    auto const b = index % tasks / kv_heads;
    auto const head = index % kv_heads * at.group();
    auto const* const qkv = in.qkv.data();
    auto* const d_qkv = in.d_qkv.data();
    run(unit, AttentionBackwardTask<T>{
                  sequence, part, positions, first_keys.of(b), at.group(), width, at.qkv_stride(),
                  at.out_stride(), scale, qkv + at.query(b, head, 0), qkv + at.key(b, head, 0),
                  qkv + at.value(b, head, 0), in.out.data() + at.out(b, head, 0),
                  in.d_out.data() + at.out(b, head, 0), in.log_sum_exp.data() + at.row(b, head, 0),
                  d_qkv + at.query(b, head, 0), d_qkv + at.key(b, head, 0),
                  d_qkv + at.value(b, head, 0), scratch.of_this_thread()});
  }
}

}  // namespace

template <class T>
void attention_forward_by(Simd simd, AttentionForward<T> const& in) {
  forward_by(simd, copies_by_loops.forward, in);
}
template <class T>
void attention_backward_by(Simd simd, AttentionBackward<T> const& in) {
  backward_by(simd, copies_by_loops.backward, in);
}

void attention_forward_by(Bf16Unit unit, AttentionForward<bfloat16> const& in) {
  require(unit != Bf16Unit::none, "attention: no unit that multiplies bf16");
  forward_by(unit, copies_by_unit.forward, in);
}
void attention_backward_by(Bf16Unit unit, AttentionBackward<bfloat16> const& in) {
  require(unit != Bf16Unit::none, "attention: no unit that multiplies bf16");
  backward_by(unit, copies_by_unit.backward, in);
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, attention_forward_by)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, attention_backward_by)

namespace host {

template <class T>
void attention_forward(AttentionForward<T> const& in) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    if (auto const unit = best_bf16_unit(); unit != Bf16Unit::none) {
      return attention_forward_by(unit, in);
    }
  }
  attention_forward_by(best_simd(), in);
}
template <class T>
void attention_backward(AttentionBackward<T> const& in) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    if (auto const unit = best_bf16_unit(); unit != Bf16Unit::none) {
      return attention_backward_by(unit, in);
    }
  }
  attention_backward_by(best_simd(), in);
}

template <class T>
Bytes attention_scratch_bytes(AttentionShape const& shape, int threads) {
  bool const by_unit = std::is_same_v<T, bfloat16> && best_bf16_unit() != Bf16Unit::none;
  auto const copies = by_unit ? copies_by_unit : copies_by_loops;
  return threads * scratch_floats(shape, copies.backward) * static_cast<Bytes>(sizeof(float));
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, attention_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, attention_backward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, attention_scratch_bytes)

}  // namespace host

namespace {

/// cuDNN has its kernels under names of its own; an error has these words in their place.
void wait_for(char const* what, CUstream_st* stream) {
  if (offstage::cuda::launches_wait()) {
    offstage::cuda::Launch{what, stream}.finish();
  }
}

template <class T>
void forward_by_cudnn(device::Stream& stream, AttentionForward<T> const& in, CUstream_st* native) {
  static_cast<void>(AttentionLayout::checked(in));
  in.cudnn->forward(
      {.qkv = in.qkv.data(), .out = in.out.data(), .log_sum_exp = in.log_sum_exp.data()},
      stream.scratch(), native);
  wait_for("attention by cuDNN", native);
}

template <class T>
void backward_by_cudnn(AttentionBackward<T> const& in, std::span<std::byte> workspace,
                       CUstream_st* native) {
  static_cast<void>(AttentionLayout::checked(in));
  in.cudnn->backward({.qkv = in.qkv.data(),
                      .out = in.out.data(),
                      .d_out = in.d_out.data(),
                      .log_sum_exp = in.log_sum_exp.data(),
                      .d_qkv = in.d_qkv.data()},
                     workspace, native);
  wait_for("backward of attention by cuDNN", native);
}

/// cuDNN's is of 16-bit types.
template <class T>
constexpr bool has_cudnn = std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>;

template <template <class> class Call, class T>
void require_cudnn_has(Call<T> const& in) {
  require(
      in.cudnn == nullptr || (has_cudnn<T> && in.shape.window == 0 && in.documents.begins.empty()),
      "attention: cuDNN's is of 16-bit types, without a window or documents");
}

}  // namespace

template <class T>
void attention_forward(device::Stream& stream, AttentionForward<T> const& in) {
  require_cudnn_has(in);
  auto const on_host = [in] {
    if constexpr (std::is_same_v<T, double>) {
      ref::attention_forward(in);
    } else {
      host::attention_forward(in);
    }
  };
  auto const on_cuda = [&](auto* native) {
    if constexpr (has_cudnn<T>) {
      if (in.cudnn != nullptr) {
        return forward_by_cudnn(stream, in, native);
      }
    }
    cuda::attention_forward(in, native);
  };
  launch_on<T>(stream, on_host, on_cuda,
               {.flops = attention_forward_products * attention_product_flops(in.shape)});
}

template <class T>
void attention_backward(device::Stream& stream, AttentionBackward<T> const& in) {
  require_cudnn_has(in);
  auto const on_host = [in] {
    if constexpr (std::is_same_v<T, double>) {
      ref::attention_backward(in);
    } else {
      host::attention_backward(in);
    }
  };
  auto const on_cuda = [&](auto* native) {
    auto const workspace = in.workspace.empty() ? stream.scratch() : in.workspace;
    if constexpr (has_cudnn<T>) {
      if (in.cudnn != nullptr) {
        return backward_by_cudnn(in, workspace, native);
      }
    }
    cuda::attention_backward(in, workspace, native);
  };
  launch_on<T>(stream, on_host, on_cuda,
               {.flops = attention_backward_products * attention_product_flops(in.shape)});
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, attention_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, attention_backward)

}  // namespace offstage::kernels
