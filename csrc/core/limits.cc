#include "core/limits.h"

#include <algorithm>
#include <atomic>

#include "core/numbers.h"

namespace demb {
namespace {

constexpr int64_t kRowsPerTask = 8192;

DEMB_INLINE bool inside(const RandomRows& job, int64_t i) {
  return static_cast<uint64_t>(job.rows[i]) < static_cast<uint64_t>(job.num_rows);
}

template <bool WRITE>
DEMB_INLINE void ask(const RandomRows& job, int64_t i, int64_t last) {
  const int64_t ahead = std::max<int64_t>(4, std::min<int64_t>(32, 2048 / job.row_bytes));
  if (i + ahead < last) prefetch_row<WRITE>(job.table, job.rows[i + ahead], job.row_bytes, job.row_bytes);
}

// Both return whether all rows were inside the table; those outside are left out.
DEMB_INLINE bool gather(const RandomRows& job, int64_t first, int64_t last, float* total) {
  bool all = true;
  V8 sum = splat(0.0f);
  for (int64_t i = first; i < last; ++i) {
    ask<false>(job, i, last);
    if (!inside(job, i)) {
      all = false;
      continue;
    }
    const float* row = reinterpret_cast<const float*>(job.table + job.rows[i] * job.row_bytes);
    for (int64_t d = 0; d < job.row_bytes / 4; d += 8) sum += load8(row + d);
  }
  *total = lane_sum(sum);
  return all;
}

DEMB_INLINE bool modify(const RandomRows& job, int64_t first, int64_t last) {
  bool all = true;
  for (int64_t i = first; i < last; ++i) {
    ask<true>(job, i, last);
    if (!inside(job, i)) {
      all = false;
      continue;
    }
    float* row = reinterpret_cast<float*>(job.table + job.rows[i] * job.row_bytes);
    for (int64_t d = 0; d < job.row_bytes / 4; d += 8) store8(row + d, load8(row + d) + 1.0f);
  }
  return all;
}

DEMB_AVX2 bool gather_avx2(const RandomRows& job, int64_t f, int64_t l, float* sum) { return gather(job, f, l, sum); }
bool gather_portable(const RandomRows& job, int64_t f, int64_t l, float* sum) { return gather(job, f, l, sum); }
DEMB_AVX2 bool modify_avx2(const RandomRows& job, int64_t f, int64_t l) { return modify(job, f, l); }
bool modify_portable(const RandomRows& job, int64_t f, int64_t l) { return modify(job, f, l); }

// task(first, last) over all rows; whether every call returned true.
bool in_parts(const RandomRows& job, const Executor& executor, FunctionRef<bool(int64_t, int64_t)> task) {
  if (job.num_rows == 0) return job.count == 0;
  std::atomic<bool> all{true};
  executor.run((job.count + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t t) {
    if (!task(t * kRowsPerTask, std::min((t + 1) * kRowsPerTask, job.count))) all.store(false);
  });
  return all.load();
}

}  // namespace

bool gather_limit(const RandomRows& job, const Executor& executor, float* sum) {
  const auto run = has_avx2() ? gather_avx2 : gather_portable;
  std::atomic<float> total{0.0f};
  const bool all = in_parts(job, executor, [&](int64_t first, int64_t last) {
    float part;
    const bool inside = run(job, first, last, &part);
    float seen = total.load();
    while (!total.compare_exchange_weak(seen, seen + part)) {
    }
    return inside;
  });
  *sum = total.load();
  return all;
}

bool modify_limit(const RandomRows& job, const Executor& executor) {
  const auto run = has_avx2() ? modify_avx2 : modify_portable;
  return in_parts(job, executor, [&](int64_t first, int64_t last) { return run(job, first, last); });
}

}  // namespace demb
