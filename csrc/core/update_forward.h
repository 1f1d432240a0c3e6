// A step's update, and the rows that the next step asks written out while they are still in the caches.
#pragma once

#include <cstdint>

#include "core/update.h"

namespace demb {

// Rows asked of a table; row i's vector goes to out + i * dim (floats), float32. Rows that rise, as those of `route` do,
// are written out as the update comes by, others after it.
struct AskedRows {
  const int64_t* rows = nullptr;
  int64_t count = 0;
  float* out = nullptr;
};

// One table: a step's gradients of its rows, what they change and how, and what is asked of it then.
struct UpdateForwardJob {
  TableGradient gradient;
  UpdateTarget target;
  RuleStep rule;
  const AskedRows* asked = nullptr;
  int64_t num_asked = 0;
};

// As `update_rows` of all tables and then `look_up` of what is asked, with the same bits. OccurrenceSorter must support the
// gradients; those of rows outside are left out. Returns how many of the rows asked are outside. No table twice.
int64_t update_forward(const UpdateForwardJob* jobs, int64_t num_jobs, const Executor& executor);

}  // namespace demb
