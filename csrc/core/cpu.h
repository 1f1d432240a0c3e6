// What this processor can do, asked once.
#pragma once

#include <cstdlib>

namespace demb {

// Whether the AVX2 paths may run. DEMB_ISA=portable in the environment turns them off, so that both can be tested.
inline bool has_avx2() {
#if defined(__x86_64__)
  static const bool yes = [] {
    const char* asked = std::getenv("DEMB_ISA");
    if (asked != nullptr && asked[0] == 'p') return false;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") && __builtin_cpu_supports("fma");
  }();
  return yes;
#else
  return false;
#endif
}

// Whether AVX-512 paths may run, which write whole lines past the caches.
inline bool has_avx512() {
#if defined(__x86_64__)
  static const bool yes = has_avx2() && __builtin_cpu_supports("avx512f");
  return yes;
#else
  return false;
#endif
}

}  // namespace demb

// Put before a function whose always-inline body may use AVX2.
#if defined(__x86_64__)
#define DEMB_AVX2 __attribute__((target("avx2,f16c")))
#define DEMB_AVX512 __attribute__((target("avx2,f16c,avx512f")))
#else
#define DEMB_AVX2
#define DEMB_AVX512
#endif
#define DEMB_INLINE static inline __attribute__((always_inline))
#define DEMB_INLINE_METHOD inline __attribute__((always_inline))
