// Rows that two batches in succession ask: found by the stamps of their shard, told to those who asked as bits, and their
// vectors taken out of all and put back among them.
#pragma once

#include <cstdint>

#include "core/executor.h"

namespace demb {

// ---- where the rows are ----

// Rows asked of a shard as they come off the wire: by source, then lane. counts [sources, lanes]. A mark is a bool a row,
// in the same order.
struct WireRows {
  const int64_t* rows = nullptr;
  const int64_t* counts = nullptr;
  int64_t sources = 0, lanes = 0;
};

// By row of a lane's block the last batch that asked for it. Batches are numbers modulo 2^32.
struct Stamps {
  int32_t* data = nullptr;
  int64_t num_rows = 0;
};

// The first row that its lane's block does not have: its position, lane too. -1: there is none.
int64_t first_outside(const Stamps* stamps, const WireRows& asked, int64_t* lane);

// forward: which of `now`'s rows were asked in the batch before. Then all of them are stamped with `batch`. backward:
// which of `before`'s, the rows of the batch before, have been. No row may be outside, no two lanes may share stamps.
void announce(const Stamps* stamps, int64_t batch, const WireRows& now, bool* forward, const WireRows& before,
              bool* backward, const Executor& executor);

int64_t count_marks(const bool* marks, int64_t count);

// The rows that are not marked, and those that are, each in the order in which they were, and their counts.
void split_rows(const WireRows& asked, const bool* marks, int64_t* unmarked, int64_t* unmarked_counts, int64_t* marked,
                int64_t* marked_counts);

// ---- marks as bits ----

// For every rank its marks of both kinds: so many of each.
struct MarkSizes {
  const int64_t* forward = nullptr;
  const int64_t* backward = nullptr;
  int64_t ranks = 0;

  // Of a rank: each kind fills whole bytes.
  int64_t bytes(int64_t rank) const { return (forward[rank] + 7) / 8 + (backward[rank] + 7) / 8; }
};

// Rank by rank, forward before backward, the first mark in a byte's lowest bit; bits that are left over are 0.
void pack_marks(const MarkSizes& sizes, const bool* forward, const bool* backward, uint8_t* packed);
void unpack_marks(const MarkSizes& sizes, const uint8_t* packed, bool* forward, bool* backward);

// ---- their vectors ----

// Vectors by lane, lane l having rows[l] of widths[l] floats; the part of them whose marks are `wanted`, in their order.
struct MarkedLanes {
  const bool* marks = nullptr;
  bool wanted = true;
  const int64_t* rows = nullptr;
  const int64_t* widths = nullptr;
  int64_t lanes = 0;
};

// Floats of each lane's part.
void part_floats(const MarkedLanes& lanes, int64_t* floats);

void compact(const MarkedLanes& lanes, const float* whole, float* part, const Executor& executor);
// Writes the part's rows only.
void spread(const MarkedLanes& lanes, const float* part, float* whole, const Executor& executor);

}  // namespace demb
