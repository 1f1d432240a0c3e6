// The update of the commonest tables, straight through: float32 rows of 16, 32, 64 or 128 under SGD, Adagrad, row-wise
// Adagrad or Adam, nothing clipped and nothing decayed. Same bits as the general way in update.cc.
#pragma once

#include <cstdint>

#include "core/update.h"

namespace demb {

// Updates the rows that begin among occurrences [first, last).
using PlainUpdate = void (*)(const Occurrences& occurrences, int64_t first, int64_t last, const UpdateTarget& target,
                             const RuleStep& rule);

// The one for this table and rule; null: there is none.
PlainUpdate plain_update(const UpdateTarget& target, const RuleStep& rule);

}  // namespace demb
