// Eight floats at a time, and rows of bfloat16 and float16 as floats. Vector extensions of GCC and Clang: one source
// becomes SSE2 or AVX2 code, whichever function it is inlined into, with the same bits.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>  // declares the builtins of AVX-512
#endif

#include "core/cpu.h"
#include "core/types.h"

#if defined(__GNUC__) && !defined(__clang__)
// Every function that passes vectors is inlined: no ABI is concerned.
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

namespace demb {

using V8 = float __attribute__((vector_size(32)));
using V16 = float __attribute__((vector_size(64)));
using V4 = float __attribute__((vector_size(16)));
using U8 = uint32_t __attribute__((vector_size(32)));
using I8 = int32_t __attribute__((vector_size(32)));
using H8 = uint16_t __attribute__((vector_size(16)));

// A 16-bit float by its bits; which one is in the type.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

template <typename To, typename From>
DEMB_INLINE To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

DEMB_INLINE V8 splat(float x) { return V8{x, x, x, x, x, x, x, x}; }

// Sum of the eight lanes, always in this order.
DEMB_INLINE float lane_sum(V8 v) { return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7])); }

DEMB_INLINE float root(float x) { return __builtin_sqrtf(x); }

DEMB_INLINE V8 root(V8 x) {
#if defined(__x86_64__)
  // SSE2's square root on both halves: an AVX intrinsic would tie this source to AVX.
  V4 low = __builtin_ia32_sqrtps(__builtin_shufflevector(x, x, 0, 1, 2, 3));
  V4 high = __builtin_ia32_sqrtps(__builtin_shufflevector(x, x, 4, 5, 6, 7));
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
#else
  V8 r;
  for (int k = 0; k < 8; ++k) r[k] = __builtin_sqrtf(x[k]);
  return r;
#endif
}

// A NaN in `a` stays one.
template <typename V>
DEMB_INLINE V larger(V a, V b) {
  return a < b ? b : a;
}
template <typename V>
DEMB_INLINE V smaller(V a, V b) {
  return a > b ? b : a;
}

// ---- 16-bit floats, eight at a time; the scalar forms go through them so that both give the same bits ----

DEMB_INLINE V8 widen(U8 h, BFloat16) { return (V8)(h << 16); }

DEMB_INLINE V8 widen(U8 h, Float16) {
  const U8 sign = (h & 0x8000u) << 16;
  const U8 magnitude = (h & 0x7fffu) << 13;
  // Subnormals: (1 + m) 2^-14 - 2^-14, which no flush-to-zero mode (TensorFlow sets one) takes away.
  const U8 small = (U8)((V8)(magnitude + (113u << 23)) - splat(0x1p-14f));
  const U8 normal = magnitude + (112u << 23);
  const U8 special = magnitude + (224u << 23);  // infinities and NaNs
  U8 r = (magnitude < (1u << 23)) ? small : normal;
  r = (magnitude >= (31u << 23)) ? special : r;
  return (V8)(r | sign);
}

// Round to nearest, ties to even.
DEMB_INLINE U8 narrow(V8 v, BFloat16) {
  const U8 bits = (U8)v;
  const U8 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const U8 quiet = (bits >> 16) | 0x40u;
  return ((bits & 0x7fffffffu) > 0x7f800000u) ? quiet : rounded;
}

DEMB_INLINE U8 narrow(V8 v, Float16) {
  const U8 bits = (U8)v;
  const U8 sign = (bits >> 16) & 0x8000u;
  const U8 magnitude = bits & 0x7fffffffu;
  const U8 zero = magnitude ^ magnitude;
  const U8 nan_or_inf = (magnitude > 0x7f800000u) ? (zero + 0x7e00u) : (zero + 0x7c00u);
  // Subnormal result: adding 0.5 aligns the mantissa at the half's last bit, and the addition rounds.
  const U8 small = (U8)((V8)magnitude + splat(0.5f)) - 0x3f000000u;
  const U8 normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  U8 r = (magnitude < (113u << 23)) ? small : normal;
  r = (magnitude >= (143u << 23)) ? nan_or_inf : r;
  return r | sign;
}

// ---- rows ----

template <typename T>
DEMB_INLINE V8 load8(const T* p) {
  H8 h;
  std::memcpy(&h, p, sizeof(h));
  return widen(__builtin_convertvector(h, U8), T{});
}
DEMB_INLINE V8 load8(const float* p) {
  V8 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

template <typename T>
DEMB_INLINE void store8(T* p, V8 v) {
  const H8 h = __builtin_convertvector(narrow(v, T{}), H8);
  std::memcpy(p, &h, sizeof(h));
}
DEMB_INLINE void store8(float* p, V8 v) {
  std::memcpy(p, &v, sizeof(v));
}

// A line past the caches: for what is larger than they are. Address a multiple of 64; in DEMB_AVX512 functions only.
DEMB_INLINE void stream16(float* p, V8 low, V8 high) {
#if defined(__x86_64__) && defined(__clang__)
  __builtin_nontemporal_store(__builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                              reinterpret_cast<V16*>(p));
#elif defined(__x86_64__)
  __builtin_ia32_movntps512(p, __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
#else
  store8(p, low);
  store8(p + 8, high);
#endif
}

// Orders streamed stores before what follows.
DEMB_INLINE void end_stream() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}

// The last n < 8 elements of a row; lanes behind them read as 0 and are not written.
template <typename T>
DEMB_INLINE V8 load_tail(const T* p, int n) {
  T padded[8] = {};
  std::memcpy(padded, p, sizeof(T) * static_cast<size_t>(n));
  return load8(padded);
}
template <typename T>
DEMB_INLINE void store_tail(T* p, V8 v, int n) {
  T padded[8];
  store8(padded, v);
  std::memcpy(p, padded, sizeof(T) * static_cast<size_t>(n));
}

// Where a row begins, or would if there were one.
DEMB_INLINE uintptr_t row_address(const char* base, int64_t row, int64_t stride) {
  return reinterpret_cast<uintptr_t>(base) + static_cast<uintptr_t>(row) * static_cast<uintptr_t>(stride);
}

// Brings the lines of DIM floats that begin at a line into the cache; of others all but perhaps the last.
template <int DIM, bool WRITE>
DEMB_INLINE void prefetch_floats(uintptr_t begin) {
  for (int line = 0; line < DIM * 4; line += 64) {
    __builtin_prefetch(reinterpret_cast<const void*>(begin + static_cast<uintptr_t>(line)), WRITE, 3);
  }
  if (DIM * 4 % 64 != 0) __builtin_prefetch(reinterpret_cast<const void*>(begin + DIM * 4 - 1), WRITE, 3);
}

// Brings the lines of a row into the cache. Any address will do: a prefetch never faults.
template <bool WRITE>
DEMB_INLINE void prefetch_row(const char* base, int64_t row, int64_t stride, int64_t bytes) {
  const uintptr_t start = row_address(base, row, stride);
  const uintptr_t line = start & ~uintptr_t{63};
  // By lines that are counted: an invalid id may lead to the end of the address space, where `at < end` never ends.
  const int64_t lines = (static_cast<int64_t>(start - line) + bytes + 63) / 64;
  for (int64_t k = 0; k < lines; ++k) {
    __builtin_prefetch(reinterpret_cast<const void*>(line + static_cast<uintptr_t>(64 * k)), WRITE ? 1 : 0, 3);
  }
}

}  // namespace demb
