// How core runs tasks side by side without knowing whose threads they are.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

namespace demb {

// A reference to a callable, without ownership and without allocation. The callable must outlive the call.
template <typename Signature>
class FunctionRef;

template <typename R, typename... Args>
class FunctionRef<R(Args...)> {
 public:
  template <typename F, typename = std::enable_if_t<!std::is_same_v<std::decay_t<F>, FunctionRef>>>
  FunctionRef(F&& f)  // NOLINT: implicit on purpose, a lambda is passed as it stands
      : object_(const_cast<void*>(static_cast<const void*>(&f))), call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(std::forward<Args>(args)...);
        }) {}

  R operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

// Runs independent tasks; which thread takes which task is its own affair.
class Executor {
 public:
  virtual ~Executor() = default;
  // Threads that may run tasks at a time, at least 1.
  virtual int threads() const = 0;
  // Calls task(0) … task(count - 1), each once, in any order; returns when all have returned.
  virtual void run(int64_t count, FunctionRef<void(int64_t)> task) const = 0;
};

// All tasks on the calling thread, in order.
class SerialExecutor final : public Executor {
 public:
  int threads() const override { return 1; }
  void run(int64_t count, FunctionRef<void(int64_t)> task) const override {
    for (int64_t i = 0; i < count; ++i) task(i);
  }
};

}  // namespace demb
