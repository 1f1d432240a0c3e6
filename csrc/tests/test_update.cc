// Row rules against the naive ones; updates by sorted occurrences against updates by sums; threads; rounding.
#include <numeric>
#include <vector>

#include "core/sums.h"
#include "core/update.h"
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

// Every third row, with its gradient.
struct Summed {
  std::vector<int64_t> rows;
  std::vector<float> sums;
};

Summed random_sums(Random& random, int64_t num_rows, int32_t dim) {
  Summed summed;
  for (int64_t row = num_rows - 1; row >= 0; row -= 3) {
    summed.rows.push_back(row);
    for (int32_t d = 0; d < dim; ++d) summed.sums.push_back(uniform(random));
  }
  return summed;
}

double clipped(double g, float clip) { return clip < 0 ? g : std::min<double>(std::max<double>(g, -clip), clip); }

// What a dtype and `error` in float32 may be away from `want`.
bool close(double got, double want, DType dtype, bool by_chance) {
  const double rounding = dtype == DType::kFloat32 ? 0 : epsilon(dtype) * (by_chance ? 1.01 : 0.51);
  return std::fabs(got - want) <= 3e-6 * (1 + std::fabs(want)) + rounding * std::fabs(want);
}

void check_row(const NamedRule& rule, const TargetData& before, const TargetData& after, int64_t row, const float* sums,
               const float* statistic) {
  const int32_t dim = before.target.table.dim;
  double mean = 0;
  for (int32_t d = 0; d < dim; ++d) mean += std::pow(clipped(sums[d], rule.step.clip), 2) / dim;
  if (statistic != nullptr) mean = *statistic;
  for (int32_t d = 0; d < dim; ++d) {
    double state[demb::kMaxSlots] = {};
    const int32_t at = rule.rowwise ? 0 : d;
    for (int s = 0; s < rule.slots(); ++s) state[s] = *before.slot(s, row, at);
    const double want = naive_rule(rule.step, before.value(row, d), clipped(sums[d], rule.step.clip), state, mean);
    const double got = after.value(row, d);
    CHECK(close(got, want, before.target.table.dtype, rule.step.stochastic_rounding), "row %ld d %d: %.9g, want %.9g",
          static_cast<long>(row), d, got, want);
    for (int s = 0; s < rule.slots(); ++s) {
      const double slot = *after.slot(s, row, at);
      CHECK(close(slot, state[s], DType::kFloat32, false), "slot %d row %ld d %d: %.9g, want %.9g", s,
            static_cast<long>(row), d, slot, state[s]);
    }
  }
}

void check_untouched(const TargetData& before, const TargetData& after, int64_t row) {
  const demb::UpdateTarget& t = before.target;
  CHECK(std::memcmp(before.at(row, 0), after.at(row, 0), static_cast<size_t>(t.table.dim * demb::bytes_of(t.table.dtype))) == 0);
  for (int s = 0; s < t.num_slots; ++s) {
    CHECK(std::memcmp(before.slot(s, row, 0), after.slot(s, row, 0), static_cast<size_t>(t.slots[s].width * 4)) == 0);
  }
}

void check_rule(Random& random, const NamedRule& rule, int32_t dim, DType dtype, bool interleaved) {
  constexpr int64_t kRows = 20;
  const TargetData before(random, rule, kRows, dim, dtype, interleaved);
  const Summed summed = random_sums(random, kRows, dim);
  TargetData after(before);
  CHECK(demb::slots_fit(rule.step, after.target));
  const auto count = static_cast<int64_t>(summed.rows.size());
  demb::update_rows(summed.rows.data(), count, summed.sums.data(), nullptr, after.target, rule.step, kSerial);
  std::vector<bool> touched(kRows);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = summed.rows[static_cast<size_t>(i)];
    check_row(rule, before, after, row, summed.sums.data() + i * dim, nullptr);
    touched[static_cast<size_t>(row)] = true;
  }
  for (int64_t row = 0; row < kRows; ++row) {
    if (!touched[static_cast<size_t>(row)]) check_untouched(before, after, row);
  }
  digest().add(after.bytes);
  for (const auto& slot : after.slots) digest().add(slot);
}

}  // namespace

TEST(every_rule_equals_naive) {
  Random random(21);
  for (NamedRule rule : all_rules()) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (int32_t dim : {1, 6, 8, 16, 21, 32, 64, 128}) {
        for (int variant = 0; variant < 4; ++variant) {
          rule.step.clip = (variant & 1) != 0 ? 0.3f : -1.0f;
          rule.step.weight_decay = (variant & 1) != 0 ? 0.05f : 0.0f;
          rule.step.stochastic_rounding = (variant & 2) != 0;
          context() = rule.name + " dtype " + std::to_string(static_cast<int>(dtype)) + " dim " + std::to_string(dim) +
                      " variant " + std::to_string(variant);
          check_rule(random, rule, dim, dtype, variant % 2 == 0);
        }
      }
    }
  }
}

TEST(rowwise_adagrad_takes_the_statistics_it_is_given) {
  Random random(22);
  const NamedRule rule = all_rules()[4];
  const TargetData before(random, rule, 9, 16, DType::kFloat32, false);
  TargetData after(before);
  const Summed summed = random_sums(random, 9, 16);
  const std::vector<float> statistics = {0.5f, 0.25f, 4.0f};
  demb::update_rows(summed.rows.data(), 3, summed.sums.data(), statistics.data(), after.target, rule.step, kSerial);
  for (size_t i = 0; i < 3; ++i) {
    check_row(rule, before, after, summed.rows[i], summed.sums.data() + 16 * i, &statistics[i]);
  }
}

TEST(sorted_updates_are_summed_updates_on_any_number_of_threads) {
  Random random(23);
  for (NamedRule rule : all_rules()) {
    for (int32_t dim : {5, 16, 64, 128}) {
      for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        rule.step.stochastic_rounding = dim == 16;
        context() = rule.name + " dim " + std::to_string(dim);
        const std::vector<BagShape> shapes = {{4000, 1, false, false, true, 0, Combiner::kSum},
                                              {300, 4, true, dim == 5, false, 2, Combiner::kMean}};
        const GradientData gradients(random, 700, dim, shapes, 0);
        const TargetData before(random, rule, 700, dim, dtype, dim == 64);
        demb::OccurrenceSorter sorter;
        sorter.sort(&gradients.gradient, 1, InvalidIds::kZero, kSerial);
        const demb::Occurrences& o = sorter.of(0);
        std::vector<int64_t> rows(static_cast<size_t>(demb::count_rows(o, kSerial)));
        std::vector<float> sums(rows.size() * static_cast<size_t>(dim));
        demb::sum_rows(o, dim, rows.data(), sums.data(), kSerial);
        TargetData summed(before);
        demb::update_rows(rows.data(), static_cast<int64_t>(rows.size()), sums.data(), nullptr, summed.target, rule.step,
                          kSerial);
        CHECK(!summed.same(before));
        for (int threads : {1, 2, 3}) {
          const ThreadExecutor executor(threads);
          TargetData sorted(before), again(before);
          const demb::UpdateJob job{&o, sorted.target, rule.step};
          demb::update_rows(&job, 1, executor);
          CHECK(sorted.same(summed), "threads %d", threads);
          demb::update_rows(rows.data(), static_cast<int64_t>(rows.size()), sums.data(), nullptr, again.target, rule.step,
                            executor);
          CHECK(again.same(summed), "threads %d", threads);
        }
        digest().add(summed.bytes);
      }
    }
  }
}

TEST(a_nan_gradient_is_not_clipped_away) {
  Random random(24);
  for (NamedRule rule : all_rules()) {
    rule.step.clip = 0.5f;
    context() = rule.name;
    TargetData data(random, rule, 1, 8, DType::kFloat32, false);
    const int64_t row = 0;
    std::vector<float> sums(8, 0.1f);
    sums[3] = std::nanf("");
    demb::update_rows(&row, 1, sums.data(), nullptr, data.target, rule.step, kSerial);
    CHECK(std::isnan(data.value(0, 3)), "%g", data.value(0, 3));
    CHECK(rule.rowwise || !std::isnan(data.value(0, 2)));
  }
}

TEST(slots_that_do_not_fit_are_refused) {
  Random random(25);
  for (const NamedRule& rule : all_rules()) {
    TargetData data(random, rule, 2, 16, DType::kFloat32, false);
    CHECK(demb::slots_fit(rule.step, data.target));
    data.target.num_slots += 1;
    CHECK(!demb::slots_fit(rule.step, data.target));
    data.target.num_slots -= 1;
    if (data.target.num_slots == 0) continue;
    data.target.slots[0].width += 1;
    CHECK(!demb::slots_fit(rule.step, data.target));
  }
}

// SGD with a step of a quarter of a unit in the last place: rounding to nearest loses it, rounding by chance keeps it on
// the average, wherever the row lies, and a table cut into rows or columns rounds as the whole one.
TEST(stochastic_rounding_is_right_on_the_average_and_does_not_see_cuts) {
  Random random(26);
  NamedRule rule = all_rules()[0];
  rule.step.learning_rate = rule.step.rate = 1.0f;
  constexpr int32_t kDim = 16;
  constexpr int64_t kRows = 4000;
  TargetData data(random, rule, kRows, kDim, DType::kBFloat16, false);
  for (size_t i = 0; i < data.bytes.size(); i += 2) data.bytes[i] = '\x80', data.bytes[i + 1] = '\x3f';  // 1.0
  std::vector<int64_t> rows(kRows);
  std::iota(rows.begin(), rows.end(), 0);
  const std::vector<float> sums(kRows * kDim, -0.25f * 0x1p-7f);
  TargetData nearest(data);
  demb::update_rows(rows.data(), kRows, sums.data(), nullptr, nearest.target, rule.step, kSerial);
  CHECK(nearest.same(data));

  rule.step.stochastic_rounding = true;
  rule.step.seed = 5;
  TargetData whole(data);
  demb::update_rows(rows.data(), kRows, sums.data(), nullptr, whole.target, rule.step, kSerial);
  for (int32_t d = 0; d < kDim; ++d) {
    double ups = 0;
    for (int64_t row = 0; row < kRows; ++row) ups += whole.value(row, d) > 1.0;
    // Five standard deviations of 4,000 throws at a quarter.
    CHECK(std::fabs(ups / kRows - 0.25) < 5 * std::sqrt(0.25 * 0.75 / kRows), "column %d: %g", d, ups / kRows);
  }
  // Rows 1, 4, 7, … and columns 8 … 15 of the whole table as a table of its own.
  NamedRule cut = rule;
  cut.step.first_row = 1;
  cut.step.row_step = 3;
  cut.step.first_column = 8;
  TargetData part(random, cut, 100, 8, DType::kBFloat16, false);
  for (size_t i = 0; i < part.bytes.size(); i += 2) part.bytes[i] = '\x80', part.bytes[i + 1] = '\x3f';
  demb::update_rows(rows.data(), 100, sums.data(), nullptr, part.target, cut.step, kSerial);
  for (int64_t row = 0; row < 100; ++row) {
    for (int32_t d = 0; d < 8; ++d) CHECK(part.value(row, d) == whole.value(1 + 3 * row, 8 + d));
  }
  // Another step and another seed throw anew.
  for (int change = 0; change < 2; ++change) {
    NamedRule other = rule;
    if (change == 0) other.step.step = 4;
    else other.step.seed = 6;
    TargetData thrown(data);
    demb::update_rows(rows.data(), kRows, sums.data(), nullptr, thrown.target, other.step, kSerial);
    int64_t same = 0;
    for (int64_t row = 0; row < kRows; ++row) same += thrown.value(row, 0) == whole.value(row, 0);
    // Independent throws agree in 10 of 16 cases.
    CHECK(std::fabs(static_cast<double>(same) / kRows - 0.625) < 0.05, "%ld", static_cast<long>(same));
  }
}
