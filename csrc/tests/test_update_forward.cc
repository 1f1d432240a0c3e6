// The fused update and lookup against both after each other: tables, slots and vectors have the same bits.
#include <memory>
#include <vector>

#include "core/update_forward.h"
#include "tests/check.h"
#include "tests/gradients.h"
#include "tests/rules.h"
#include "tests/thread_executor.h"

using namespace demb_test;  // NOLINT: this is a test
using demb::Combiner;
using demb::DType;
using demb::InvalidIds;

namespace {

const demb::SerialExecutor kSerial;

// Rows asked by some sources, and room for their vectors, exactly as much as they need.
struct AskedData {
  std::vector<std::vector<int64_t>> rows;
  std::vector<std::vector<float>> vectors;
  std::vector<demb::AskedRows> asked;

  // Most of them rise, as they do on the wire.
  AskedData(Random& random, int64_t num_rows, int32_t dim, const std::vector<int64_t>& counts) {
    for (int64_t count : counts) {
      rows.emplace_back();
      for (int64_t i = 0; i < count; ++i) {
        // Some rows are asked again and again.
        rows.back().push_back(below(random, below(random, 3) == 0 ? std::min<int64_t>(3, num_rows) : num_rows));
      }
      if (below(random, 4) != 0) std::sort(rows.back().begin(), rows.back().end());
      vectors.emplace_back(static_cast<size_t>(count * dim), 7.0f);
    }
    point();
  }
  AskedData(const AskedData& other) : rows(other.rows), vectors(other.vectors) { point(); }
  AskedData& operator=(const AskedData&) = delete;

  void point() {
    asked.clear();
    for (size_t k = 0; k < rows.size(); ++k) {
      asked.push_back({rows[k].data(), static_cast<int64_t>(rows[k].size()), vectors[k].data()});
    }
  }
  void look_up(const demb::Table& table) {
    std::vector<demb::LookupJob> jobs;
    for (const demb::AskedRows& a : asked) {
      demb::Bags bags;
      bags.ids = a.rows;
      bags.num_ids = bags.num_bags = a.count;
      jobs.push_back({table, bags, a.out, table.dim, nullptr});
    }
    demb::look_up(jobs.data(), static_cast<int64_t>(jobs.size()), InvalidIds::kRaise, kSerial);
  }
  bool same(const AskedData& other) const {
    for (size_t k = 0; k < vectors.size(); ++k) {
      if (!same_bits(vectors[k], other.vectors[k])) return false;
    }
    return true;
  }
};

// One table, its gradients and what is asked of it.
struct Case {
  GradientData gradients;
  TargetData target;
  AskedData asked;
  NamedRule rule;

  void one_after_the_other() {
    demb::OccurrenceSorter sorter;
    sorter.sort(&gradients.gradient, 1, InvalidIds::kRaise, kSerial);
    const demb::UpdateJob job{&sorter.of(0), target.target, rule.step};
    demb::update_rows(&job, 1, kSerial);
    asked.look_up(target.target.table);
  }
  demb::UpdateForwardJob job() const {
    return {gradients.gradient, target.target, rule.step, asked.asked.data(), static_cast<int64_t>(asked.asked.size())};
  }
};

Case make_case(Random& random, const NamedRule& rule, int64_t rows, int32_t dim, DType dtype,
               const std::vector<int64_t>& updated, const std::vector<int64_t>& asked) {
  std::vector<BagShape> shapes;
  for (int64_t count : updated) shapes.push_back({count, 1, false, false, true, 0, Combiner::kSum});
  Case made{GradientData(random, rows, dim, shapes, 0), TargetData(random, rule, rows, dim, dtype, dim % 2 == 0),
            AskedData(random, rows, dim, asked), rule};
  // A sum that begins with 0 makes 0 of -0; rows that nobody updates have some.
  for (int64_t row = 0; row < rows; row += 5) {
    char* at = made.target.target.table.data + row * made.target.target.table.stride;
    std::memset(at, 0, static_cast<size_t>(demb::bytes_of(dtype)));
    at[demb::bytes_of(dtype) - 1] = '\x80';
  }
  return made;
}

void check_cases(const std::vector<Case>& cases) {
  std::vector<Case> expected(cases);
  for (Case& c : expected) c.one_after_the_other();
  for (int threads : {1, 2, 3}) {
    std::vector<Case> fused(cases);
    std::vector<demb::UpdateForwardJob> jobs;
    for (const Case& c : fused) jobs.push_back(c.job());
    const ThreadExecutor executor(threads);
    CHECK(demb::update_forward(jobs.data(), static_cast<int64_t>(jobs.size()), executor) == 0);
    for (size_t k = 0; k < cases.size(); ++k) {
      CHECK(fused[k].target.same(expected[k].target), "threads %d table %zu", threads, k);
      CHECK(fused[k].asked.same(expected[k].asked), "threads %d table %zu", threads, k);
    }
  }
  for (const Case& c : expected) {
    for (const auto& vectors : c.asked.vectors) digest().add(vectors);
  }
}

}  // namespace

TEST(fused_updates_and_lookups_equal_both_for_every_rule) {
  Random random(51);
  for (NamedRule rule : all_rules()) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (int32_t dim : {1, 7, 8, 16, 20, 32, 64, 128}) {
        rule.step.stochastic_rounding = dim % 16 == 0;
        rule.step.clip = dim == 64 ? 0.5f : -1.0f;
        context() = rule.name + " dtype " + std::to_string(static_cast<int>(dtype)) + " dim " + std::to_string(dim);
        std::vector<Case> cases;
        cases.push_back(make_case(random, rule, 40, dim, dtype, {30, 9}, {20, 0, 31}));
        check_cases(cases);
      }
    }
  }
}

TEST(fused_tables_of_any_lengths_equal_both) {
  Random random(52);
  const std::vector<NamedRule> rules = all_rules();
  const std::vector<int64_t> lengths = {0, 1, 40, 600, 9000};
  for (int variant = 0; variant < 25; ++variant) {
    context() = "variant " + std::to_string(variant);
    const auto length = [&] { return lengths[static_cast<size_t>(below(random, 5))]; };
    std::vector<Case> cases;
    for (int64_t tables = below(random, 4); tables >= 0; --tables) {
      const int64_t rows = std::vector<int64_t>{1, 50, 3000, 100000}[static_cast<size_t>(below(random, 4))];
      cases.push_back(make_case(random, rules[static_cast<size_t>(variant) % 6], rows, 16, DType::kFloat32,
                                {length(), length()}, {length(), length(), length()}));
    }
    check_cases(cases);
  }
  context() = "nothing";
  CHECK(demb::update_forward(nullptr, 0, kSerial) == 0);
  // One source each, whose gradients are brought near.
  std::vector<Case> cases;
  cases.push_back(make_case(random, rules[3], 50000, 16, DType::kFloat32, {30000}, {20000}));
  context() = "long";
  check_cases(cases);
}

TEST(rows_asked_that_are_not_there_are_counted) {
  Random random(53);
  for (int64_t wrong : {int64_t{-1}, int64_t{9}, int64_t{1} << 40}) {
    Case c = make_case(random, all_rules()[0], 9, 8, DType::kFloat32, {20}, {4, 3});
    c.asked.rows[0] = wrong < 0 ? std::vector<int64_t>{wrong, 2, 3, 8} : std::vector<int64_t>{2, 3, 8, wrong};
    c.asked.rows[1] = {5, wrong, 0};
    c.asked.point();
    const demb::UpdateForwardJob job = c.job();
    CHECK(demb::update_forward(&job, 1, kSerial) == 2);
  }
}
