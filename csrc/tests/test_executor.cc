#include <atomic>
#include <vector>

#include "tests/check.h"
#include "tests/thread_executor.h"

TEST(executors_run_every_task_once) {
  const demb::SerialExecutor serial;
  for (int threads : {0, 1, 2, 4}) {
    const demb_test::ThreadExecutor threaded(threads);
    const demb::Executor& executor = threads == 0 ? static_cast<const demb::Executor&>(serial) : threaded;
    for (int64_t count : {0, 1, 3, 100}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(count));
      executor.run(count, [&](int64_t i) { runs[static_cast<size_t>(i)].fetch_add(1); });
      for (const auto& n : runs) CHECK(n.load() == 1, "threads=%d count=%ld", threads, static_cast<long>(count));
    }
  }
}
