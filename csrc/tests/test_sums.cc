// Sums of duplicates against a naive map of rows; order, factors, several features of one table.
#include <map>
#include <memory>
#include <vector>

#include "core/occurrences.h"
#include "core/sums.h"
#include "tests/check.h"
#include "tests/gradients.h"
#include "tests/thread_executor.h"

using namespace demb_test;  // NOLINT: this is a test
using demb::Combiner;
using demb::InvalidIds;

namespace {

struct Sums {
  std::vector<int64_t> rows;
  std::vector<float> sums;   // [rows, dim]
  std::vector<float> dense;  // [num_rows, dim + 3]
};

std::vector<Sums> sum_all(const std::vector<std::unique_ptr<GradientData>>& tables, InvalidIds policy,
                          const demb::Executor& executor) {
  std::vector<demb::TableGradient> gradients;
  for (const auto& table : tables) gradients.push_back(table->gradient);
  demb::OccurrenceSorter sorter;
  sorter.sort(gradients.data(), static_cast<int64_t>(gradients.size()), policy, executor);
  std::vector<Sums> all;
  for (size_t t = 0; t < tables.size(); ++t) {
    const demb::TableGradient& g = gradients[t];
    const demb::Occurrences& o = sorter.of(static_cast<int64_t>(t));
    const auto rows = static_cast<size_t>(demb::count_rows(o, executor)), dim = static_cast<size_t>(g.dim);
    Sums s{std::vector<int64_t>(rows), std::vector<float>(rows * dim),
           std::vector<float>(static_cast<size_t>(g.num_rows) * (dim + 3), std::nanf(""))};
    demb::sum_rows(o, g.dim, s.rows.data(), s.sums.data(), executor);
    demb::sum_into_rows(o, g.num_rows, g.dim, s.dense.data(), g.dim + 3, executor);
    all.push_back(std::move(s));
  }
  return all;
}

void check_sums(const Sums& got, const GradientData& data, InvalidIds policy) {
  const auto want = naive_gradients(data.gradient, policy);
  const auto dim = static_cast<size_t>(data.gradient.dim);
  CHECK(got.rows.size() == want.size(), "%zu rows, want %zu", got.rows.size(), want.size());
  size_t at = 0;
  for (const auto& [row, sum] : want) {
    CHECK(got.rows[at] == row, "row %ld, want %ld", static_cast<long>(got.rows[at]), static_cast<long>(row));
    for (size_t d = 0; d < dim; ++d) {
      const float x = got.sums[at * dim + d];
      CHECK(std::fabs(x - sum.value[d]) <= sum.bound(d), "row %ld d %zu: %.9g, want %.9g", static_cast<long>(row), d, x,
            sum.value[d]);
    }
    ++at;
  }
  at = 0;
  for (size_t row = 0; row < static_cast<size_t>(data.gradient.num_rows); ++row) {
    const bool occurs = at < got.rows.size() && got.rows[at] == static_cast<int64_t>(row);
    for (size_t d = 0; d < dim; ++d) {
      const float here = got.dense[row * (dim + 3) + d];
      CHECK(here == (occurs ? got.sums[at * dim + d] : 0.0f), "row %zu d %zu", row, d);
    }
    for (size_t d = dim; d < dim + 3; ++d) CHECK(std::isnan(got.dense[row * (dim + 3) + d]), "wrote behind a row");
    if (occurs) ++at;
  }
}

void check_tables(const std::vector<std::unique_ptr<GradientData>>& tables, InvalidIds policy) {
  const demb::SerialExecutor serial;
  const auto alone = sum_all(tables, policy, serial);
  for (size_t t = 0; t < tables.size(); ++t) {
    check_sums(alone[t], *tables[t], policy);
    digest().add(alone[t].rows);
    digest().add(alone[t].sums);
  }
  for (int threads : {2, 3}) {
    const auto together = sum_all(tables, policy, ThreadExecutor(threads));
    for (size_t t = 0; t < tables.size(); ++t) {
      CHECK(alone[t].rows == together[t].rows && same_bits(alone[t].sums, together[t].sums), "threads=%d", threads);
      CHECK(same_bits(alone[t].dense, together[t].dense), "threads=%d", threads);
    }
  }
}

}  // namespace

TEST(sums_of_duplicates_equal_naive) {
  Random random(11);
  for (int variant = 0; variant < 60; ++variant) {
    const auto policy = static_cast<InvalidIds>(variant % 3);
    // Under kRaise a step with an invalid id ends in an error: its sums do not matter.
    const int invalid_percent = policy == InvalidIds::kRaise ? 0 : 20;
    std::vector<std::unique_ptr<GradientData>> tables;
    for (int32_t dim : {1, 5, 8, 16, 19, 32, 64, 128}) {
      std::vector<BagShape> shapes;
      for (int64_t s = 0; s < 1 + variant % 3; ++s) {
        // The combiners and forms of features that share a table may differ.
        const int form = static_cast<int>(below(random, 16));
        shapes.push_back({below(random, 12), 1 + below(random, 5), (form & 1) != 0, (form & 2) != 0 && variant % 2 == 0,
                          (form & 8) != 0, invalid_percent, static_cast<Combiner>(below(random, 3))});
      }
      tables.push_back(std::make_unique<GradientData>(random, 1 + below(random, 50), dim, shapes, below(random, 3)));
    }
    context() = "variant " + std::to_string(variant);
    check_tables(tables, policy);
  }
}

TEST(sums_over_many_tasks_do_not_depend_on_threads) {
  Random random(12);
  std::vector<std::unique_ptr<GradientData>> tables;
  // One row takes a third of all occurrences, over many tasks.
  tables.push_back(std::make_unique<GradientData>(
      random, 4000, 16, std::vector<BagShape>{{9000, 3, true, true, true, 1, Combiner::kMean}}, 0));
  tables.push_back(std::make_unique<GradientData>(
      random, 1, 8, std::vector<BagShape>{{20000, 1, false, false, false, 0, Combiner::kSum}}, 0));
  check_tables(tables, InvalidIds::kZero);
}

TEST(a_rows_sum_does_not_depend_on_other_rows) {
  Random random(13);
  const std::vector<BagShape> one_hot{{3000, 1, false, false, true, 0, Combiner::kSum}};
  GradientData whole(random, 50, 16, one_hot, 0);
  GradientData part(whole);
  // Leaves out all rows but the even ones.
  for (int64_t& id : part.bags[0]->ids64) id = id % 2 == 0 ? id : -1;
  const demb::SerialExecutor serial;
  std::vector<std::unique_ptr<GradientData>> both;
  both.push_back(std::make_unique<GradientData>(whole));
  both.push_back(std::make_unique<GradientData>(part));
  const auto sums = sum_all(both, InvalidIds::kZero, serial);
  for (size_t row = 0; row < 50; row += 2) {
    for (size_t d = 0; d < 16; ++d) CHECK(sums[0].dense[row * 19 + d] == sums[1].dense[row * 19 + d]);
  }
}

TEST(too_many_rows_for_32_bits_are_refused) {
  const demb::TableGradient table{int64_t{1} << 32, 16, nullptr, 0};
  CHECK(!demb::OccurrenceSorter::supports(table));
}
