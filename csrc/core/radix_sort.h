// Stable sort of (key, item) pairs by key: least significant digit first. Its result does not depend on threads.
#pragma once

#include <cstdint>

#include "core/executor.h"

namespace demb {

// A row that an id names, and which occurrence it is.
struct Pair {
  uint32_t key;
  uint32_t item;
};

// Pairs to sort and as much room beside them. Keys are below 2^bits. `sorted` is set to where the result lies: `pairs`
// or `spare`.
struct SortJob {
  Pair* pairs = nullptr;
  Pair* spare = nullptr;
  int64_t count = 0;
  int bits = 32;
  Pair* sorted = nullptr;
};

// Sorts all jobs: side by side, and long ones inside too.
void sort_pairs(SortJob* jobs, int64_t num_jobs, const Executor& executor);

// Bits that hold `value`.
inline int bits_of(uint64_t value) { return value == 0 ? 1 : 64 - __builtin_clzll(value); }

}  // namespace demb
