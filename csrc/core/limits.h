// The yardsticks of benchmarks: what this machine's memory gives when random rows are read, or changed.
#pragma once

#include <cstdint>

#include "core/executor.h"

namespace demb {

// `count` of the rows of a table of num_rows rows, row_bytes (a multiple of 32) bytes each.
struct RandomRows {
  char* table;
  int64_t num_rows;
  int64_t row_bytes;
  const int64_t* rows;
  int64_t count;
};

// A table without rows is left alone: a row's lines are asked for before it is looked at, however long it is.
// Both: whether all rows lie inside the table; those that do not are left out. The check is made where the lookup makes
// its own, so that it is a part of both times.

// *sum: of all floats of the rows, in no fixed order: what is read must be used.
bool gather_limit(const RandomRows& job, const Executor& executor, float* sum);

// Adds 1 to every float of the rows, in place. A row must not come twice on more than one thread.
bool modify_limit(const RandomRows& job, const Executor& executor);

}  // namespace demb
