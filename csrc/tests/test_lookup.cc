// Grouped lookup against the naive one; the same bits on any number of threads.
#include <algorithm>
#include <memory>
#include <vector>

#include "core/lookup.h"
#include "core/pages.h"
#include "tests/check.h"
#include "tests/naive.h"
#include "tests/thread_executor.h"

using namespace demb_test;  // NOLINT: this is a test
using demb::Combiner;
using demb::DType;
using demb::InvalidIds;

namespace {

struct Group {
  std::vector<std::unique_ptr<TableData>> tables;
  std::vector<std::unique_ptr<BagData>> bags;
  std::vector<std::vector<float>> outs;
  std::vector<demb::InvalidReport> reports;
  std::vector<demb::LookupJob> jobs;
  int64_t gap = 0;

  void add(Random& random, int64_t rows, int32_t dim, DType dtype, const BagShape& shape, int64_t stride_gap) {
    tables.push_back(std::make_unique<TableData>(random, rows, dim, dtype, stride_gap));
    bags.push_back(std::make_unique<BagData>(make_bags(random, shape, rows)));
  }

  // Outputs are filled with NaN first: what the kernel leaves out shows. A gap behind each vector stays NaN.
  std::vector<std::vector<float>> run(InvalidIds policy, const demb::Executor& executor) {
    reports = std::vector<demb::InvalidReport>(bags.size());
    outs.clear();
    jobs.clear();
    for (size_t f = 0; f < bags.size(); ++f) {
      const int64_t stride = tables[f]->table.dim + gap;
      outs.emplace_back(static_cast<size_t>(bags[f]->bags.num_bags * stride), std::nanf(""));
      jobs.push_back({tables[f]->table, bags[f]->bags, outs[f].data(), stride, &reports[f]});
    }
    demb::look_up(jobs.data(), static_cast<int64_t>(jobs.size()), policy, executor);
    return outs;
  }

  void check(InvalidIds policy) const {
    for (size_t f = 0; f < bags.size(); ++f) {
      const demb::Bags& b = bags[f]->bags;
      const int32_t dim = tables[f]->table.dim;
      int64_t count, first;
      naive_invalid(b, tables[f]->table.num_rows, &count, &first);
      CHECK(reports[f].count == count && reports[f].first == first, "feature %zu", f);
      for (int64_t bag = 0; bag < b.num_bags; ++bag) {
        for (int32_t d = 0; d < dim; ++d) {
          double size;
          const double want = naive_element(*tables[f], b, bag, d, policy, &size);
          const double got = outs[f][static_cast<size_t>(bag * (dim + gap) + d)];
          CHECK(std::fabs(got - want) <= naive_bound(b, bag, tables[f]->table.num_rows, policy, size), "feature %zu bag %ld d %d: got %.9g, want %.9g",
                f, static_cast<long>(bag), d, got, want);
        }
        for (int64_t g = 0; g < gap; ++g) {
          CHECK(std::isnan(outs[f][static_cast<size_t>(bag * (dim + gap) + dim + g)]), "wrote behind a vector");
        }
      }
    }
  }
};

void check_group(Group& group, InvalidIds policy) {
  const demb::SerialExecutor serial;
  const auto alone = group.run(policy, serial);
  group.check(policy);
  for (int threads : {2, 3}) {
    const ThreadExecutor executor(threads);
    for (int again = 0; again < 2; ++again) {
      const auto together = group.run(policy, executor);
      group.check(policy);
      for (size_t f = 0; f < alone.size(); ++f) CHECK(same_bits(alone[f], together[f]), "threads=%d", threads);
    }
  }
  for (const auto& out : alone) {
    for (float x : out) {
      if (!std::isnan(x)) digest().add(&x, sizeof(x));
    }
  }
}

}  // namespace

TEST(lookup_equals_naive_for_every_kind_of_input) {
  Random random(1);
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (Combiner combiner : {Combiner::kSum, Combiner::kMean, Combiner::kSqrtN}) {
      for (int variant = 0; variant < 24; ++variant) {
        const auto policy = static_cast<InvalidIds>(variant / 8);
        Group group;
        group.gap = variant % 3;
        for (int32_t dim : {1, 3, 7, 8, 9, 16, 20, 32, 64, 100, 128}) {
          const BagShape shape{1 + below(random, 12), 1 + below(random, 6), (variant & 1) != 0, (variant & 2) != 0,
                               (variant & 4) != 0,    variant % 5 == 0 ? 0 : 25, combiner};
          group.add(random, 1 + below(random, 40), dim, dtype, shape, 4 * below(random, 5));
        }
        context() = "dtype " + std::to_string(static_cast<int>(dtype)) + " combiner " +
                    std::to_string(static_cast<int>(combiner)) + " variant " + std::to_string(variant);
        check_group(group, policy);
      }
    }
  }
}

TEST(lookup_of_many_tasks_does_not_depend_on_threads) {
  Random random(2);
  Group group;
  group.add(random, 5000, 16, DType::kFloat32, {3000, 10, true, true, true, 1, Combiner::kMean}, 0);
  group.add(random, 700, 33, DType::kBFloat16, {2000, 3, false, false, false, 1, Combiner::kSum}, 12);
  group.add(random, 90, 128, DType::kFloat32, {1500, 1, false, false, true, 0, Combiner::kSum}, 128);
  check_group(group, InvalidIds::kZero);
}

// Vectors on whole lines are written past the caches where the processor can; moved by one float they are not.
TEST(lookup_of_outputs_beyond_the_caches_has_the_same_bits) {
  Random random(5);
  const ThreadExecutor executor(2);
  for (int32_t dim : {16, 24, 32, 64, 128}) {
    for (const bool weighted : {false, true}) {
      const int64_t num_bags = (int64_t{8} << 20) / dim + 1;
      const size_t floats = static_cast<size_t>(num_bags * dim);
      const TableData table(random, 300, dim, DType::kFloat32, 4);
      const BagData data = make_bags(random, {num_bags, 1, false, weighted, false, 0, Combiner::kMean}, 300);
      const demb::Scratch<float> memory(static_cast<int64_t>(floats) + 1);
      std::vector<float> moved(floats);
      for (const int64_t by : {1, 0}) {
        float* out = memory.get() + by;
        std::fill(out, out + floats, std::nanf(""));
        demb::InvalidReport report;
        const demb::LookupJob job{table.table, data.bags, out, dim, &report};
        demb::look_up(&job, 1, InvalidIds::kRaise, executor);
        if (by == 1) std::copy(out, out + floats, moved.begin());
      }
      CHECK(std::memcmp(memory.get(), moved.data(), floats * sizeof(float)) == 0, "dim %d weighted %d", dim, weighted);
      CHECK(std::none_of(moved.begin(), moved.end(), [](float x) { return std::isnan(x); }), "dim %d", dim);
    }
  }
}

TEST(lookup_of_nothing) {
  Random random(3);
  Group group;
  group.add(random, 5, 16, DType::kFloat32, {0, 3, false, false, true, 0, Combiner::kSum}, 0);
  group.add(random, 5, 12, DType::kFloat32, {4, 0, true, false, true, 0, Combiner::kMean}, 0);
  group.add(random, 5, 16, DType::kFloat32, {4, 2, false, false, true, 100, Combiner::kSqrtN}, 0);
  check_group(group, InvalidIds::kRaise);
  const demb::SerialExecutor serial;
  demb::look_up(nullptr, 0, InvalidIds::kRaise, serial);
}

TEST(bag_scales_equal_naive_and_constant_scale_says_when_they_are_all_the_same) {
  Random random(4);
  for (int variant = 0; variant < 96; ++variant) {
    const auto combiner = static_cast<Combiner>(variant % 3);
    const auto policy = static_cast<InvalidIds>(variant / 32);
    const BagShape shape{9, 4, (variant & 1) != 0, (variant & 2) != 0, (variant & 4) != 0, 20, combiner};
    const BagData data = make_bags(random, shape, 30);
    std::vector<float> scales(9);
    demb::bag_scales(data.bags, 30, policy, 0, 4, scales.data());
    demb::bag_scales(data.bags, 30, policy, 4, 9, scales.data() + 4);
    float same = -1.0f;
    const bool constant = demb::constant_scale(data.bags, policy, &same);
    for (int64_t b = 0; b < 9; ++b) {
      const double want = naive_scale(data.bags, b, 30, policy);
      const float got = scales[static_cast<size_t>(b)];
      // Weights may nearly cancel.
      CHECK(std::fabs(got - want) <= 1e-5 * std::max(1.0, std::fabs(want)) * std::fabs(want), "%g %g", got, want);
      // Under kRaise a step with an invalid id ends in an error: its scales do not matter.
      if (constant && policy != InvalidIds::kRaise) CHECK(same == got, "variant %d bag %ld", variant, static_cast<long>(b));
    }
  }
}
