#include "base/simd.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <strings.h>

#include <algorithm>
#include <cstdlib>
#endif

namespace offstage {

#if defined(__x86_64__)
namespace {

/// Clang 14's __builtin_cpu_supports does not know it.
bool has_f16c() noexcept {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

/// The most that the user allows by the variables of oneDNN, whose products go together with our
/// loops: so machines of several kinds can be made to compute alike.
Simd most_allowed() noexcept {
  for (char const* const variable : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    char const* const most = std::getenv(variable);
    if (most == nullptr || *most == '\0') {
      continue;
    }
    if (strcasecmp(most, "SSE41") == 0 || strcasecmp(most, "AVX") == 0) {
      return Simd::baseline;
    }
    return strncasecmp(most, "AVX2", 4) == 0 ? Simd::avx2 : Simd::avx512;
  }
  return Simd::avx512;
}

Simd find_best_simd() noexcept {
  bool const avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2") && has_f16c();
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return Simd::avx512;
  }
  return avx2 ? Simd::avx2 : Simd::baseline;
}

}  // namespace

Simd best_simd() noexcept {
  // Asked once: in a virtual machine a cpuid takes tens of microseconds.
  static Simd const best = std::min(find_best_simd(), most_allowed());
  return best;
}
#else
Simd best_simd() noexcept {
  return Simd::baseline;
}
#endif

char const* name_of(Simd simd) noexcept {
  switch (simd) {
    case Simd::avx512:
      return "AVX-512";
    case Simd::avx2:
      return "AVX2";
    case Simd::baseline:
      break;
  }
#if defined(__x86_64__)
  return "SSE2";
#else
  return "NEON";
#endif
}

}  // namespace offstage
