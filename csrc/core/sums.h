// Sums of duplicates: a row's whole gradient of a step, float32, in the order of its occurrences.
#pragma once

#include <cstdint>

#include "core/occurrences.h"

namespace demb {

// How many different rows occur.
int64_t count_rows(const Occurrences& occurrences, const Executor& executor);

// The rows that occur, rising, and their sums [rows, dim].
void sum_rows(const Occurrences& occurrences, int32_t dim, int64_t* rows, float* sums, const Executor& executor);

// Row r's sum to sums + r * stride (floats), zeros where it does not occur; num_rows in all.
void sum_into_rows(const Occurrences& occurrences, int64_t num_rows, int32_t dim, float* sums, int64_t stride,
                   const Executor& executor);

}  // namespace demb
