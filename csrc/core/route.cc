#include "core/route.h"

#include <algorithm>

#include "core/pages.h"

namespace demb {
namespace {

constexpr int64_t kLimit = int64_t{0xffffffff};

// Rows renumbered so that a shard's are together: the order in which they are sent.
struct Numbering {
  explicit Numbering(const RouteJob& job)
      : cyclic(job.shards.cyclic && job.shards.count > 1),
        count(job.shards.count),
        room((job.num_rows + count - 1) / count),
        ends(job.shards.ends),
        last(cyclic ? count * room : job.num_rows) {}

  uint32_t key(int64_t row) const { return static_cast<uint32_t>(cyclic ? row % count * room + row / count : row); }
  int64_t start(int64_t shard) const {
    if (cyclic) return shard * room;
    return shard == 0 ? 0 : ends[shard - 1];
  }
  int64_t end(int64_t shard) const { return cyclic ? (shard + 1) * room : (count == 1 ? last : ends[shard]); }

  bool cyclic;
  int64_t count, room;
  const int64_t* ends;
  int64_t last;  // behind every key; ids that are left out
};

template <typename Id>
void write_pairs(const Bags& bags, int64_t offset, int64_t num_rows, InvalidIds policy, const Numbering& numbering,
                 InvalidReport* invalid, Pair* pairs) {
  const Id* ids = static_cast<const Id*>(bags.ids);
  for (int64_t i = 0; i < bags.num_ids; ++i) {
    int64_t row = ids[i];
    uint32_t key = static_cast<uint32_t>(numbering.last);
    if (static_cast<uint64_t>(row) < static_cast<uint64_t>(num_rows)) {
      key = numbering.key(row);
    } else {
      if (invalid != nullptr) invalid->add(i);
      if (policy == InvalidIds::kClip) key = numbering.key(row < 0 ? 0 : num_rows - 1);
    }
    pairs[offset + i] = {key, static_cast<uint32_t>(offset + i)};
  }
}

void write_result(const RouteJob& job, const Numbering& numbering, const Pair* pairs, int64_t count,
                  const RouteResult& to) {
  int64_t shard = 0, found = 0, i = 0;
  std::fill(to.shard_counts, to.shard_counts + job.shards.count, int64_t{0});
  while (i < count && pairs[i].key < numbering.last) {
    const uint32_t key = pairs[i].key;
    while (key >= numbering.end(shard)) ++shard;
    to.rows[found] = key - numbering.start(shard);
    ++to.shard_counts[shard];
    for (; i < count && pairs[i].key == key; ++i) to.inverse[pairs[i].item] = found;
    ++found;
  }
  for (; i < count; ++i) to.inverse[pairs[i].item] = -1;
}

}  // namespace

bool route(const RouteJob* jobs, RouteResult* results, int64_t num_jobs, InvalidIds policy, const Executor& executor) {
  std::vector<SortJob> sorts(static_cast<size_t>(num_jobs));
  std::vector<Scratch<Pair>> room;
  std::vector<Numbering> numberings;
  for (int64_t j = 0; j < num_jobs; ++j) {
    numberings.emplace_back(jobs[j]);
    const int64_t ids = jobs[j].num_ids();
    if (numberings[j].last >= kLimit || ids >= kLimit) return false;
    room.emplace_back(ids);
    Pair* pairs = room.back().get();
    room.emplace_back(ids);
    sorts[j] = {pairs, room.back().get(), ids, bits_of(static_cast<uint64_t>(numberings[j].last)), nullptr};
  }
  executor.run(num_jobs, [&](int64_t j) {
    int64_t offset = 0;
    for (int64_t f = 0; f < jobs[j].num_features; ++f) {
      const Bags& bags = jobs[j].features[f];
      InvalidReport* invalid = jobs[j].invalid == nullptr ? nullptr : jobs[j].invalid[f];
      const auto write = bags.ids_are_64 ? write_pairs<int64_t> : write_pairs<int32_t>;
      write(bags, offset, jobs[j].num_rows, policy, numberings[j], invalid, sorts[j].pairs);
      offset += bags.num_ids;
    }
  });
  sort_pairs(sorts.data(), num_jobs, executor);
  executor.run(num_jobs, [&](int64_t j) {
    write_result(jobs[j], numberings[j], sorts[j].sorted, sorts[j].count, results[j]);
  });
  return true;
}

}  // namespace demb
