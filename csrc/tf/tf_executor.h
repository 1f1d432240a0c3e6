// Core's tasks on TensorFlow's intra-op threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "../core/executor.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/lib/core/threadpool.h"

namespace demb {

// The calling thread takes tasks too, and waits only for tasks that another thread has begun: a pool all of whose
// threads are busy, or that belongs to the caller itself, delays nothing and cannot deadlock.
class TfExecutor final : public Executor {
 public:
  explicit TfExecutor(tensorflow::OpKernelContext* ctx)
      : pool_(ctx->device()->tensorflow_cpu_worker_threads()->workers),
        threads_(std::max(1, ctx->device()->tensorflow_cpu_worker_threads()->num_threads)) {}

  int threads() const override { return threads_; }

  void run(int64_t count, FunctionRef<void(int64_t)> task) const override {
    const int64_t helpers = std::min<int64_t>(threads_, count) - 1;
    if (helpers < 1 || pool_ == nullptr) {
      for (int64_t i = 0; i < count; ++i) task(i);
      return;
    }
    auto shared = std::make_shared<Shared>(count, task);
    for (int64_t i = 0; i < helpers; ++i) pool_->Schedule([shared] { shared->work(); });
    shared->work();
    shared->wait();
  }

 private:
  // Outlives `run`: a helper that starts late finds no task left and must still be able to look.
  struct Shared {
    Shared(int64_t count, FunctionRef<void(int64_t)> task) : count(count), task(task) {}

    void work() {
      int64_t finished = 0;
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count; ++finished) task(i);
      if (finished == 0) return;
      if (done.fetch_add(finished, std::memory_order_acq_rel) + finished == count) {
        std::lock_guard<std::mutex> lock(mutex);
        all_done.notify_all();
      }
    }

    void wait() {
      std::unique_lock<std::mutex> lock(mutex);
      all_done.wait(lock, [this] { return done.load(std::memory_order_acquire) == count; });
    }

    const int64_t count;
    const FunctionRef<void(int64_t)> task;
    std::atomic<int64_t> next{0};
    std::atomic<int64_t> done{0};
    std::mutex mutex;
    std::condition_variable all_done;
  };

  tensorflow::thread::ThreadPool* pool_;
  int threads_;
};

}  // namespace demb
