// The update of the commonest tables, straight through: float32 rows of 16, 32, 64 or 128 under SGD, Adagrad, row-wise
// Adagrad or Adam, nothing clipped and nothing decayed. Same bits as the general way in update.cc.
#pragma once

#include <cstdint>

#include "core/update.h"

namespace demb {

// The one for this table and rule; null: there is none.
PlainUpdate plain_update(const UpdateTarget& target, const RuleStep& rule);

}  // namespace demb
