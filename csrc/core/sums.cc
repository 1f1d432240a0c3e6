#include "core/sums.h"

#include <algorithm>
#include <vector>

#include "core/accumulate.h"

namespace demb {
namespace {

int64_t tasks_of(const Occurrences& o) { return (o.count() + kPairsPerTask - 1) / kPairsPerTask; }

// Calls visit(pair of the row's first occurrence, pair behind its last) for the rows that begin in a task's pairs.
template <typename Visit>
DEMB_INLINE void for_rows(const Occurrences& o, int64_t task, Visit visit) {
  const int64_t last = std::min((task + 1) * kPairsPerTask, o.count());
  for (int64_t begin = o.row_start(task * kPairsPerTask); begin < last;) {
    const int64_t end = row_end(o.begin(), begin, o.count());
    visit(begin, end);
    begin = end;
  }
}

std::vector<int64_t> rows_before(const Occurrences& o, const Executor& executor) {
  std::vector<int64_t> before(static_cast<size_t>(tasks_of(o)) + 1, 0);
  executor.run(tasks_of(o), [&](int64_t t) {
    int64_t rows = 0;
    for_rows(o, t, [&](int64_t, int64_t) { ++rows; });
    before[t + 1] = rows;
  });
  for (size_t t = 1; t < before.size(); ++t) before[t] += before[t - 1];
  return before;
}

// Where a task's sums go: in the order of the rows, or at the rows themselves.
struct Target {
  int64_t* rows;
  float* sums;
  int64_t stride;
  bool at_row;
};

DEMB_INLINE void sum_task(const Occurrences& o, int64_t task, int64_t position, int dim, const Target& to, V8* sum,
                          Accumulate accumulate) {
  const int64_t ahead = pairs_ahead(dim * 4);
  for_rows(o, task, [&](int64_t begin, int64_t end) __attribute__((always_inline)) {
    for (int64_t i = begin + ahead; i < std::min(end + ahead, o.count()); ++i) {
      prefetch_row<false>(reinterpret_cast<const char*>(o.gradient(o.begin()[i].item)), 0, 0, dim * 4);
    }
    accumulate(o, begin, end, dim, sum);
    const uint32_t row = o.begin()[begin].key;
    float* out = to.sums + (to.at_row ? row : position) * to.stride;
    for (int d = 0; d < dim; d += 8) d + 8 <= dim ? store8(out + d, sum[d / 8]) : store_tail(out + d, sum[d / 8], dim - d);
    if (to.rows != nullptr) to.rows[position] = row;
    ++position;
  });
}

DEMB_AVX2 void sum_avx2(const Occurrences& o, int64_t task, int64_t position, int dim, const Target& to, V8* sum) {
  sum_task(o, task, position, dim, to, sum, kAccumulateAvx2);
}

void sum_portable(const Occurrences& o, int64_t task, int64_t position, int dim, const Target& to, V8* sum) {
  sum_task(o, task, position, dim, to, sum, kAccumulatePortable);
}

void sum_to(const Occurrences& o, int32_t dim, const Target& to, const std::vector<int64_t>& before,
            const Executor& executor) {
  const auto run = has_avx2() ? sum_avx2 : sum_portable;
  executor.run(tasks_of(o), [&](int64_t t) {
    Scratch<V8> sum(dim / 8 + 1);
    run(o, t, before.empty() ? 0 : before[t], dim, to, sum.get());
  });
}

}  // namespace

int64_t count_rows(const Occurrences& o, const Executor& executor) { return rows_before(o, executor).back(); }

void sum_rows(const Occurrences& o, int32_t dim, int64_t* rows, float* sums, const Executor& executor) {
  sum_to(o, dim, {rows, sums, dim, false}, rows_before(o, executor), executor);
}

void sum_into_rows(const Occurrences& o, int64_t num_rows, int32_t dim, float* sums, int64_t stride,
                   const Executor& executor) {
  const int64_t step = std::max<int64_t>(1, (int64_t{1} << 16) / std::max(dim, 1));
  executor.run((num_rows + step - 1) / step, [&](int64_t t) {
    for (int64_t r = t * step; r < std::min((t + 1) * step, num_rows); ++r) {
      std::fill(sums + r * stride, sums + r * stride + dim, 0.0f);
    }
  });
  sum_to(o, dim, {nullptr, sums, stride, true}, {}, executor);
}

}  // namespace demb
