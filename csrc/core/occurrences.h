// All occurrences of a table's rows in a step, sorted by row: what sums of duplicates and updates walk along.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/executor.h"
#include "core/lookup.h"
#include "core/pages.h"
#include "core/radix_sort.h"
#include "core/types.h"

namespace demb {

// Bags and the gradient of their vectors: bag b's at grads + b * grad_stride (floats).
struct GradientSource {
  Bags bags;
  const float* grads = nullptr;
  int64_t grad_stride = 0;
};

// One table and everything of a step that names its rows: several features may share it.
struct TableGradient {
  int64_t num_rows = 0;
  int32_t dim = 0;
  const GradientSource* sources = nullptr;
  int64_t num_sources = 0;

  int64_t num_ids() const {
    int64_t total = 0;
    for (int64_t s = 0; s < num_sources; ++s) total += sources[s].bags.num_ids;
    return total;
  }
};

// A table's occurrences by row, each row's in the order in which they stand in the step. Ids that the policy leaves
// out are not among them.
class Occurrences {
 public:
  const Pair* begin() const { return pairs_; }
  int64_t count() const { return count_; }

  // The gradient that an occurrence adds to its row is factor(item) * gradient(item)[0 … dim).
  const float* gradient(uint32_t item) const { return rows_ != nullptr ? rows_[item] : base_ + item * stride_; }
  float factor(uint32_t item) const { return factors_ != nullptr ? factors_[item] : factor_; }
  bool has_factor() const { return factors_ != nullptr || factor_ != 1.0f; }

  // The gradients as one stretch of memory, in bytes; 0 where they are not.
  int64_t gradient_bytes() const { return rows_ != nullptr ? 0 : num_items_ * stride_ * 4; }
  const char* gradient_begin() const { return reinterpret_cast<const char*>(base_); }

  // The first pair at or behind `at` that begins a row.
  int64_t row_start(int64_t at) const {
    if (at >= count_) return count_;
    if (at == 0 || pairs_[at].key != pairs_[at - 1].key) return at;
    // A row named by half the batch spans many tasks: none of them may walk along it.
    const auto behind = [](uint32_t key, const Pair& p) { return key < p.key; };
    return std::upper_bound(pairs_ + at, pairs_ + count_, pairs_[at].key, behind) - pairs_;
  }

 private:
  friend class OccurrenceSorter;
  const Pair* pairs_ = nullptr;
  int64_t count_ = 0;
  const float* const* rows_ = nullptr;  // by item; null: base_ + item * stride_
  const float* base_ = nullptr;
  int64_t stride_ = 0, num_items_ = 0;
  const float* factors_ = nullptr;  // by item; null: factor_
  float factor_ = 1.0f;
};

// Finds and sorts the occurrences of several tables at once; owns what they point to.
class OccurrenceSorter {
 public:
  // Tables of 2^32 - 1 rows and more, or as many ids a table and step, are not supported.
  static bool supports(const TableGradient& table);
  // All tables must be supported.
  void sort(const TableGradient* tables, int64_t num_tables, InvalidIds policy, const Executor& executor);
  const Occurrences& of(int64_t table) const { return occurrences_[table]; }

 private:
  std::vector<Occurrences> occurrences_;
  std::vector<Scratch<Pair>> pairs_;
  std::vector<Scratch<const float*>> rows_;
  std::vector<Scratch<float>> factors_;
};

}  // namespace demb
