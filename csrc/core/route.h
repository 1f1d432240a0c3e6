// Unique and route: each row of a table that a rank's samples name, once, in the order of the shards that hold them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/executor.h"
#include "core/radix_sort.h"
#include "core/types.h"

namespace demb {

// How the rows of a table lie on its shards: in runs that end before ends[s], or dealt in turn to `count` shards.
struct RowShards {
  int64_t count = 1;
  bool cyclic = false;
  const int64_t* ends = nullptr;  // [count], rising, the last is num_rows; unused when cyclic
};

struct RouteJob {
  const Bags* features = nullptr;  // only their ids are read
  int64_t num_features = 0;
  int64_t num_rows = 0;
  RowShards shards;
  InvalidReport* const* invalid = nullptr;  // by feature; null: not counted

  int64_t num_ids() const {
    int64_t total = 0;
    for (int64_t f = 0; f < num_features; ++f) total += features[f].num_ids;
    return total;
  }
};

// rows: the different rows as their shards count them, by shard, rising: room for num_ids(). shard_counts [count]: how
// many are each shard's. inverse [num_ids()]: where each id's row is among `rows`; -1 where the policy leaves it out.
struct RouteResult {
  int64_t* rows = nullptr;
  int64_t* shard_counts = nullptr;
  int64_t* inverse = nullptr;
};

// Routes several tables at once. false, and nothing is done: a table has 2^32 - 1 rows, or a step as many ids, or more.
bool route(const RouteJob* jobs, RouteResult* results, int64_t num_jobs, InvalidIds policy, const Executor& executor);

}  // namespace demb
