#include "core/limits.h"

#include <algorithm>
#include <atomic>

#include "core/numbers.h"

namespace demb {
namespace {

constexpr int64_t kRowsPerTask = 8192;

DEMB_INLINE float gather(const char* table, int64_t row_bytes, const int64_t* rows, int64_t first, int64_t last) {
  const int64_t ahead = std::max<int64_t>(4, std::min<int64_t>(32, 2048 / row_bytes));
  V8 sum = splat(0.0f);
  for (int64_t i = first; i < last; ++i) {
    if (i + ahead < last) prefetch_row<false>(table, rows[i + ahead], row_bytes, row_bytes);
    const float* row = reinterpret_cast<const float*>(table + rows[i] * row_bytes);
    for (int64_t d = 0; d < row_bytes / 4; d += 8) sum += load8(row + d);
  }
  return lane_sum(sum);
}

DEMB_INLINE void modify(char* table, int64_t row_bytes, const int64_t* rows, int64_t first, int64_t last) {
  const int64_t ahead = std::max<int64_t>(4, std::min<int64_t>(32, 2048 / row_bytes));
  for (int64_t i = first; i < last; ++i) {
    if (i + ahead < last) prefetch_row<true>(table, rows[i + ahead], row_bytes, row_bytes);
    float* row = reinterpret_cast<float*>(table + rows[i] * row_bytes);
    for (int64_t d = 0; d < row_bytes / 4; d += 8) store8(row + d, load8(row + d) + 1.0f);
  }
}

DEMB_AVX2 float gather_avx2(const char* t, int64_t b, const int64_t* r, int64_t f, int64_t l) { return gather(t, b, r, f, l); }
float gather_portable(const char* t, int64_t b, const int64_t* r, int64_t f, int64_t l) { return gather(t, b, r, f, l); }
DEMB_AVX2 void modify_avx2(char* t, int64_t b, const int64_t* r, int64_t f, int64_t l) { modify(t, b, r, f, l); }
void modify_portable(char* t, int64_t b, const int64_t* r, int64_t f, int64_t l) { modify(t, b, r, f, l); }

}  // namespace

float gather_limit(const char* table, int64_t row_bytes, const int64_t* rows, int64_t count, const Executor& executor) {
  const auto run = has_avx2() ? gather_avx2 : gather_portable;
  std::atomic<float> total{0.0f};
  executor.run((count + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t t) {
    const float sum = run(table, row_bytes, rows, t * kRowsPerTask, std::min((t + 1) * kRowsPerTask, count));
    float seen = total.load();
    while (!total.compare_exchange_weak(seen, seen + sum)) {
    }
  });
  return total.load();
}

void modify_limit(char* table, int64_t row_bytes, const int64_t* rows, int64_t count, const Executor& executor) {
  const auto run = has_avx2() ? modify_avx2 : modify_portable;
  executor.run((count + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t t) {
    run(table, row_bytes, rows, t * kRowsPerTask, std::min((t + 1) * kRowsPerTask, count));
  });
}

}  // namespace demb
