// Row updates: each row that occurs is changed once, in place, by its whole gradient.
#pragma once

#include <cstdint>

#include "core/occurrences.h"
#include "core/rules.h"

namespace demb {

// A table and its slots, in the order of the rule.
struct UpdateTarget {
  Table table;
  Slot slots[kMaxSlots];
  int num_slots = 0;
};

// Whether the rule can run on these slots: their number and widths. Else the caller has mixed something up.
bool slots_fit(const RuleStep& rule, const UpdateTarget& target);

// One table's update from its sorted occurrences.
struct UpdateJob {
  const Occurrences* occurrences = nullptr;
  UpdateTarget target;
  RuleStep rule;
};

// Updates the rows that begin among occurrences [first, last).
using PlainUpdate = void (*)(const Occurrences& occurrences, int64_t first, int64_t last, const UpdateTarget& target,
                             const RuleStep& rule);

// One job in stretches, for those who do something else with the rows between them.
class UpdateWalk {
 public:
  explicit UpdateWalk(const UpdateJob& job);
  const Occurrences& occurrences() const { return *job_.occurrences; }

  // Updates the rows that begin among occurrences [first, last). Stretches of one job may run at the same time.
  void run(int64_t first, int64_t last) const;

  // A walk reads gradients in the order of the rows, at random. Gradients that fit the outer caches are brought there
  // just before, in their own order, which memory serves several times as fast: in so many blocks, side by side.
  int64_t near_blocks() const;
  void bring_near(int64_t block) const;

 private:
  UpdateJob job_;
  PlainUpdate plain_;
};

// Sums the duplicates and updates: the sums are never written down. No table twice.
void update_rows(const UpdateJob* jobs, int64_t num_jobs, const Executor& executor);

// Updates `count` rows by sums [count, dim] that are there already; no row twice, all below num_rows. statistics: for
// row-wise Adagrad the mean square of each whole row's gradient, where the table has not all its columns; else null.
void update_rows(const int64_t* rows, int64_t count, const float* sums, const float* statistics,
                 const UpdateTarget& target, const RuleStep& rule, const Executor& executor);

}  // namespace demb
