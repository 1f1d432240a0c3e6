// Memory whose pages are not given back after every step: tables in huge pages, and a pool for outputs and scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace demb {

// Zeroed memory in huge pages where the system allows them (madvise), aligned to 2 MiB. nullptr: there is none.
// faulted: touch every page now, so that no step pays for it.
void* map_pages(size_t bytes, bool faulted);
void unmap_pages(void* data, size_t bytes);
// Gives the pages that lie wholly inside back to the system; they read as zeros afterwards.
void drop_pages(void* data, size_t bytes);

// Buffers that are used again instead of being unmapped. The first touch of a fresh page costs more than the lookup
// that writes it (glibc unmaps every block above 32 MiB when it is freed), so what a step frees, the next step gets.
// Holds no more than was in use at once lately. Thread-safe.
class BufferPool {
 public:
  static BufferPool& shared();

  // A buffer of at least `bytes`, aligned to 64; its contents are arbitrary. nullptr: out of memory.
  void* take(size_t bytes, size_t* capacity);
  void give(void* data, size_t capacity);

  size_t in_use() const;
  size_t cached() const;
  // Frees all cached buffers.
  void clear();

 private:
  struct Free {
    size_t capacity;
    void* data;
  };
  void trim_locked(size_t limit);

  mutable std::mutex mutex_;
  std::vector<Free> free_;
  size_t in_use_ = 0;
  size_t cached_ = 0;
  size_t peak_ = 0;         // most in use since the last window began, or in the window before it
  size_t window_peak_ = 0;  // most in use in this window
  int64_t takes_ = 0;
};

// Says on stderr how many bytes were wanted, and ends the process: a kernel cannot go on without its scratch.
[[noreturn]] void out_of_memory(size_t bytes);

// A buffer of the pool for the length of a scope.
template <typename T>
class Scratch {
 public:
  explicit Scratch(int64_t count) {
    data_ = static_cast<T*>(BufferPool::shared().take(static_cast<size_t>(count) * sizeof(T), &capacity_));
    if (data_ == nullptr) out_of_memory(static_cast<size_t>(count) * sizeof(T));
  }
  ~Scratch() {
    if (data_ != nullptr) BufferPool::shared().give(data_, capacity_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  Scratch(Scratch&& other) noexcept : data_(other.data_), capacity_(other.capacity_) { other.data_ = nullptr; }

  T* get() const { return data_; }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace demb
