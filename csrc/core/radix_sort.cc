#include "core/radix_sort.h"

#include <algorithm>
#include <utility>

#include "core/pages.h"

namespace demb {
namespace {

constexpr int kMaxDigit = 11;                  // 2048 counters of 4 bytes: a quarter of L1
constexpr int64_t kChunk = int64_t{1} << 16;   // pairs a task of a long job
constexpr int64_t kLong = int64_t{1} << 18;    // shorter jobs are one task

struct Digits {
  explicit Digits(int bits) : passes((bits + kMaxDigit - 1) / kMaxDigit), width((bits + passes - 1) / passes) {}
  uint32_t of(uint32_t key, int pass) const { return (key >> (pass * width)) & ((1u << width) - 1u); }
  int64_t buckets() const { return int64_t{1} << width; }
  int passes;
  int width;
};

void count_digits(const Pair* from, int64_t n, const Digits& digits, int pass, uint32_t* counts) {
  std::fill(counts, counts + digits.buckets(), 0u);
  for (int64_t i = 0; i < n; ++i) ++counts[digits.of(from[i].key, pass)];
}

void deal(const Pair* from, int64_t n, const Digits& digits, int pass, uint32_t* next, Pair* to) {
  for (int64_t i = 0; i < n; ++i) to[next[digits.of(from[i].key, pass)]++] = from[i];
}

void sort_alone(SortJob& job) {
  const Digits digits(job.bits);
  uint32_t counts[1 << kMaxDigit];
  Pair* from = job.pairs;
  Pair* to = job.spare;
  for (int pass = 0; pass < digits.passes; ++pass) {
    count_digits(from, job.count, digits, pass, counts);
    uint32_t start = 0;
    for (int64_t d = 0; d < digits.buckets(); ++d) start += std::exchange(counts[d], start);
    deal(from, job.count, digits, pass, counts, to);
    std::swap(from, to);
  }
  job.sorted = from;
}

// Every chunk knows where its pairs of each digit go, so chunks can be dealt at the same time and the order stays.
void sort_together(SortJob& job, const Executor& executor) {
  const Digits digits(job.bits);
  const int64_t chunks = (job.count + kChunk - 1) / kChunk, buckets = digits.buckets();
  Scratch<uint32_t> counts(chunks * buckets);
  Pair* from = job.pairs;
  Pair* to = job.spare;
  for (int pass = 0; pass < digits.passes; ++pass) {
    auto length = [&](int64_t c) { return std::min(kChunk, job.count - c * kChunk); };
    executor.run(chunks, [&](int64_t c) {
      count_digits(from + c * kChunk, length(c), digits, pass, counts.get() + c * buckets);
    });
    uint32_t start = 0;
    for (int64_t d = 0; d < buckets; ++d) {
      for (int64_t c = 0; c < chunks; ++c) start += std::exchange(counts[c * buckets + d], start);
    }
    executor.run(chunks, [&](int64_t c) {
      deal(from + c * kChunk, length(c), digits, pass, counts.get() + c * buckets, to);
    });
    std::swap(from, to);
  }
  job.sorted = from;
}

}  // namespace

void sort_pairs(SortJob* jobs, int64_t num_jobs, const Executor& executor) {
  const bool alone = executor.threads() == 1;
  executor.run(num_jobs, [&](int64_t j) {
    if (alone || jobs[j].count < kLong) sort_alone(jobs[j]);
  });
  for (int64_t j = 0; j < num_jobs; ++j) {
    if (!alone && jobs[j].count >= kLong) sort_together(jobs[j], executor);
  }
}

}  // namespace demb
