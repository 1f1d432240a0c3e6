// A row's gradient out of its occurrences.
#pragma once

#include "core/numbers.h"
#include "core/occurrences.h"

namespace demb {

constexpr int64_t kPairsPerTask = 4096;
constexpr int64_t kGradientBytesAhead = 2048;

// Pairs ahead of which memory is asked for, for rows of `bytes`.
DEMB_INLINE int64_t pairs_ahead(int64_t bytes) {
  return bytes >= kGradientBytesAhead / 4 ? 4 : (bytes <= kGradientBytesAhead / 24 ? 24 : kGradientBytesAhead / bytes);
}

// Chunk k of an occurrence's gradient; the last chunk may be a tail.
template <int DIM>
DEMB_INLINE V8 gradient_chunk(const float* g, int k, int dim) {
  return DIM > 0 || 8 * k + 8 <= dim ? load8(g + 8 * k) : load_tail(g + 8 * k, dim - 8 * k);
}

// sum[0 … (dim + 7) / 8) = Σ factor * gradient over pairs [begin, end), in order. Lanes behind dim are 0.
template <int DIM>
DEMB_INLINE void accumulate(const Occurrences& o, int64_t begin, int64_t end, int dim, V8* sum) {
  const int chunks = DIM > 0 ? DIM / 8 : (dim + 7) / 8;
  const Pair* pairs = o.begin();
  const bool scaled = o.has_factor();
  const float* g = o.gradient(pairs[begin].item);
  const float first = scaled ? o.factor(pairs[begin].item) : 1.0f;
  for (int k = 0; k < chunks; ++k) sum[k] = gradient_chunk<DIM>(g, k, dim) * first;
  for (int64_t i = begin + 1; i < end; ++i) {
    g = o.gradient(pairs[i].item);
    if (scaled) {
      const float f = o.factor(pairs[i].item);
      for (int k = 0; k < chunks; ++k) sum[k] += gradient_chunk<DIM>(g, k, dim) * f;
    } else {
      for (int k = 0; k < chunks; ++k) sum[k] += gradient_chunk<DIM>(g, k, dim);
    }
  }
}

// Of any dim. A function of its own, so that it is compiled once and not into every rule.
DEMB_INLINE void accumulate_any(const Occurrences& o, int64_t begin, int64_t end, int dim, V8* sum) {
  switch (dim) {
    case 16: return accumulate<16>(o, begin, end, dim, sum);
    case 32: return accumulate<32>(o, begin, end, dim, sum);
    case 64: return accumulate<64>(o, begin, end, dim, sum);
    case 128: return accumulate<128>(o, begin, end, dim, sum);
    default: return accumulate<0>(o, begin, end, dim, sum);
  }
}

using Accumulate = void (*)(const Occurrences&, int64_t begin, int64_t end, int dim, V8* sum);
extern const Accumulate kAccumulateAvx2, kAccumulatePortable;

// One past the last pair of the row that begins at `begin`.
DEMB_INLINE int64_t row_end(const Pair* pairs, int64_t begin, int64_t count) {
  const uint32_t row = pairs[begin].key;
  int64_t end = begin + 1;
  while (end < count && pairs[end].key == row) ++end;
  return end;
}

}  // namespace demb
