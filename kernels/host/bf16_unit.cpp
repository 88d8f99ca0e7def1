#include "kernels/host/bf16_unit.hpp"

#include <oneapi/dnnl/dnnl.hpp>

#include "base/simd.hpp"

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace offstage::kernels {

namespace {

/// Linux gives a process tile registers when it asks for them, or never if it does not know them.
/// One asks for all its threads, and as often as one likes.
bool tiles_allowed() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long tile_data = 18;               // the feature's bit in XCR0
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

Bf16Unit find_best() {
  auto const has = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  auto const can = [&](dnnl::cpu_isa isa) {
    return (has & static_cast<unsigned>(isa)) == static_cast<unsigned>(isa);
  };
  if (best_simd() != Simd::avx512 || !can(dnnl::cpu_isa::avx512_core_bf16)) {
    return Bf16Unit::none;
  }
  return can(dnnl::cpu_isa::avx512_core_amx) && tiles_allowed() ? Bf16Unit::amx
                                                                : Bf16Unit::avx512_bf16;
}

}  // namespace

Bf16Unit best_bf16_unit() {
  static Bf16Unit const best = find_best();
  return best;
}

char const* name_of(Bf16Unit unit) noexcept {
  switch (unit) {
    case Bf16Unit::amx:
      return "AMX";
    case Bf16Unit::avx512_bf16:
      return "AVX512-BF16";
    case Bf16Unit::none:
      break;
  }
  return "FP32";
}

}  // namespace offstage::kernels
