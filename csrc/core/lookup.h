// Grouped lookup: the bags of all features of a worker out of all its tables, in one call.
#pragma once

#include <cstdint>

#include "core/executor.h"
#include "core/types.h"

namespace demb {

// One feature: its bags, the table they name rows of, and where bag b's vector goes: out + b * out_stride (floats).
struct LookupJob {
  Table table;
  Bags bags;
  float* out = nullptr;
  int64_t out_stride = 0;
  InvalidReport* invalid = nullptr;
};

// out = combiner over the bag's rows, float32; zeros for an empty bag and where weights sum to 0.
void look_up(const LookupJob* jobs, int64_t num_jobs, InvalidIds policy, const Executor& executor);

// What a bag's sum of rows is multiplied by: 1, 1 / Σw (mean), 1 / √Σw² (sqrtn); 0 where that is 1 / 0. Ids that are
// left out count for nothing. Writes bags [first, last) to scales[0 …].
void bag_scales(const Bags& bags, int64_t num_rows, InvalidIds policy, int64_t first, int64_t last, float* scales);

// The scale of every bag when it is the same for all whatever the ids, as for "sum": true and *scale.
bool constant_scale(const Bags& bags, InvalidIds policy, float* scale);

}  // namespace demb
