// Tasks on fresh std::threads, in an order that differs from call to call.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "core/executor.h"

namespace demb_test {

class ThreadExecutor final : public demb::Executor {
 public:
  explicit ThreadExecutor(int threads) : threads_(threads) {}

  int threads() const override { return threads_; }

  void run(int64_t count, demb::FunctionRef<void(int64_t)> task) const override {
    // Every other call runs the tasks backwards: a result that depends on their order shows.
    const bool backwards = calls_.fetch_add(1) % 2 == 1;
    std::atomic<int64_t> next{0};
    const auto work = [&] {
      for (int64_t i; (i = next.fetch_add(1)) < count;) task(backwards ? count - 1 - i : i);
    };
    std::vector<std::thread> helpers;
    for (int t = 1; t < threads_ && t < count; ++t) helpers.emplace_back(work);
    work();
    for (std::thread& helper : helpers) helper.join();
  }

 private:
  int threads_;
  mutable std::atomic<int64_t> calls_{0};
};

}  // namespace demb_test
