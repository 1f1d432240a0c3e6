// Gradients of per-id weights.
#pragma once

#include "core/executor.h"
#include "core/types.h"

namespace demb {

// One weighted feature: its bags, its table, the gradient of bag b's vector at grads + b * grad_stride (floats), and
// where the gradient of weight i goes: out + i.
struct WeightsJob {
  Table table;
  Bags bags;
  const float* grads = nullptr;
  int64_t grad_stride = 0;
  float* out = nullptr;
};

// d/dw_i of combiner(Σ w_i row_i) · gradient; 0 where the id is left out or the bag's scale is 0.
void weights_gradient(const WeightsJob* jobs, int64_t num_jobs, InvalidIds policy, const Executor& executor);

}  // namespace demb
