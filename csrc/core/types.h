// What the kernels are given: tables, slots, bags. Pointers and sizes; nothing is owned.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace demb {

// How a table's elements are kept. Arithmetic is float32 whatever they are.
enum class DType : int32_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

constexpr int64_t bytes_of(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

enum class Combiner : int32_t { kSum = 0, kMean = 1, kSqrtN = 2 };

// What becomes of an id outside [0, num_rows). kRaise counts it and leaves it out; the caller raises.
enum class InvalidIds : int32_t { kRaise = 0, kZero = 1, kClip = 2 };

// Rows at data + row * stride (bytes): a table alone, or with its slots between the rows.
struct Table {
  char* data = nullptr;
  int64_t stride = 0;
  int64_t num_rows = 0;
  int32_t dim = 0;
  DType dtype = DType::kFloat32;
};

// float32 optimizer state beside each row of a table: `width` values at data + row * stride (bytes).
struct Slot {
  char* data = nullptr;
  int64_t stride = 0;
  int32_t width = 0;
};

// The ids of one feature, or of one piece of one. Bag b holds ids [splits[b], splits[b + 1]), or with splits null
// [b * hotness, (b + 1) * hotness). An input without combiner is bags of hotness 1 under kSum.
struct Bags {
  const void* ids = nullptr;
  bool ids_are_64 = true;
  int64_t num_ids = 0;
  int64_t num_bags = 0;
  int64_t hotness = 1;
  const int64_t* splits = nullptr;
  const float* weights = nullptr;
  Combiner combiner = Combiner::kSum;

  int64_t begin(int64_t bag) const { return splits == nullptr ? bag * hotness : splits[bag]; }
  // About how many ids a bag has, and how many bags have about `ids` ids together: at least 1 each.
  int64_t ids_a_bag() const { return std::max<int64_t>(1, num_ids / std::max<int64_t>(1, num_bags)); }
  int64_t bags_of(int64_t ids) const { return std::max<int64_t>(1, ids / ids_a_bag()); }
  int64_t id(int64_t i) const {
    return ids_are_64 ? static_cast<const int64_t*>(ids)[i] : static_cast<const int32_t*>(ids)[i];
  }
};

// Invalid ids of one feature: how many, and the first one's position among the feature's ids.
struct InvalidReport {
  std::atomic<int64_t> count{0};
  std::atomic<int64_t> first{INT64_MAX};

  void add(int64_t position) {
    count.fetch_add(1, std::memory_order_relaxed);
    int64_t seen = first.load(std::memory_order_relaxed);
    while (position < seen && !first.compare_exchange_weak(seen, position, std::memory_order_relaxed)) {
    }
  }
};

// Whether splits describe num_bags bags over exactly num_ids ids: start at 0, never fall, end at num_ids.
inline bool splits_are_valid(const int64_t* splits, int64_t num_bags, int64_t num_ids) {
  if (splits[0] != 0 || splits[num_bags] != num_ids) return false;
  for (int64_t b = 0; b < num_bags; ++b) {
    if (splits[b + 1] < splits[b]) return false;
  }
  return true;
}

}  // namespace demb
