// Dot products of all pairs of a sample's vectors (Naumov et al., "Deep Learning Recommendation Model", 2019).
#pragma once

#include <cstdint>

#include "executor.h"

namespace demb {

struct InteractionShape {
  int64_t batch;
  int64_t count;  // vectors a sample
  int64_t dim;    // numbers a vector
  bool keep_first;  // whether the first vector itself stands before the products

  int64_t products() const { return count * (count - 1) / 2; }
  int64_t kept() const { return keep_first ? dim : 0; }
  int64_t width() const { return kept() + products(); }
};

// vectors: `count` pointers to [batch, dim]. out: [batch, width], by sample the first vector if it is kept, then the
// products of vectors i > j by rows: (1,0) (2,0) (2,1) (3,0) …. Samples are independent of each other bit for bit.
void interact(const InteractionShape& shape, const float* const* vectors, float* out, const Executor& executor);

// upstream: [batch, width]. gradients: `count` pointers to [batch, dim], written whole.
void interact_gradient(const InteractionShape& shape, const float* upstream, const float* const* vectors,
                       float* const* gradients, const Executor& executor);

}  // namespace demb
