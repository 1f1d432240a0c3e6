#include <cstring>
#include <set>
#include <vector>

#include "core/pages.h"
#include "tests/check.h"
#include "tests/thread_executor.h"

using demb::BufferPool;
using demb::Scratch;

TEST(mapped_pages_are_zero_aligned_and_can_be_dropped) {
  for (size_t bytes : {size_t{1}, size_t{4096}, (size_t{4} << 20) + 5}) {
    for (bool faulted : {false, true}) {
      char* data = static_cast<char*>(demb::map_pages(bytes, faulted));
      CHECK(data != nullptr && reinterpret_cast<uintptr_t>(data) % (2 << 20) == 0);
      for (size_t i = 0; i < bytes; i += 511) CHECK(data[i] == 0);
      std::memset(data, 7, bytes);
      demb::drop_pages(data + 1, bytes - 1);  // the first huge page is not wholly inside
      CHECK(data[0] == 7 && data[bytes - 1] == 7);
      if (bytes > (size_t{4} << 20)) CHECK(data[size_t{2} << 20] == 0 && data[(size_t{4} << 20) - 1] == 0);
      demb::unmap_pages(data, bytes);
    }
  }
}

TEST(pool_gives_the_same_buffer_again) {
  BufferPool pool;
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, size_t{3} << 20, size_t{50} << 20}) {
    size_t capacity = 0, again = 0;
    void* data = pool.take(bytes, &capacity);
    CHECK(data != nullptr && capacity >= bytes && capacity <= bytes + bytes / 4 + (size_t{2} << 20));
    CHECK(reinterpret_cast<uintptr_t>(data) % 64 == 0);
    std::memset(data, 1, capacity);
    pool.give(data, capacity);
    CHECK(pool.take(bytes, &again) == data && again == capacity);
    pool.give(data, capacity);
    CHECK(pool.in_use() == 0);
  }
  pool.clear();
  CHECK(pool.cached() == 0);
}

TEST(pool_never_hands_out_a_buffer_twice) {
  BufferPool pool;
  std::set<void*> out;
  std::vector<std::pair<void*, size_t>> held;
  uint32_t random = 1;
  size_t most = 0;
  for (int i = 0; i < 5000; ++i) {
    random = random * 1664525u + 1013904223u;
    if (held.size() < 20 && (random >> 16) % 2 == 0) {
      size_t capacity = 0;
      void* data = pool.take((random >> 8) % 100000, &capacity);
      CHECK(out.insert(data).second);
      static_cast<char*>(data)[capacity - 1] = 1;
      held.emplace_back(data, capacity);
    } else if (!held.empty()) {
      const size_t at = (random >> 16) % held.size();
      pool.give(held[at].first, held[at].second);
      out.erase(held[at].first);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
    }
    most = std::max(most, pool.in_use());
    CHECK(pool.in_use() + pool.cached() <= most, "holds more than ever was in use at once");
  }
  for (auto& [data, capacity] : held) pool.give(data, capacity);
  pool.clear();
}

TEST(pool_forgets_an_old_peak) {
  BufferPool pool;
  size_t large = 0, small = 0;
  void* data = pool.take(size_t{64} << 20, &large);
  pool.give(data, large);
  for (int i = 0; i < 3000; ++i) pool.give(pool.take(1000, &small), small);
  CHECK(pool.cached() <= 2 * small, "cached %zu", pool.cached());
  pool.clear();
}

TEST(pool_serves_many_threads) {
  const demb_test::ThreadExecutor executor(4);
  executor.run(64, [](int64_t task) {
    for (int64_t i = 1; i < 60; ++i) {
      Scratch<int64_t> mine(i * 37 + task);
      for (int64_t k = 0; k < i * 37 + task; ++k) mine[k] = task;
      Scratch<int64_t> moved(std::move(mine));
      CHECK(mine.get() == nullptr && moved.get() != nullptr);
      for (int64_t k = 0; k < i * 37 + task; ++k) CHECK(moved[k] == task);
    }
  });
  CHECK(BufferPool::shared().in_use() == 0);
  BufferPool::shared().clear();
}
