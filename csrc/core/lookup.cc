#include "core/lookup.h"

#include <algorithm>
#include <vector>

#include "core/numbers.h"

namespace demb {
namespace {

constexpr int64_t kBytesPerTask = int64_t{1} << 19;  // of rows read: waking a thread costs as much as some 50 KiB
constexpr int64_t kBytesAhead = 6144;                // of rows asked for before they are read
// Outputs of a call from which on none is still in the caches when somebody reads it: they are written past them, which
// spares reading their lines first. In whole lines only: stores of 16 or 32 bytes past the caches are slower between
// random reads than plain ones (65,536 rows of 512 bytes on an Intel Xeon: 12.5 and 8.4 ms against 7.0; 64 bytes: 5.9).
constexpr int64_t kStreamedBytes = int64_t{32} << 20;

DEMB_INLINE float scale_of(Combiner combiner, float sum, float squares) {
  if (combiner == Combiner::kSum) return 1.0f;
  const float total = combiner == Combiner::kMean ? sum : root(squares);
  return total != 0.0f ? 1.0f / total : 0.0f;
}

// The row an id names under the policy; -1: none.
DEMB_INLINE int64_t row_of(int64_t id, int64_t num_rows, InvalidIds policy) {
  if (static_cast<uint64_t>(id) < static_cast<uint64_t>(num_rows)) return id;
  if (policy != InvalidIds::kClip) return -1;
  return id < 0 ? 0 : num_rows - 1;
}

// Accumulators of a row of DIM floats in registers; for DIM 0 any width, in the output itself.
template <int DIM>
struct Sum {
  V8 lanes[DIM / 8];
  DEMB_INLINE_METHOD Sum(float*, int) {
    for (int k = 0; k < DIM / 8; ++k) lanes[k] = splat(0.0f);
  }
  template <bool WEIGHTED, typename T>
  DEMB_INLINE_METHOD void add(const T* row, float w) {
    for (int k = 0; k < DIM / 8; ++k) {
      const V8 v = load8(row + 8 * k);
      lanes[k] += WEIGHTED ? v * w : v;
    }
  }
  template <bool STREAMED>
  DEMB_INLINE_METHOD void finish(float* out, float scale, bool scaled) {
    if (scaled) {
      for (int k = 0; k < DIM / 8; ++k) lanes[k] *= scale;
    }
    if constexpr (STREAMED && DIM % 16 == 0) {
      for (int k = 0; k < DIM / 8; k += 2) stream16(out + 8 * k, lanes[k], lanes[k + 1]);
    } else {
      for (int k = 0; k < DIM / 8; ++k) store8(out + 8 * k, lanes[k]);
    }
  }
};

template <>
struct Sum<0> {
  float* out;
  int dim;
  DEMB_INLINE_METHOD Sum(float* out, int dim) : out(out), dim(dim) {
    for (int d = 0; d < dim; ++d) out[d] = 0.0f;
  }
  template <bool WEIGHTED, typename T>
  DEMB_INLINE_METHOD void add(const T* row, float w) {
    const int whole = dim / 8 * 8;
    for (int d = 0; d < whole; d += 8) {
      const V8 v = load8(row + d);
      store8(out + d, load8(out + d) + (WEIGHTED ? v * w : v));
    }
    if (whole < dim) {
      const V8 v = load_tail(row + whole, dim - whole);
      store_tail(out + whole, load_tail(out + whole, dim - whole) + (WEIGHTED ? v * w : v), dim - whole);
    }
  }
  template <bool STREAMED>
  DEMB_INLINE_METHOD void finish(float* to, float scale, bool scaled) {
    if (!scaled) return;
    for (int d = 0; d < dim; ++d) to[d] *= scale;
  }
};

// Of any id: an address outside of the table does no harm, a signed product out of range would.
template <typename T, int DIM>
DEMB_INLINE void prefetch(const Table& table, int64_t row) {
  if (DIM > 0) return prefetch_floats<DIM, false>(row_address(table.data, row, table.stride));
  prefetch_row<false>(table.data, row, table.stride, table.dim * static_cast<int64_t>(sizeof(T)));
}

// LAST: ids may end within `ahead` of the bag's.
template <bool STREAMED, typename T, int DIM, typename Id, bool WEIGHTED, bool LAST>
DEMB_INLINE void look_up_bag(const LookupJob& job, InvalidIds policy, int64_t ahead, int64_t end_of_ids, int64_t b) {
  const Table& table = job.table;
  const Bags& bags = job.bags;
  const Id* ids = static_cast<const Id*>(bags.ids);
  const int64_t begin = bags.begin(b), end = bags.begin(b + 1);
  float* out = job.out + b * job.out_stride;
  Sum<DIM> sum(out, table.dim);
  float total = 0.0f, squares = 0.0f;
  int64_t left_out = 0;
  for (int64_t i = begin; i < end; ++i) {
    if (!LAST || i + ahead < end_of_ids) prefetch<T, DIM>(table, ids[i + ahead]);
    int64_t row = ids[i];
    if (__builtin_expect(static_cast<uint64_t>(row) >= static_cast<uint64_t>(table.num_rows), 0)) {
      if (job.invalid != nullptr) job.invalid->add(i);
      row = row_of(row, table.num_rows, policy);
      if (row < 0) {
        ++left_out;
        continue;
      }
    }
    const float w = WEIGHTED ? bags.weights[i] : 1.0f;
    sum.template add<WEIGHTED>(reinterpret_cast<const T*>(table.data + row * table.stride), w);
    if (WEIGHTED) {
      total += w;
      squares += w * w;
    }
  }
  if (!WEIGHTED) total = squares = static_cast<float>(end - begin - left_out);
  const bool scaled = bags.combiner != Combiner::kSum;
  sum.template finish<STREAMED>(out, scaled ? scale_of(bags.combiner, total, squares) : 1.0f, scaled);
}

template <bool STREAMED, typename T, int DIM, typename Id, bool WEIGHTED>
DEMB_INLINE void look_up_bags(const LookupJob& job, InvalidIds policy, int64_t first, int64_t last) {
  const Bags& bags = job.bags;
  const Id* ids = static_cast<const Id*>(bags.ids);
  const int64_t row_bytes = job.table.dim * static_cast<int64_t>(sizeof(T));
  const int64_t ahead = std::max<int64_t>(2, std::min<int64_t>(32, kBytesAhead / row_bytes));
  const int64_t end_of_ids = bags.begin(last);
  for (int64_t i = bags.begin(first); i < std::min(bags.begin(first) + ahead, end_of_ids); ++i) {
    prefetch<T, DIM>(job.table, ids[i]);
  }
  int64_t b = first;
  for (; b < last && bags.begin(b + 1) + ahead <= end_of_ids; ++b) {
    look_up_bag<STREAMED, T, DIM, Id, WEIGHTED, false>(job, policy, ahead, end_of_ids, b);
  }
  for (; b < last; ++b) look_up_bag<STREAMED, T, DIM, Id, WEIGHTED, true>(job, policy, ahead, end_of_ids, b);
  if constexpr (STREAMED) end_stream();
}

template <bool STREAMED, typename T, int DIM, typename Id>
DEMB_INLINE void look_up_weights(const LookupJob& job, InvalidIds policy, int64_t first, int64_t last) {
  if (job.bags.weights != nullptr) {
    look_up_bags<STREAMED, T, DIM, Id, true>(job, policy, first, last);
  } else {
    look_up_bags<STREAMED, T, DIM, Id, false>(job, policy, first, last);
  }
}

template <bool STREAMED, typename T, int DIM>
DEMB_INLINE void look_up_ids(const LookupJob& job, InvalidIds policy, int64_t first, int64_t last) {
  if (job.bags.ids_are_64) {
    look_up_weights<STREAMED, T, DIM, int64_t>(job, policy, first, last);
  } else {
    look_up_weights<STREAMED, T, DIM, int32_t>(job, policy, first, last);
  }
}

template <bool STREAMED>
DEMB_INLINE void look_up_any(const LookupJob& job, InvalidIds policy, int64_t first, int64_t last) {
  if (job.table.dtype == DType::kBFloat16) return look_up_ids<STREAMED, BFloat16, 0>(job, policy, first, last);
  if (job.table.dtype == DType::kFloat16) return look_up_ids<STREAMED, Float16, 0>(job, policy, first, last);
  switch (job.table.dim) {
    case 8: return look_up_ids<STREAMED, float, 8>(job, policy, first, last);
    case 16: return look_up_ids<STREAMED, float, 16>(job, policy, first, last);
    case 32: return look_up_ids<STREAMED, float, 32>(job, policy, first, last);
    case 64: return look_up_ids<STREAMED, float, 64>(job, policy, first, last);
    case 128: return look_up_ids<STREAMED, float, 128>(job, policy, first, last);
    default: return look_up_ids<STREAMED, float, 0>(job, policy, first, last);
  }
}

int64_t output_bytes(const LookupJob* jobs, int64_t num_jobs) {
  int64_t bytes = 0;
  for (int64_t j = 0; j < num_jobs; ++j) bytes += jobs[j].bags.num_bags * jobs[j].table.dim * 4;
  return bytes;
}

DEMB_AVX2 void look_up_avx2(const LookupJob& job, InvalidIds policy, int64_t first, int64_t last) {
  look_up_any<false>(job, policy, first, last);
}

// Outputs past the caches; address and stride multiples of 64 bytes.
DEMB_AVX512 void look_up_streamed(const LookupJob& job, InvalidIds policy, int64_t first, int64_t last) {
  look_up_any<true>(job, policy, first, last);
}

void look_up_portable(const LookupJob& job, InvalidIds policy, int64_t first, int64_t last) {
  look_up_any<false>(job, policy, first, last);
}

}  // namespace

void look_up(const LookupJob* jobs, int64_t num_jobs, InvalidIds policy, const Executor& executor) {
  struct Task {
    const LookupJob* job;
    int64_t first, last;
  };
  std::vector<Task> tasks;
  for (int64_t j = 0; j < num_jobs; ++j) {
    const Bags& bags = jobs[j].bags;
    const int64_t bytes = bags.ids_a_bag() * (jobs[j].table.dim * bytes_of(jobs[j].table.dtype) + 64);
    const int64_t step = std::max<int64_t>(1, kBytesPerTask / bytes);
    for (int64_t b = 0; b < bags.num_bags; b += step) {
      tasks.push_back({&jobs[j], b, std::min(b + step, bags.num_bags)});
    }
  }
  const auto run = has_avx2() ? look_up_avx2 : look_up_portable;
  const bool large = has_avx512() && output_bytes(jobs, num_jobs) >= kStreamedBytes;
  executor.run(static_cast<int64_t>(tasks.size()), [&](int64_t t) {
    const LookupJob& job = *tasks[t].job;
    const bool whole_lines = reinterpret_cast<uintptr_t>(job.out) % 64 == 0 && job.out_stride % 16 == 0;
    (large && whole_lines ? look_up_streamed : run)(job, policy, tasks[t].first, tasks[t].last);
  });
}

bool constant_scale(const Bags& bags, InvalidIds policy, float* scale) {
  *scale = 1.0f;
  if (bags.combiner == Combiner::kSum) return true;
  // An id that is left out is not counted in a mean: then the scale follows the ids.
  if (bags.splits != nullptr || bags.weights != nullptr || policy == InvalidIds::kZero) return false;
  const float count = static_cast<float>(bags.hotness);
  *scale = scale_of(bags.combiner, count, count);
  return true;
}

void bag_scales(const Bags& bags, int64_t num_rows, InvalidIds policy, int64_t first, int64_t last, float* scales) {
  for (int64_t b = first; b < last; ++b) {
    float total = 0.0f, squares = 0.0f;
    for (int64_t i = bags.begin(b); i < bags.begin(b + 1); ++i) {
      if (row_of(bags.id(i), num_rows, policy) < 0) continue;
      const float w = bags.weights != nullptr ? bags.weights[i] : 1.0f;
      total += w;
      squares += w * w;
    }
    scales[b - first] = scale_of(bags.combiner, total, squares);
  }
}

}  // namespace demb
