// Unique and route against sets and maps.
#include <memory>
#include <set>
#include <vector>

#include "core/route.h"
#include "tests/check.h"
#include "tests/naive.h"
#include "tests/thread_executor.h"

using namespace demb_test;  // NOLINT: this is a test
using demb::InvalidIds;

namespace {

// One table: its features, how its rows lie, and room for what is found.
struct Routed {
  std::vector<std::unique_ptr<BagData>> data;
  std::vector<demb::Bags> features;
  std::vector<int64_t> ends;
  std::vector<demb::InvalidReport> reports;
  std::vector<demb::InvalidReport*> report_pointers;
  demb::RouteJob job;
  std::vector<int64_t> rows, counts, inverse;

  Routed(Random& random, int64_t num_rows, int64_t shards, bool cyclic, const std::vector<BagShape>& shapes)
      : reports(shapes.size()) {
    for (const BagShape& shape : shapes) {
      data.push_back(std::make_unique<BagData>(make_bags(random, shape, num_rows)));
      features.push_back(data.back()->bags);
    }
    for (auto& report : reports) report_pointers.push_back(&report);
    // Shards of any lengths, empty ones too.
    for (int64_t s = 0; s + 1 < shards; ++s) ends.push_back(below(random, num_rows + 1));
    std::sort(ends.begin(), ends.end());
    ends.push_back(num_rows);
    job.features = features.data();
    job.num_features = static_cast<int64_t>(features.size());
    job.num_rows = num_rows;
    job.shards = {shards, cyclic, cyclic ? nullptr : ends.data()};
    job.invalid = report_pointers.data();
  }

  // Filled with what no result is, so that what is left out shows.
  demb::RouteResult result() {
    const auto ids = static_cast<size_t>(job.num_ids());
    rows.assign(ids, -7);
    inverse.assign(ids, -7);
    counts.assign(static_cast<size_t>(job.shards.count), -7);
    for (auto& report : reports) report.count = 0, report.first = INT64_MAX;
    return {rows.data(), counts.data(), inverse.data()};
  }

  int64_t shard_of(int64_t row) const {
    if (job.shards.cyclic) return row % job.shards.count;
    return std::upper_bound(ends.begin(), ends.end(), row) - ends.begin();
  }
  int64_t local(int64_t row) const {
    if (job.shards.cyclic) return row / job.shards.count;
    const int64_t shard = shard_of(row);
    return shard == 0 ? row : row - ends[static_cast<size_t>(shard - 1)];
  }

  void check(InvalidIds policy) const {
    std::vector<std::set<int64_t>> wanted(counts.size());
    for (const demb::Bags& bags : features) {
      for (int64_t i = 0; i < bags.num_ids; ++i) {
        const int64_t row = naive_row(bags.id(i), job.num_rows, policy);
        if (row >= 0) wanted[static_cast<size_t>(shard_of(row))].insert(local(row));
      }
    }
    std::vector<int64_t> starts;
    size_t at = 0;
    for (size_t s = 0; s < counts.size(); ++s) {
      CHECK(counts[s] == static_cast<int64_t>(wanted[s].size()), "shard %zu", s);
      starts.push_back(static_cast<int64_t>(at));
      for (int64_t row : wanted[s]) CHECK(rows[at++] == row, "shard %zu", s);
    }
    for (; at < rows.size(); ++at) CHECK(rows[at] == -7, "wrote behind the rows");
    check_inverse(policy, starts);
  }

 private:
  void check_inverse(InvalidIds policy, const std::vector<int64_t>& starts) const {
    size_t at = 0;
    for (size_t f = 0; f < features.size(); ++f) {
      int64_t count, first;
      naive_invalid(features[f], job.num_rows, &count, &first);
      CHECK(reports[f].count == count && reports[f].first == first, "feature %zu", f);
      for (int64_t i = 0; i < features[f].num_ids; ++i, ++at) {
        const int64_t row = naive_row(features[f].id(i), job.num_rows, policy);
        if (row < 0) {
          CHECK(inverse[at] == -1);
          continue;
        }
        const auto shard = static_cast<size_t>(shard_of(row));
        CHECK(inverse[at] >= starts[shard] && inverse[at] < starts[shard] + counts[shard]);
        CHECK(rows[static_cast<size_t>(inverse[at])] == local(row), "feature %zu id %ld", f, static_cast<long>(i));
      }
    }
  }
};

void check_routes(std::vector<std::unique_ptr<Routed>>& tables, InvalidIds policy, const demb::Executor& executor) {
  std::vector<demb::RouteJob> jobs;
  std::vector<demb::RouteResult> results;
  for (auto& table : tables) {
    jobs.push_back(table->job);
    results.push_back(table->result());
  }
  CHECK(demb::route(jobs.data(), results.data(), static_cast<int64_t>(jobs.size()), policy, executor));
  for (auto& table : tables) table->check(policy);
}

}  // namespace

TEST(routes_equal_naive_for_every_way_to_cut_a_table) {
  Random random(31);
  const demb::SerialExecutor serial;
  const ThreadExecutor threaded(3);
  for (int variant = 0; variant < 120; ++variant) {
    const auto policy = static_cast<InvalidIds>(variant % 3);
    std::vector<std::unique_ptr<Routed>> tables;
    for (int64_t shards : {1, 2, 3, 8}) {
      std::vector<BagShape> shapes;
      for (int64_t f = below(random, 3); f >= 0; --f) {
        shapes.push_back({below(random, 30), 3, below(random, 2) == 0, false, below(random, 2) == 0,
                          variant % 2 == 0 ? 0 : 20, demb::Combiner::kSum});
      }
      // Fewer rows than shards among them.
      tables.push_back(std::make_unique<Routed>(random, 1 + below(random, 40), shards, variant % 4 < 2, shapes));
    }
    context() = "variant " + std::to_string(variant);
    check_routes(tables, policy, serial);
    check_routes(tables, policy, threaded);
  }
}

TEST(routes_of_a_long_step_and_of_too_many_rows) {
  Random random(32);
  std::vector<std::unique_ptr<Routed>> tables;
  tables.push_back(std::make_unique<Routed>(
      random, 100000, 4, true, std::vector<BagShape>{{300000, 1, false, false, true, 1, demb::Combiner::kSum}}));
  check_routes(tables, InvalidIds::kZero, ThreadExecutor(3));
  demb::RouteJob job = tables[0]->job;
  job.num_rows = int64_t{1} << 32;
  demb::RouteResult result = tables[0]->result();
  const demb::SerialExecutor serial;
  CHECK(!demb::route(&job, &result, 1, InvalidIds::kZero, serial));
}
