#include "base/simd.hpp"

namespace offstage {

Simd best_simd() noexcept {
#if defined(__x86_64__)
  bool const avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2");
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return Simd::avx512;
  }
  if (avx2) {
    return Simd::avx2;
  }
#endif
  return Simd::baseline;
}

char const* name_of(Simd simd) noexcept {
  switch (simd) {
    case Simd::avx512:
      return "AVX-512";
    case Simd::avx2:
      return "AVX2";
    case Simd::baseline:
      break;
  }
  return "SSE2";
}

}  // namespace offstage
