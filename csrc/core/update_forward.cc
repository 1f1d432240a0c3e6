#include "core/update_forward.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/accumulate.h"

namespace demb {
namespace {

// Tables that are worked on together have about so many ids: scratch follows this and not the batch.
constexpr int64_t kIdsAtATime = int64_t{1} << 22;
constexpr int64_t kHotBytes = int64_t{1} << 15;  // of rows that are updated before they are written out
constexpr int64_t kRowsAhead = 16;

// ---- writing rows out ----

template <typename T, int DIM>
DEMB_INLINE void write_rows(const Table& table, const AskedRows& asked, int64_t first, int64_t last) {
  const int dim = DIM > 0 ? DIM : table.dim;
  float* out = asked.out + first * dim;
  for (int64_t i = first; i < last; ++i, out += dim) {
    if (i + kRowsAhead < asked.count) {  // rows that are not updated are still far away
      prefetch_row<false>(table.data, asked.rows[i + kRowsAhead], table.stride, dim * static_cast<int64_t>(sizeof(T)));
    }
    const T* row = reinterpret_cast<const T*>(table.data + asked.rows[i] * table.stride);
    // A lookup's sum begins with 0, and 0 + -0 is 0.
    for (int d = 0; d + 8 <= dim; d += 8) store8(out + d, splat(0.0f) + load8(row + d));
    const int whole = dim / 8 * 8;
    if (DIM == 0 && whole < dim) store_tail(out + whole, splat(0.0f) + load_tail(row + whole, dim - whole), dim - whole);
  }
}

DEMB_INLINE void write_any(const Table& table, const AskedRows& asked, int64_t first, int64_t last) {
  if (table.dtype == DType::kBFloat16) return write_rows<BFloat16, 0>(table, asked, first, last);
  if (table.dtype == DType::kFloat16) return write_rows<Float16, 0>(table, asked, first, last);
  switch (table.dim) {
    case 8: return write_rows<float, 8>(table, asked, first, last);
    case 16: return write_rows<float, 16>(table, asked, first, last);
    case 32: return write_rows<float, 32>(table, asked, first, last);
    case 64: return write_rows<float, 64>(table, asked, first, last);
    case 128: return write_rows<float, 128>(table, asked, first, last);
    default: return write_rows<float, 0>(table, asked, first, last);
  }
}

DEMB_AVX2 void write_avx2(const Table& table, const AskedRows& asked, int64_t first, int64_t last) {
  write_any(table, asked, first, last);
}

void write_portable(const Table& table, const AskedRows& asked, int64_t first, int64_t last) {
  write_any(table, asked, first, last);
}

// ---- walking along both ----

// One table: its gradients, sorted, and what is asked of it in rising order.
struct Fused {
  UpdateWalk walk;
  std::vector<AskedRows> asked;
  Table table;
};

// Where a list of rows reaches this one.
int64_t position(const AskedRows& asked, int64_t row) {
  return std::lower_bound(asked.rows, asked.rows + asked.count, row) - asked.rows;
}

int64_t position(const Occurrences& o, int64_t row) {
  const auto before = [](const Pair& pair, int64_t r) { return pair.key < r; };
  return std::lower_bound(o.begin(), o.begin() + o.count(), row, before) - o.begin();
}

// The rows at which tasks begin, and one behind all: about kPairsPerTask of each list a task.
std::vector<int64_t> cut(const Fused& job) {
  const Occurrences& updated = job.walk.occurrences();
  std::vector<int64_t> rows = {0, job.table.num_rows};
  for (int64_t at = kPairsPerTask; at < updated.count(); at += kPairsPerTask) rows.push_back(updated.begin()[at].key);
  for (const AskedRows& asked : job.asked) {
    for (int64_t at = kPairsPerTask; at < asked.count; at += kPairsPerTask) rows.push_back(asked.rows[at]);
  }
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

// A few of the rows [first, last) are updated, then what is asked of them and of those between them is written out.
void run(const Fused& job, int64_t first, int64_t last) {
  const Occurrences& updated = job.walk.occurrences();
  const auto write = has_avx2() ? write_avx2 : write_portable;
  const int64_t row_bytes = job.table.dim * bytes_of(job.table.dtype);
  const int64_t step = std::max<int64_t>(32, std::min<int64_t>(512, kHotBytes / row_bytes));
  std::vector<int64_t> done;
  for (const AskedRows& asked : job.asked) done.push_back(position(asked, first));
  int64_t at = position(updated, first);
  const int64_t end = position(updated, last);
  do {
    const int64_t stop = std::min(at + step, end);
    job.walk.run(at, stop);
    at = updated.row_start(stop);
    const int64_t row = at < end ? int64_t{updated.begin()[at].key} : last;
    for (size_t k = 0; k < done.size(); ++k) {
      const AskedRows& asked = job.asked[k];
      int64_t ready = done[k];
      while (ready < asked.count && asked.rows[ready] < row) ++ready;
      write(job.table, asked, done[k], ready);
      done[k] = ready;
    }
  } while (at < end);
}

struct Task {
  const Fused* job;
  int64_t first, last;
  bool near;  // block `first` of the gradients is brought into the caches instead
};

// ---- all tables ----

int64_t ids_of(const UpdateForwardJob& job) {
  const auto add = [](int64_t ids, const AskedRows& asked) { return ids + asked.count; };
  return std::accumulate(job.asked, job.asked + job.num_asked, job.gradient.num_ids(), add);
}

bool rises(const AskedRows& asked, int64_t num_rows) {
  if (asked.count == 0) return true;
  bool falls = false;
  for (int64_t i = 1; i < asked.count; ++i) falls |= asked.rows[i] < asked.rows[i - 1];
  return !falls && asked.rows[0] >= 0 && asked.rows[asked.count - 1] < num_rows;
}

// Returns the rows asked that are outside.
int64_t run_together(const UpdateForwardJob* jobs, int64_t num_jobs, const Executor& executor) {
  std::vector<TableGradient> gradients;
  for (int64_t j = 0; j < num_jobs; ++j) gradients.push_back(jobs[j].gradient);
  OccurrenceSorter sorter;
  sorter.sort(gradients.data(), num_jobs, InvalidIds::kRaise, executor);
  std::vector<Fused> fused;
  std::vector<LookupJob> later;
  InvalidReport outside;
  for (int64_t j = 0; j < num_jobs; ++j) {
    const UpdateForwardJob& job = jobs[j];
    fused.push_back({UpdateWalk({&sorter.of(j), job.target, job.rule}), {}, job.target.table});
    for (const AskedRows* a = job.asked; a < job.asked + job.num_asked; ++a) {
      if (rises(*a, job.target.table.num_rows)) {
        fused.back().asked.push_back(*a);
        continue;
      }
      Bags bags;
      bags.ids = a->rows;
      bags.num_ids = bags.num_bags = a->count;
      later.push_back({job.target.table, bags, a->out, job.target.table.dim, &outside});
    }
  }
  std::vector<Task> tasks;
  for (const Fused& job : fused) {
    for (int64_t block = 0; block < job.walk.near_blocks(); ++block) tasks.push_back({&job, block, 0, true});
    const std::vector<int64_t> rows = cut(job);
    for (size_t k = 0; k + 1 < rows.size(); ++k) tasks.push_back({&job, rows[k], rows[k + 1], false});
  }
  executor.run(static_cast<int64_t>(tasks.size()), [&](int64_t t) {
    const Task& task = tasks[t];
    task.near ? task.job->walk.bring_near(task.first) : run(*task.job, task.first, task.last);
  });
  look_up(later.data(), static_cast<int64_t>(later.size()), InvalidIds::kRaise, executor);
  return outside.count.load();
}

}  // namespace

int64_t update_forward(const UpdateForwardJob* jobs, int64_t num_jobs, const Executor& executor) {
  std::vector<int64_t> ids, outside(static_cast<size_t>(num_jobs), 0);
  for (int64_t j = 0; j < num_jobs; ++j) ids.push_back(ids_of(jobs[j]));
  const int64_t all = std::accumulate(ids.begin(), ids.end(), int64_t{0});
  const int64_t most = num_jobs == 0 ? 0 : *std::max_element(ids.begin(), ids.end());
  if (executor.threads() == 1 || most * executor.threads() * 4 <= all) {
    // Each thread takes whole tables: what it has sorted is still in its cache when it walks along it.
    executor.run(num_jobs, [&](int64_t j) { outside[j] = run_together(jobs + j, 1, SerialExecutor()); });
    return std::accumulate(outside.begin(), outside.end(), int64_t{0});
  }
  int64_t total = 0;
  for (int64_t first = 0; first < num_jobs;) {
    int64_t last = first, together = 0;
    while (last < num_jobs && (last == first || together + ids[last] <= kIdsAtATime)) together += ids[last++];
    total += run_together(jobs + first, last - first, executor);
    first = last;
  }
  return total;
}

}  // namespace demb
