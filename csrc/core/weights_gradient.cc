#include "core/weights_gradient.h"

#include <algorithm>
#include <vector>

#include "core/lookup.h"
#include "core/numbers.h"

namespace demb {
namespace {

constexpr int64_t kIdsPerTask = 4096;

DEMB_INLINE V8 row_chunk(const Table& table, const char* row, int d) {
  const int n = std::min(8, table.dim - d);
  switch (table.dtype) {
    case DType::kBFloat16: {
      const auto* p = reinterpret_cast<const BFloat16*>(row) + d;
      return n == 8 ? load8(p) : load_tail(p, n);
    }
    case DType::kFloat16: {
      const auto* p = reinterpret_cast<const Float16*>(row) + d;
      return n == 8 ? load8(p) : load_tail(p, n);
    }
    default: {
      const auto* p = reinterpret_cast<const float*>(row) + d;
      return n == 8 ? load8(p) : load_tail(p, n);
    }
  }
}

DEMB_INLINE float dot(const Table& table, const char* row, const float* g) {
  V8 total = splat(0.0f);
  for (int d = 0; d < table.dim; d += 8) {
    const V8 v = d + 8 <= table.dim ? load8(g + d) : load_tail(g + d, table.dim - d);
    total += row_chunk(table, row, d) * v;
  }
  return lane_sum(total);
}

// With dots p_i = row_i · g: sum: p_i. mean: (p_i - Σ w p / Σ w) / Σ w. sqrtn: (p_i - w_i Σ w p / Σ w²) / √Σ w².
DEMB_INLINE void bag_gradient(const WeightsJob& job, InvalidIds policy, int64_t b) {
  const Bags& bags = job.bags;
  const int64_t begin = bags.begin(b), end = bags.begin(b + 1), rows = job.table.num_rows;
  const float* g = job.grads + b * job.grad_stride;
  float scale, weighted = 0.0f;
  bag_scales(bags, rows, policy, b, b + 1, &scale);
  for (int64_t i = begin; i < end; ++i) {
    int64_t id = bags.id(i);
    const bool valid = static_cast<uint64_t>(id) < static_cast<uint64_t>(rows);
    if (!valid && policy == InvalidIds::kClip) id = id < 0 ? 0 : rows - 1;
    job.out[i] = valid || policy == InvalidIds::kClip ? dot(job.table, job.table.data + id * job.table.stride, g) : 0.0f;
    weighted += bags.weights[i] * job.out[i];
  }
  if (bags.combiner == Combiner::kSum) return;
  for (int64_t i = begin; i < end; ++i) {
    const bool valid = static_cast<uint64_t>(bags.id(i)) < static_cast<uint64_t>(rows);
    if (!valid && policy != InvalidIds::kClip) continue;
    const float share = bags.combiner == Combiner::kMean ? weighted * scale : bags.weights[i] * weighted * scale * scale;
    job.out[i] = (job.out[i] - share) * scale;
  }
}

DEMB_AVX2 void bags_avx2(const WeightsJob& job, InvalidIds policy, int64_t first, int64_t last) {
  for (int64_t b = first; b < last; ++b) bag_gradient(job, policy, b);
}
void bags_portable(const WeightsJob& job, InvalidIds policy, int64_t first, int64_t last) {
  for (int64_t b = first; b < last; ++b) bag_gradient(job, policy, b);
}

}  // namespace

void weights_gradient(const WeightsJob* jobs, int64_t num_jobs, InvalidIds policy, const Executor& executor) {
  struct Task {
    const WeightsJob* job;
    int64_t first, last;
  };
  std::vector<Task> tasks;
  for (int64_t j = 0; j < num_jobs; ++j) {
    const Bags& bags = jobs[j].bags;
    const int64_t step = bags.bags_of(kIdsPerTask);
    for (int64_t b = 0; b < bags.num_bags; b += step) tasks.push_back({&jobs[j], b, std::min(b + step, bags.num_bags)});
  }
  const auto run = has_avx2() ? bags_avx2 : bags_portable;
  executor.run(static_cast<int64_t>(tasks.size()),
               [&](int64_t t) { run(*tasks[t].job, policy, tasks[t].first, tasks[t].last); });
}

}  // namespace demb
