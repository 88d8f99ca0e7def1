#include "kernels/attention/cached.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/error.hpp"
#include "base/instantiate.hpp"
#include "kernels/attention/cached_simd.hpp"
#include "kernels/host/simd_dispatch.hpp"

namespace offstage::kernels {
namespace {

// Fewer products than these are done before a team has begun.
constexpr std::int64_t worth_a_team = 1 << 16;

template <class T>
void check(CachedAttention<T> const& a) {
  bool const sane = a.rows >= 1 && a.past >= 0 && a.kv_heads >= 1 && a.heads >= 1 &&
                    a.heads % a.kv_heads == 0 && a.head_dim >= 1 && a.window >= 0;
  require(sane, "cached_attention: no such shape");
  auto const all = (a.past + a.rows) * a.kv_heads * a.head_dim;
  require(std::ssize(a.qkv) == a.rows * (a.heads + 2 * a.kv_heads) * a.head_dim &&
              std::ssize(a.keys) == all && std::ssize(a.values) == all &&
              std::ssize(a.out) == a.rows * a.heads * a.head_dim,
          "cached_attention: spans do not have the sizes of their shape");
}

template <class T>
CachedRow<T> row_of(CachedAttention<T> const& a, std::int64_t row, std::int64_t head) {
  auto const width = a.head_dim;
  auto const pitch = a.kv_heads * width;
  auto const end = a.past + row + 1;
  auto const first = a.window > 0 ? std::max<std::int64_t>(0, end - a.window) : 0;
  auto const offset = first * pitch + head / (a.heads / a.kv_heads) * width;
  return {.count = end - first,
          .width = width,
          .pitch = pitch,
          .query = a.qkv.data() + (row * (a.heads + 2 * a.kv_heads) + head) * width,
          .keys = a.keys.data() + offset,
          .values = a.values.data() + offset,
          .out = a.out.data() + (row * a.heads + head) * width};
}

}  // namespace

namespace host {

template <class T>
void cached_attention(CachedAttention<T> const& a, Simd simd) {
  check(a);
  [[maybe_unused]] bool const large =
      a.rows * a.heads * (a.past + a.rows) * a.head_dim >= worth_a_team;
  with_simd(simd, [&](auto chosen) {
#pragma omp parallel if (large)
    {
      std::vector<float> scratch;
#pragma omp for schedule(dynamic)
      for (std::int64_t i = 0; i < a.rows * a.heads; ++i) {
        auto const row = row_of(a, i / a.heads, i % a.heads);
        scratch.resize(static_cast<std::size_t>(row.count + row.width));
        attend_row<chosen()>(row, scratch.data());
      }
    }
  });
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_DECODER_TYPES, cached_attention)

}  // namespace host

template <class T>
void cached_attention(device::Stream& stream, CachedAttention<T> const& a) {
  require(stream.kind() == device::Kind::host, "cached_attention: the host alone has it");
  stream.enqueue([a] { host::cached_attention(a); });
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_DECODER_TYPES, cached_attention)

}  // namespace offstage::kernels
