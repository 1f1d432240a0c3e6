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

// Sums the duplicates and updates: the sums are never written down. No table twice.
void update_rows(const UpdateJob* jobs, int64_t num_jobs, const Executor& executor);

// Updates `count` rows by sums [count, dim] that are there already; no row twice, all below num_rows. statistics: for
// row-wise Adagrad the mean square of each whole row's gradient, where the table has not all its columns; else null.
void update_rows(const int64_t* rows, int64_t count, const float* sums, const float* statistics,
                 const UpdateTarget& target, const RuleStep& rule, const Executor& executor);

}  // namespace demb
