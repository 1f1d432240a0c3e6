#include <algorithm>
#include <vector>

#include "core/pages.h"
#include "core/radix_sort.h"
#include "tests/check.h"
#include "tests/naive.h"
#include "tests/thread_executor.h"

using namespace demb_test;  // NOLINT: this is a test
using demb::Pair;

namespace {

// Sorts copies of the inputs on that many threads, each with keys below 2^bits.
std::vector<std::vector<Pair>> sorted(std::vector<std::vector<Pair>> inputs, const std::vector<int>& bits, int threads) {
  std::vector<std::vector<Pair>> spares;
  for (const auto& input : inputs) spares.emplace_back(input.size());
  std::vector<demb::SortJob> jobs;
  for (size_t j = 0; j < inputs.size(); ++j) {
    jobs.push_back({inputs[j].data(), spares[j].data(), static_cast<int64_t>(inputs[j].size()), bits[j], nullptr});
  }
  const demb::SerialExecutor serial;
  const ThreadExecutor threaded(threads);
  demb::sort_pairs(jobs.data(), static_cast<int64_t>(jobs.size()),
                   threads == 0 ? static_cast<const demb::Executor&>(serial) : threaded);
  std::vector<std::vector<Pair>> outputs;
  for (const demb::SortJob& job : jobs) outputs.emplace_back(job.sorted, job.sorted + job.count);
  return outputs;
}

std::vector<Pair> random_pairs(Random& random, int64_t count, int bits) {
  std::vector<Pair> pairs;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t key = static_cast<uint32_t>(random() >> (64 - bits));
    if (i % 4 == 0) key &= 7;  // many equal keys: stability shows
    if (i % 97 == 0) key = static_cast<uint32_t>((uint64_t{1} << bits) - 1);
    pairs.push_back({key, static_cast<uint32_t>(i)});
  }
  return pairs;
}

}  // namespace

TEST(sort_equals_std_stable_sort) {
  Random random(5);
  std::vector<std::vector<Pair>> inputs;
  std::vector<int> bits;
  for (int b = 1; b <= 32; ++b) {
    for (int64_t count : {0, 1, 2, 1000}) {
      inputs.push_back(random_pairs(random, count, b));
      bits.push_back(b);
    }
  }
  // Long enough to be sorted by several threads together, and not a multiple of a chunk.
  for (int b : {3, 11, 12, 20, 32}) {
    inputs.push_back(random_pairs(random, (int64_t{1} << 18) + 12345, b));
    bits.push_back(b);
  }
  auto want = inputs;
  for (auto& pairs : want) {
    std::stable_sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) { return a.key < b.key; });
  }
  for (int threads : {0, 1, 2, 4}) {
    const auto got = sorted(inputs, bits, threads);
    for (size_t j = 0; j < got.size(); ++j) CHECK(same_bits(got[j], want[j]), "job %zu threads %d", j, threads);
  }
  demb::BufferPool::shared().clear();
}

TEST(bits_of_is_the_position_of_the_highest_bit) {
  CHECK(demb::bits_of(0) == 1 && demb::bits_of(1) == 1 && demb::bits_of(2) == 2 && demb::bits_of(255) == 8);
  CHECK(demb::bits_of(256) == 9 && demb::bits_of(0xffffffffu) == 32 && demb::bits_of(UINT64_MAX) == 64);
}
