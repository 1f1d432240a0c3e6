#include "core/conflict.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/numbers.h"

namespace demb {
namespace {

// ---- stamps ----

constexpr int64_t kRowsPerTask = int64_t{1} << 13;
constexpr int64_t kRowsAhead = 32;

// Rows of one lane and the place of their marks.
struct Stretch {
  const Stamps* stamps;
  const int64_t* rows;
  int64_t count;
  bool* marks;
};

std::vector<std::vector<Stretch>> by_lane(const Stamps* stamps, const WireRows& asked, bool* marks) {
  std::vector<std::vector<Stretch>> lanes(static_cast<size_t>(asked.lanes));
  int64_t at = 0;
  for (int64_t piece = 0; piece < asked.sources * asked.lanes; ++piece) {
    const int64_t lane = piece % asked.lanes, end = at + asked.counts[piece];
    for (; at < end; at += std::min(kRowsPerTask, end - at)) {
      lanes[lane].push_back({&stamps[lane], asked.rows + at, std::min(kRowsPerTask, end - at), marks + at});
    }
  }
  return lanes;
}

template <bool WRITE>
void compare(const Stretch& s, int32_t batch) {
  const char* base = reinterpret_cast<const char*>(s.stamps->data);
  for (int64_t i = 0; i < std::min(kRowsAhead, s.count); ++i) prefetch_row<WRITE>(base, s.rows[i], 4, 4);
  for (int64_t i = 0; i < s.count; ++i) {
    if (i + kRowsAhead < s.count) prefetch_row<WRITE>(base, s.rows[i + kRowsAhead], 4, 4);
    s.marks[i] = s.stamps->data[s.rows[i]] == batch;
  }
}

// Several tasks may stamp one row, all of them with the same number.
void stamp(const Stretch& s, int32_t batch) {
  for (int64_t i = 0; i < s.count; ++i) __atomic_store_n(&s.stamps->data[s.rows[i]], batch, __ATOMIC_RELAXED);
}

int64_t rows_of(const std::vector<Stretch>& stretches) {
  int64_t rows = 0;
  for (const Stretch& s : stretches) rows += s.count;
  return rows;
}

// Whether no thread ends up waiting for the one that has the largest lane.
bool take_whole_lanes(const std::vector<std::vector<Stretch>>& lanes, int threads) {
  int64_t most = 0, all = 0;
  for (const auto& lane : lanes) {
    most = std::max(most, rows_of(lane));
    all += rows_of(lane);
  }
  return threads == 1 || most * threads * 2 <= all;
}

template <typename Visit>
void for_all(const std::vector<std::vector<Stretch>>& lanes, const Executor& executor, Visit visit) {
  std::vector<const Stretch*> all;
  for (const auto& lane : lanes) {
    for (const Stretch& s : lane) all.push_back(&s);
  }
  executor.run(static_cast<int64_t>(all.size()), [&](int64_t k) { visit(*all[k]); });
}

int32_t as_stamp(uint64_t batch) { return static_cast<int32_t>(static_cast<uint32_t>(batch)); }

// ---- bits ----

uint8_t* pack(const bool* marks, int64_t count, uint8_t* to) {
  for (; count > 0; count -= 8, marks += 8) {
    unsigned byte = 0;
    const int bits = static_cast<int>(std::min<int64_t>(count, 8));
    if (bits == 8) {
      for (int k = 0; k < 8; ++k) byte |= static_cast<unsigned>(marks[k]) << k;
    } else {
      for (int k = 0; k < bits; ++k) byte |= static_cast<unsigned>(marks[k]) << k;
    }
    *to++ = static_cast<uint8_t>(byte);
  }
  return to;
}

const uint8_t* unpack(const uint8_t* from, int64_t count, bool* marks) {
  for (; count >= 8; count -= 8, marks += 8, ++from) {
    for (int k = 0; k < 8; ++k) marks[k] = (*from >> k) & 1;
  }
  for (int k = 0; k < count; ++k) marks[k] = (*from >> k) & 1;
  return count > 0 ? from + 1 : from;
}

// ---- parts ----

constexpr int64_t kBytesPerTask = int64_t{1} << 18;
constexpr int64_t kRowsAtATime = 512;

// Rows of one lane, and where those of the part begin in it.
struct PartTask {
  const bool* marks;
  int64_t rows, width, whole, part;
};

int64_t count_wanted(const MarkedLanes& lanes, const bool* marks, int64_t rows) {
  const int64_t marked = count_marks(marks, rows);
  return lanes.wanted ? marked : rows - marked;
}

std::vector<PartTask> cut(const MarkedLanes& lanes) {
  std::vector<PartTask> tasks;
  const bool* marks = lanes.marks;
  int64_t whole = 0, part = 0;
  for (int64_t l = 0; l < lanes.lanes; ++l) {
    const int64_t width = lanes.widths[l];
    const int64_t step = std::max<int64_t>(1, kBytesPerTask / (4 * width));
    for (int64_t at = 0; at < lanes.rows[l]; at += step) {
      const int64_t rows = std::min(step, lanes.rows[l] - at);
      tasks.push_back({marks, rows, width, whole, part});
      part += count_wanted(lanes, marks, rows) * width;
      whole += rows * width;
      marks += rows;
    }
  }
  return tasks;
}

// WIDTH floats, or for 0 any number: a copy of a length that is known is a few instructions.
template <bool SPREAD, int WIDTH>
void move_rows(const PartTask& task, bool wanted, float* whole, float* part) {
  const size_t bytes = sizeof(float) * static_cast<size_t>(WIDTH > 0 ? WIDTH : task.width);
  const int64_t width = WIDTH > 0 ? WIDTH : task.width;
  whole += task.whole;
  part += task.part;
  for (int64_t first = 0; first < task.rows; first += kRowsAtATime) {
    // Marks are hard to guess: their rows are listed without asking, then moved without asking.
    const int64_t rows = std::min(kRowsAtATime, task.rows - first);
    uint16_t places[kRowsAtATime];
    int64_t found = 0;
    for (int64_t i = 0; i < rows; ++i) {
      places[found] = static_cast<uint16_t>(i);
      found += task.marks[first + i] == wanted;
    }
    for (int64_t k = 0; k < found; ++k, part += width) {
      float* row = whole + (first + places[k]) * width;
      SPREAD ? std::memcpy(row, part, bytes) : std::memcpy(part, row, bytes);
    }
  }
}

template <bool SPREAD>
void move(const MarkedLanes& lanes, float* whole, float* part, const Executor& executor) {
  const std::vector<PartTask> tasks = cut(lanes);
  executor.run(static_cast<int64_t>(tasks.size()), [&](int64_t t) {
    const PartTask& task = tasks[t];
    switch (task.width) {
      case 8: return move_rows<SPREAD, 8>(task, lanes.wanted, whole, part);
      case 16: return move_rows<SPREAD, 16>(task, lanes.wanted, whole, part);
      case 32: return move_rows<SPREAD, 32>(task, lanes.wanted, whole, part);
      case 64: return move_rows<SPREAD, 64>(task, lanes.wanted, whole, part);
      default: return move_rows<SPREAD, 0>(task, lanes.wanted, whole, part);
    }
  });
}

}  // namespace

int64_t first_outside(const Stamps* stamps, const WireRows& asked, int64_t* lane) {
  int64_t at = 0;
  for (int64_t piece = 0; piece < asked.sources * asked.lanes; ++piece) {
    *lane = piece % asked.lanes;
    const uint64_t rows = static_cast<uint64_t>(stamps[*lane].num_rows);
    const int64_t* own = asked.rows + at;
    const auto outside = [&](int64_t row) { return static_cast<uint64_t>(row) >= rows; };
    uint64_t any = 0;
    for (int64_t i = 0; i < asked.counts[piece]; ++i) any |= outside(own[i]);
    if (any != 0) return at + (std::find_if(own, own + asked.counts[piece], outside) - own);
    at += asked.counts[piece];
  }
  return -1;
}

void announce(const Stamps* stamps, int64_t batch, const WireRows& now, bool* forward, const WireRows& before,
              bool* backward, const Executor& executor) {
  const int32_t current = as_stamp(static_cast<uint64_t>(batch)), last = as_stamp(static_cast<uint64_t>(batch) - 1);
  const auto asked = by_lane(stamps, now, forward), previous = by_lane(stamps, before, backward);
  if (take_whole_lanes(asked, executor.threads()) && take_whole_lanes(previous, executor.threads())) {
    // What is compared is still in the cache when it is stamped.
    executor.run(now.lanes, [&](int64_t l) {
      for (const Stretch& s : asked[l]) compare<true>(s, last);
      for (const Stretch& s : asked[l]) stamp(s, current);
      for (const Stretch& s : previous[l]) compare<false>(s, current);
    });
    return;
  }
  for_all(asked, executor, [&](const Stretch& s) { compare<true>(s, last); });
  for_all(asked, executor, [&](const Stretch& s) { stamp(s, current); });
  for_all(previous, executor, [&](const Stretch& s) { compare<false>(s, current); });
}

int64_t count_marks(const bool* marks, int64_t count) {
  int64_t total = 0;
  for (int64_t i = 0; i < count; ++i) total += marks[i];
  return total;
}

void split_rows(const WireRows& asked, const bool* marks, int64_t* unmarked, int64_t* unmarked_counts, int64_t* marked,
                int64_t* marked_counts) {
  const int64_t* rows = asked.rows;
  for (int64_t piece = 0; piece < asked.sources * asked.lanes; ++piece) {
    const int64_t count = asked.counts[piece];
    marked_counts[piece] = count_marks(marks, count);
    unmarked_counts[piece] = count - marked_counts[piece];
    const int64_t *marked_end = marked + marked_counts[piece], *unmarked_end = unmarked + unmarked_counts[piece];
    int64_t i = 0;
    // Each row is written to both, without asking, while both have room; then the rest are of one kind.
    for (; marked < marked_end && unmarked < unmarked_end; ++i) {
      *marked = *unmarked = rows[i];
      marked += marks[i];
      unmarked += !marks[i];
    }
    int64_t*& rest = marked < marked_end ? marked : unmarked;
    rest = std::copy(rows + i, rows + count, rest);
    rows += count;
    marks += count;
  }
}

void pack_marks(const MarkSizes& sizes, const bool* forward, const bool* backward, uint8_t* packed) {
  for (int64_t r = 0; r < sizes.ranks; ++r) {
    packed = pack(forward, sizes.forward[r], packed);
    packed = pack(backward, sizes.backward[r], packed);
    forward += sizes.forward[r];
    backward += sizes.backward[r];
  }
}

void unpack_marks(const MarkSizes& sizes, const uint8_t* packed, bool* forward, bool* backward) {
  for (int64_t r = 0; r < sizes.ranks; ++r) {
    packed = unpack(packed, sizes.forward[r], forward);
    packed = unpack(packed, sizes.backward[r], backward);
    forward += sizes.forward[r];
    backward += sizes.backward[r];
  }
}

void part_floats(const MarkedLanes& lanes, int64_t* floats) {
  const bool* marks = lanes.marks;
  for (int64_t l = 0; l < lanes.lanes; ++l) {
    floats[l] = count_wanted(lanes, marks, lanes.rows[l]) * lanes.widths[l];
    marks += lanes.rows[l];
  }
}

void compact(const MarkedLanes& lanes, const float* whole, float* part, const Executor& executor) {
  move<false>(lanes, const_cast<float*>(whole), part, executor);
}

void spread(const MarkedLanes& lanes, const float* part, float* whole, const Executor& executor) {
  move<true>(lanes, whole, const_cast<float*>(part), executor);
}

}  // namespace demb
