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
    const float before = demb::gather_limit(bytes, kFloats * 4, rows.data(), kRows / 2, executor);
    CHECK(before == table[0] * kFloats * kRows / 2, "%g", before);
    demb::modify_limit(bytes, kFloats * 4, rows.data(), kRows / 2, executor);
    for (int64_t i = 0; i < kRows * kFloats; ++i) {
      const bool even = i / kFloats % 2 == 0;
      CHECK(table[static_cast<size_t>(i)] == (even ? table[0] : 1.0f) && table[0] > 1.0f);
    }
  }
}
