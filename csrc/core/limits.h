// What the machine's memory gives: the yardstick of the benchmarks.
#pragma once

#include <cstdint>

#include "core/executor.h"

namespace demb {

// Reads rows [count] of row_bytes each (a multiple of 64), with prefetch, and adds them up; returns the sum.
float gather_limit(const char* table, int64_t row_bytes, const int64_t* rows, int64_t count, const Executor& executor);

// Reads, changes and writes them; no row twice.
void modify_limit(char* table, int64_t row_bytes, const int64_t* rows, int64_t count, const Executor& executor);

}  // namespace demb
