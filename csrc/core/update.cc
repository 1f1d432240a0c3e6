#include "core/update.h"

#include <algorithm>
#include <vector>

#include "core/accumulate.h"
#include "core/update_plain.h"

namespace demb {
namespace {

// ---- rounding ----

// A row's random number and a column's share of it: mixed bits (Steele, Lea, Flood 2014; Appleby's murmur finalizer).
DEMB_INLINE uint32_t row_chance(uint64_t seed, uint64_t step, uint64_t row) {
  uint64_t x = seed + 0x9e3779b97f4a7c15u * (row + 1) + 0xbf58476d1ce4e5b9u * step;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<uint32_t>((x ^ (x >> 31)) >> 32);
}

DEMB_INLINE U8 column_chances(uint32_t row, uint32_t column) {
  U8 x = U8{0, 1, 2, 3, 4, 5, 6, 7} + column;
  x = x * 0x9e3779b9u + row;
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

// To bfloat16, up with the probability that the cut bits say: right on the average.
DEMB_INLINE V8 round_by_chance(V8 v, U8 chances) {
  const U8 bits = (U8)v;
  const U8 moved = (bits + (chances & 0xffffu)) & 0xffff0000u;
  const U8 special = (U8)((bits & 0x7f800000u) == 0x7f800000u);
  return (V8)((moved & ~special) | (bits & special));
}

// ---- one row ----

template <typename T>
DEMB_INLINE V8 load_chunk(const T* p, int k, int dim, bool whole) {
  return whole ? load8(p + 8 * k) : load_tail(p + 8 * k, dim - 8 * k);
}
template <typename T>
DEMB_INLINE void store_chunk(T* p, V8 v, int k, int dim, bool whole) {
  whole ? store8(p + 8 * k, v) : store_tail(p + 8 * k, v, dim - 8 * k);
}

// The dtype is asked chunk by chunk: a branch that is always guessed right, instead of every rule compiled three times.
DEMB_INLINE V8 load_element_chunk(const char* row, DType dtype, int k, int dim, bool whole) {
  switch (dtype) {
    case DType::kBFloat16: return load_chunk(reinterpret_cast<const BFloat16*>(row), k, dim, whole);
    case DType::kFloat16: return load_chunk(reinterpret_cast<const Float16*>(row), k, dim, whole);
    default: return load_chunk(reinterpret_cast<const float*>(row), k, dim, whole);
  }
}
DEMB_INLINE void store_element_chunk(char* row, DType dtype, V8 v, int k, int dim, bool whole) {
  switch (dtype) {
    case DType::kBFloat16: return store_chunk(reinterpret_cast<BFloat16*>(row), v, k, dim, whole);
    case DType::kFloat16: return store_chunk(reinterpret_cast<Float16*>(row), v, k, dim, whole);
    default: return store_chunk(reinterpret_cast<float*>(row), v, k, dim, whole);
  }
}

DEMB_INLINE float* slot_row(const Slot& slot, int64_t row) {
  return reinterpret_cast<float*>(slot.data + row * slot.stride);
}

// g: the row's gradient in chunks of eight, zeros behind dim.
template <typename Rule, bool ROWWISE>
DEMB_INLINE void update_row(const UpdateTarget& to, const RuleStep& r, const Rule& rule, int64_t row, V8* g,
                            const float* statistic) {
  const int dim = to.table.dim, chunks = (dim + 7) / 8;
  char* w = to.table.data + row * to.table.stride;
  if (r.clip >= 0.0f) {
    for (int k = 0; k < chunks; ++k) g[k] = smaller(larger(g[k], splat(-r.clip)), splat(r.clip));
  }
  float accumulator = 0.0f;
  if (ROWWISE) {
    float* a = slot_row(to.slots[0], row);
    accumulator = *a += statistic != nullptr ? *statistic : mean_square(g, dim);
  }
  float* slots[kMaxSlots] = {};
  for (int s = 0; s < Rule::SLOTS; ++s) slots[s] = slot_row(to.slots[s], row);
  const bool by_chance = r.stochastic_rounding && to.table.dtype == DType::kBFloat16;
  const uint32_t chance =
      by_chance ? row_chance(r.seed, static_cast<uint64_t>(r.step), static_cast<uint64_t>(r.first_row + row * r.row_step))
                : 0;
  for (int k = 0; k < chunks; ++k) {
    const bool whole = 8 * k + 8 <= dim;
    V8 value = load_element_chunk(w, to.table.dtype, k, dim, whole);
    V8 state[kMaxSlots];
    for (int s = 0; s < Rule::SLOTS; ++s) state[s] = load_chunk(slots[s], k, dim, whole);
    if (r.weight_decay != 0.0f) value -= value * r.weight_decay * r.learning_rate;
    rule.update(value, g[k], state, accumulator);
    if (by_chance) {
      value = round_by_chance(value, column_chances(chance, static_cast<uint32_t>(r.first_column + 8 * k)));
    }
    store_element_chunk(w, to.table.dtype, value, k, dim, whole);
    for (int s = 0; s < Rule::SLOTS; ++s) store_chunk(slots[s], state[s], k, dim, whole);
  }
}

DEMB_INLINE void prefetch_target(const UpdateTarget& to, int64_t row, int64_t row_bytes) {
  prefetch_row<true>(to.table.data, row, to.table.stride, row_bytes);
  for (int s = 0; s < to.num_slots; ++s) {
    prefetch_row<true>(to.slots[s].data, row, to.slots[s].stride, to.slots[s].width * 4);
  }
}

// ---- what walks along the rows ----

// The rows that begin in one task's stretch of sorted occurrences.
struct SortedTask {
  const Occurrences& o;
  Accumulate accumulate;
  int64_t first, last;

  template <typename Rule, bool ROWWISE>
  DEMB_INLINE_METHOD void run(const UpdateTarget& to, const RuleStep& r, const Rule& rule, V8* sum) const {
    const int dim = to.table.dim;
    const int64_t row_bytes = dim * bytes_of(to.table.dtype), ahead = pairs_ahead(row_bytes);
    const Pair* pairs = o.begin();
    for (int64_t begin = o.row_start(first); begin < last;) {
      const int64_t end = row_end(pairs, begin, o.count());
      for (int64_t i = begin + ahead; i < std::min(end + ahead, o.count()); ++i) {
        prefetch_row<false>(reinterpret_cast<const char*>(o.gradient(pairs[i].item)), 0, 0, dim * 4);
        if (pairs[i].key != pairs[i - 1].key) prefetch_target(to, pairs[i].key, row_bytes);
      }
      accumulate(o, begin, end, dim, sum);
      update_row<Rule, ROWWISE>(to, r, rule, pairs[begin].key, sum, nullptr);
      begin = end;
    }
  }
};

// Rows whose sums are there.
struct SummedTask {
  const int64_t* rows;
  const float* sums;
  const float* statistics;
  int64_t first, last;

  template <typename Rule, bool ROWWISE>
  DEMB_INLINE_METHOD void run(const UpdateTarget& to, const RuleStep& r, const Rule& rule, V8* sum) const {
    const int dim = to.table.dim, chunks = (dim + 7) / 8;
    const int64_t row_bytes = dim * bytes_of(to.table.dtype), ahead = pairs_ahead(row_bytes);
    for (int64_t i = first; i < std::min(first + ahead, last); ++i) prefetch_target(to, rows[i], row_bytes);
    for (int64_t i = first; i < last; ++i) {
      if (i + ahead < last) prefetch_target(to, rows[i + ahead], row_bytes);
      const float* g = sums + i * dim;
      for (int k = 0; k < chunks; ++k) sum[k] = gradient_chunk<0>(g, k, dim);
      update_row<Rule, ROWWISE>(to, r, rule, rows[i], sum, statistics == nullptr ? nullptr : statistics + i);
    }
  }
};

template <typename Rule, bool ROWWISE, typename Task>
DEMB_INLINE void run_rule(const Task& task, const UpdateTarget& to, const RuleStep& r, V8* sum) {
  const Rule rule(r);
  task.template run<Rule, ROWWISE>(to, r, rule, sum);
}

template <typename Task>
DEMB_INLINE void run_rmsprop(const Task& task, const UpdateTarget& to, const RuleStep& r, V8* sum) {
  const bool momentum = r.hyper[1] > 0.0f, centered = r.hyper[3] != 0.0f;
  if (momentum && centered) return run_rule<Rmsprop<true, true>, false>(task, to, r, sum);
  if (momentum) return run_rule<Rmsprop<true, false>, false>(task, to, r, sum);
  if (centered) return run_rule<Rmsprop<false, true>, false>(task, to, r, sum);
  run_rule<Rmsprop<false, false>, false>(task, to, r, sum);
}

template <typename Task>
DEMB_INLINE void run_any(const Task& task, const UpdateTarget& to, const RuleStep& r, V8* sum) {
  switch (r.kind) {
    case RuleKind::kSgd: return run_rule<Sgd, false>(task, to, r, sum);
    case RuleKind::kMomentum: return run_rule<Momentum<false>, false>(task, to, r, sum);
    case RuleKind::kNesterov: return run_rule<Momentum<true>, false>(task, to, r, sum);
    case RuleKind::kAdagrad: return run_rule<Adagrad, false>(task, to, r, sum);
    case RuleKind::kRowwiseAdagrad: return run_rule<RowwiseAdagrad, true>(task, to, r, sum);
    case RuleKind::kAdam: return run_rule<Adam<false>, false>(task, to, r, sum);
    case RuleKind::kAmsgrad: return run_rule<Adam<true>, false>(task, to, r, sum);
    case RuleKind::kRmsprop: return run_rmsprop(task, to, r, sum);
    case RuleKind::kFtrl: return run_rule<Ftrl, false>(task, to, r, sum);
  }
}

template <typename Task>
DEMB_AVX2 void run_avx2(const Task& task, const UpdateTarget& to, const RuleStep& r, V8* sum) {
  run_any(task, to, r, sum);
}

template <typename Task>
void run_portable(const Task& task, const UpdateTarget& to, const RuleStep& r, V8* sum) {
  run_any(task, to, r, sum);
}

template <typename Task>
void run(const Task& task, const UpdateTarget& to, const RuleStep& r) {
  Scratch<V8> sum(to.table.dim / 8 + 1);
  (has_avx2() ? run_avx2<Task> : run_portable<Task>)(task, to, r, sum.get());
}

constexpr int64_t kNearBlock = int64_t{1} << 16;

int slots_of(const RuleStep& r) {
  switch (r.kind) {
    case RuleKind::kSgd: return 0;
    case RuleKind::kAdam:
    case RuleKind::kFtrl: return 2;
    case RuleKind::kAmsgrad: return 3;
    case RuleKind::kRmsprop: return 1 + (r.hyper[1] > 0.0f) + (r.hyper[3] != 0.0f);
    default: return 1;
  }
}

}  // namespace

bool slots_fit(const RuleStep& rule, const UpdateTarget& target) {
  if (target.num_slots != slots_of(rule)) return false;
  const int width = rule.kind == RuleKind::kRowwiseAdagrad ? 1 : target.table.dim;
  for (int s = 0; s < target.num_slots; ++s) {
    if (target.slots[s].width != width) return false;
  }
  return true;
}

UpdateWalk::UpdateWalk(const UpdateJob& job) : job_(job), plain_(plain_update(job.target, job.rule)) {}

void UpdateWalk::run(int64_t first, int64_t last) const {
  const Occurrences& o = occurrences();
  if (plain_ != nullptr) return plain_(o, first, last, job_.target, job_.rule);
  const Accumulate accumulate = has_avx2() ? kAccumulateAvx2 : kAccumulatePortable;
  demb::run(SortedTask{o, accumulate, first, last}, job_.target, job_.rule);
}

int64_t UpdateWalk::near_blocks() const {
  constexpr int64_t kLeast = int64_t{1} << 20, kMost = int64_t{8} << 20;
  const int64_t bytes = occurrences().gradient_bytes();
  const bool worthwhile = bytes >= kLeast && bytes <= kMost && occurrences().count() * 64 >= bytes;
  return worthwhile ? (bytes + kNearBlock - 1) / kNearBlock : 0;
}

void UpdateWalk::bring_near(int64_t block) const {
  const int64_t end = std::min((block + 1) * kNearBlock, occurrences().gradient_bytes());
  for (int64_t at = block * kNearBlock; at < end; at += 64) {
    __builtin_prefetch(occurrences().gradient_begin() + at, 0, 2);
  }
}

void update_rows(const UpdateJob* jobs, int64_t num_jobs, const Executor& executor) {
  struct Task {
    const UpdateWalk* walk;
    int64_t at;
    bool near;
  };
  const std::vector<UpdateWalk> walks(jobs, jobs + num_jobs);
  std::vector<Task> tasks;
  for (const UpdateWalk& walk : walks) {
    for (int64_t block = 0; block < walk.near_blocks(); ++block) tasks.push_back({&walk, block, true});
    for (int64_t at = 0; at < walk.occurrences().count(); at += kPairsPerTask) tasks.push_back({&walk, at, false});
  }
  executor.run(static_cast<int64_t>(tasks.size()), [&](int64_t t) {
    const Task& task = tasks[t];
    if (task.near) return task.walk->bring_near(task.at);
    task.walk->run(task.at, std::min(task.at + kPairsPerTask, task.walk->occurrences().count()));
  });
}

void update_rows(const int64_t* rows, int64_t count, const float* sums, const float* statistics,
                 const UpdateTarget& target, const RuleStep& rule, const Executor& executor) {
  constexpr int64_t kRows = 1024;
  executor.run((count + kRows - 1) / kRows, [&](int64_t t) {
    run(SummedTask{rows, sums, statistics, t * kRows, std::min((t + 1) * kRows, count)}, target, rule);
  });
}

}  // namespace demb
