// The benchmarks' yardsticks do the work they are said to do.
#include <vector>

#include "core/limits.h"
#include "tests/check.h"
#include "tests/naive.h"
#include "tests/thread_executor.h"

using namespace demb_test;  // NOLINT: this is a test

TEST(limits_read_and_change_every_row_once) {
  constexpr int64_t kRows = 20000, kFloats = 32;
  std::vector<float> table(static_cast<size_t>(kRows * kFloats), 1.0f);
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < kRows / 2; ++i) rows.push_back((i * 7919) % (kRows / 2) * 2);  // every even row, once
  for (int threads : {1, 3}) {
    const ThreadExecutor executor(threads);
    char* bytes = reinterpret_cast<char*>(table.data());
    const demb::RandomRows job{bytes, kRows, kFloats * 4, rows.data(), kRows / 2};
    float before;
    CHECK(demb::gather_limit(job, executor, &before));
    CHECK(before == table[0] * kFloats * kRows / 2, "%g", before);
    CHECK(demb::modify_limit(job, executor));
    for (int64_t i = 0; i < kRows * kFloats; ++i) {
      const bool even = i / kFloats % 2 == 0;
      CHECK(table[static_cast<size_t>(i)] == (even ? table[0] : 1.0f) && table[0] > 1.0f);
    }
  }
}

TEST(limits_leave_out_rows_that_are_not_there) {
  std::vector<float> table(3 * 16, 2.0f);
  const demb::SerialExecutor serial;
  for (const int64_t wrong : {int64_t{-1}, int64_t{3}, INT64_MAX, INT64_MIN}) {
    const std::vector<int64_t> rows = {0, wrong, 2};
    const demb::RandomRows job{reinterpret_cast<char*>(table.data()), 3, 64, rows.data(), 3};
    float sum;
    CHECK(!demb::gather_limit(job, serial, &sum));
    CHECK(!demb::modify_limit(job, serial));
    CHECK(sum == 2 * 16 * table[0] - 32.0f, "%g", sum);
  }
  const std::vector<int64_t> rows(9, 0);
  const demb::RandomRows none{reinterpret_cast<char*>(table.data()), 0, int64_t{1} << 62, rows.data(), 9};
  float sum;
  CHECK(!demb::gather_limit(none, serial, &sum) && sum == 0.0f);
  CHECK(!demb::modify_limit(none, serial));
  CHECK(table[0] == 6.0f && table[16] == 2.0f && table[32] == 6.0f);
}
