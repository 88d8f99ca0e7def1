#pragma once

#include <cstdint>
#include <span>
#include <variant>

#include "base/dtype.hpp"
#include "device/device.hpp"

struct CUstream_st;  // lets host code name a stream without a CUDA header

namespace offstage::kernels {

/// Rotates, in place, the query and key heads of every row of a packed (rows, (heads + 2 kv_heads)
/// * head_dim) array by the row's position: element i of a head pairs with i + head_dim / 2 (the
/// "rotate half" layout of LLaMA in Hugging Face format). `inverse` rotates back: the backward
/// pass. The position of row r is r mod sequence.
template <class T>
struct Rope {
  std::span<T> qkv;                 ///< (rows, (heads + 2 kv_heads) * head_dim)
  std::span<Real<T> const> cosine;  ///< (sequence, head_dim / 2)
  std::span<Real<T> const> sine;    ///< (sequence, head_dim / 2)
  std::int64_t rows, sequence, heads, kv_heads, head_dim;
  bool inverse = false;
};

/// How LLaMA 3 stretches RoPE beyond the sequence length it was first trained on: frequencies whose
/// wavelength (tokens per turn) is above original_sequence / low_frequency are divided by `factor`,
/// those below original_sequence / high_frequency stay, between them the blend is linear in turns
/// per original_sequence.
/// Source: Hugging Face transformers, rope type "llama3".
struct Llama3Scaling {
  double factor, low_frequency, high_frequency;
  double original_sequence;
};

/// All frequencies are divided by `factor`.
/// Source: Hugging Face transformers, rope type "linear".
struct LinearScaling {
  double factor;
};

/// Frequencies that turn less than `slow` times within original_sequence are divided by `factor`,
/// those that turn more than `fast` times stay; between the whole numbers of frequency that enclose
/// these two the blend is linear in the number. Cosines and sines are multiplied by
/// attention_factor. Source: Peng et al., arXiv:2309.00071; Hugging Face transformers, rope type
/// "yarn".
struct YarnScaling {
  double factor, slow, fast;
  double original_sequence;
  double attention_factor;
};

using RopeScaling = std::variant<std::monostate, LinearScaling, Llama3Scaling, YarnScaling>;

/// The tables: angle(t, i) = t * theta^(-2 i / head_dim), that frequency scaled if asked for, both
/// (sequence, head_dim / 2), computed in double on the host.
/// Errors: PreconditionError for a shape or a scaling that cannot be.
void rope_tables(std::int64_t sequence, std::int64_t head_dim, double theta,
                 std::span<double> cosine, std::span<double> sine, RopeScaling const& scaling = {});

/// Source:  Su et al., arXiv:2104.09864.
/// Memory, order, types, errors: as in rmsnorm.hpp.
namespace ref {
template <class T>
void rope(Rope<T> const&);
}
namespace host {
template <class T>
void rope(Rope<T> const&);
}
namespace cuda {
template <class T>
void rope(Rope<T> const&, CUstream_st* stream);
}  // namespace cuda
template <class T>
void rope(device::Stream&, Rope<T> const&);

}  // namespace offstage::kernels
