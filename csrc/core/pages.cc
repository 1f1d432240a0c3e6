#include "core/pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace demb {
namespace {

constexpr size_t kHuge = size_t{2} << 20;
constexpr size_t kMapped = size_t{1} << 20;  // from here on buffers are mapped, below they are malloc's
constexpr int64_t kWindow = 1024;            // takes after which a former peak is forgotten

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Few sizes, so that a batch that is a little larger finds a buffer too: eight a power of two.
size_t capacity_for(size_t bytes) {
  if (bytes <= 64) return 64;
  size_t power = 64;
  while (power * 2 < bytes) power *= 2;
  const size_t step = std::max<size_t>(64, power / 8);
  const size_t capacity = power + round_up(bytes - power, step);
  return capacity >= kMapped ? round_up(capacity, kHuge) : capacity;
}

void* allocate(size_t capacity) {
  return capacity >= kMapped ? map_pages(capacity, false) : std::aligned_alloc(64, round_up(capacity, 64));
}

void release(void* data, size_t capacity) {
  if (capacity >= kMapped) {
    unmap_pages(data, capacity);
  } else {
    std::free(data);
  }
}

}  // namespace

void* map_pages(size_t bytes, bool faulted) {
  const size_t size = round_up(std::max<size_t>(bytes, 1), kHuge);
  // One huge page more than needed: what lies before and behind the aligned part goes back at once.
  void* raw = mmap(nullptr, size + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  char* begin = static_cast<char*>(raw);
  char* data = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(begin), kHuge));
  if (data > begin) munmap(begin, static_cast<size_t>(data - begin));
  const size_t behind = static_cast<size_t>(begin + size + kHuge - (data + size));
  if (behind > 0) munmap(data + size, behind);
  madvise(data, size, MADV_HUGEPAGE);  // refused where the system has none: 4 KiB pages work as well, slower
  if (faulted) {
    for (size_t at = 0; at < size; at += 4096) static_cast<volatile char*>(data)[at] = 0;
  }
  return data;
}

void unmap_pages(void* data, size_t bytes) { munmap(data, round_up(std::max<size_t>(bytes, 1), kHuge)); }

void drop_pages(void* data, size_t bytes) {
  const uintptr_t begin = round_up(reinterpret_cast<uintptr_t>(data), kHuge);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / kHuge * kHuge;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void out_of_memory(size_t bytes) {
  std::fprintf(stderr, "distributed_embeddings: out of memory: %zu bytes of scratch for a step were not to be had. "
               "Make the batch smaller, or cut the tables over more workers.\n", bytes);
  std::abort();
}

BufferPool& BufferPool::shared() {
  // Never destroyed: TensorFlow frees tensors after the static objects of this library are gone.
  static BufferPool* pool = new BufferPool;
  return *pool;
}

void* BufferPool::take(size_t bytes, size_t* capacity) {
  *capacity = capacity_for(bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  if (++takes_ % kWindow == 0) {
    peak_ = window_peak_;
    window_peak_ = in_use_;
    trim_locked(std::max(peak_, in_use_) - in_use_);
  }
  // The last one given back is the likeliest to be in the cache.
  for (size_t i = free_.size(); i-- > 0;) {
    if (free_[i].capacity != *capacity) continue;
    void* data = free_[i].data;
    free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
    cached_ -= *capacity;
    in_use_ += *capacity;
    window_peak_ = std::max(window_peak_, in_use_);
    peak_ = std::max(peak_, in_use_);
    return data;
  }
  void* data = allocate(*capacity);
  if (data == nullptr) {
    trim_locked(0);
    data = allocate(*capacity);
    if (data == nullptr) return nullptr;
  }
  in_use_ += *capacity;
  window_peak_ = std::max(window_peak_, in_use_);
  peak_ = std::max(peak_, in_use_);
  // Sizes have changed when the cache holds much and none of it fits.
  trim_locked(peak_ - in_use_);
  return data;
}

void BufferPool::give(void* data, size_t capacity) {
  std::lock_guard<std::mutex> lock(mutex_);
  in_use_ -= capacity;
  free_.push_back({capacity, data});
  cached_ += capacity;
  trim_locked(peak_ - in_use_);
}

void BufferPool::trim_locked(size_t limit) {
  // The oldest first.
  size_t gone = 0;
  while (gone < free_.size() && cached_ > limit) {
    release(free_[gone].data, free_[gone].capacity);
    cached_ -= free_[gone].capacity;
    ++gone;
  }
  free_.erase(free_.begin(), free_.begin() + static_cast<std::ptrdiff_t>(gone));
}

size_t BufferPool::in_use() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return in_use_;
}

size_t BufferPool::cached() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return cached_;
}

void BufferPool::clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  trim_locked(0);
}

}  // namespace demb
