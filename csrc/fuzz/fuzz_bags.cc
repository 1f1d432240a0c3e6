// Any bytes as tables, ids, offsets and weights: the grouped lookup, sums of duplicates and a row update against the
// naive ones. Ids may be negative or huge, offsets may fall, weights may be NaN.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include "core/lookup.h"
#include "core/sums.h"
#include "core/update.h"
#include "tests/check.h"
#include "tests/gradients.h"
#include "tests/thread_executor.h"

using namespace demb_test;  // NOLINT: this is a test
using demb::InvalidIds;

namespace {

// Reads the input from its start; behind its end everything is 0.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  template <typename T>
  T take() {
    T value{};
    const size_t n = std::min(sizeof(T), size_);
    if (n > 0) std::memcpy(&value, data_, n);
    data_ += n;
    size_ -= n;
    return value;
  }
  int64_t below(int64_t n) { return take<uint8_t>() % n; }

 private:
  const uint8_t* data_;
  size_t size_;
};

int64_t take_id(Bytes& in, int64_t num_rows, bool is_64) {
  const int64_t kind = in.below(8);
  if (kind > 0) return in.below(num_rows);
  return is_64 ? in.take<int64_t>() : in.take<int32_t>();
}

float take_weight(Bytes& in) {
  const int64_t kind = in.below(8);
  return kind > 0 ? static_cast<float>(in.take<int8_t>()) / 64.0f : in.take<float>();
}

// Offsets as a caller may hand them in: mostly right.
bool take_splits(Bytes& in, BagData& data) {
  const int64_t num_bags = data.bags.num_bags;
  data.splits.push_back(0);
  for (int64_t b = 0; b < num_bags; ++b) data.splits.push_back(data.splits.back() + in.below(4));
  data.bags.num_ids = data.splits.back();
  if (in.below(4) == 0) {
    const auto at = static_cast<size_t>(in.below(num_bags + 1));
    data.splits[at] = in.below(2) == 0 ? in.take<int64_t>() : in.take<int8_t>();
  }
  bool valid = data.splits.front() == 0 && data.splits.back() == data.bags.num_ids;
  for (size_t b = 0; b + 1 < data.splits.size(); ++b) valid = valid && data.splits[b] <= data.splits[b + 1];
  CHECK(demb::splits_are_valid(data.splits.data(), num_bags, data.bags.num_ids) == valid);
  return valid;
}

// A feature; null where its offsets are invalid, which a caller has to ask before it calls.
std::unique_ptr<BagData> take_bags(Bytes& in, int64_t num_rows) {
  auto data = std::make_unique<BagData>();
  const auto flags = in.take<uint8_t>();
  data->bags.combiner = static_cast<demb::Combiner>(in.below(3));
  data->bags.ids_are_64 = (flags & 1) != 0;
  data->bags.num_bags = in.below(24);
  data->bags.hotness = in.below(5);
  data->bags.num_ids = data->bags.num_bags * data->bags.hotness;
  if ((flags & 2) != 0 && !take_splits(in, *data)) return nullptr;
  for (int64_t i = 0; i < data->bags.num_ids; ++i) {
    const int64_t id = take_id(in, num_rows, data->bags.ids_are_64);
    if (data->bags.ids_are_64) data->ids64.push_back(id);
    else data->ids32.push_back(static_cast<int32_t>(id));
    if ((flags & 4) != 0) data->weights.push_back(take_weight(in));
  }
  data->point();
  return data;
}

// Whether double arithmetic tells what float32 should give: no weight that is no number, overflows or nearly vanishes.
bool tame(const demb::Bags& bags, int64_t bag) {
  for (int64_t i = bags.begin(bag); bags.weights != nullptr && i < bags.begin(bag + 1); ++i) {
    const float w = std::fabs(bags.weights[i]);
    if (w != 0.0f && !(w > 1e-10f && w < 1e10f)) return false;
  }
  return true;
}

bool tame(const GradientData& data, InvalidIds policy) {
  for (const demb::GradientSource& source : data.sources) {
    int64_t count, first;
    naive_invalid(source.bags, data.gradient.num_rows, &count, &first);
    // Under kRaise such a step ends in an error, and its sums do not matter.
    if (policy == InvalidIds::kRaise && count > 0) return false;
    for (int64_t b = 0; b < source.bags.num_bags; ++b) {
      if (!tame(source.bags, b)) return false;
    }
  }
  return true;
}

void check_lookup(const TableData& data, const demb::Bags& bags, InvalidIds policy, const demb::Executor& executor) {
  const int32_t dim = data.table.dim;
  std::vector<float> out(static_cast<size_t>(bags.num_bags * dim), std::nanf(""));
  demb::InvalidReport report;
  const demb::LookupJob job{data.table, bags, out.data(), dim, &report};
  demb::look_up(&job, 1, policy, executor);
  int64_t count, first;
  naive_invalid(bags, data.table.num_rows, &count, &first);
  CHECK(report.count == count && report.first == first);
  for (int64_t b = 0; b < bags.num_bags; ++b) {
    if (!tame(bags, b)) continue;
    for (int32_t d = 0; d < dim; ++d) {
      double size;
      const double want = naive_element(data, bags, b, d, policy, &size);
      const double got = out[static_cast<size_t>(b * dim + d)];
      const double bound = naive_bound(bags, b, data.table.num_rows, policy, size);
      CHECK(std::fabs(got - want) <= bound, "bag %ld d %d: %g, want %g", static_cast<long>(b), d, got, want);
    }
  }
}

struct Updated {
  TableData table;
  std::vector<float> slot;
  demb::UpdateTarget target;

  Updated(const TableData& from, int32_t width) : table(from), slot(static_cast<size_t>(from.table.num_rows * width), 0.1f) {
    target.table = table.table;
    target.num_slots = width > 0 ? 1 : 0;
    target.slots[0] = {reinterpret_cast<char*>(slot.data()), width * 4, width};
  }
};

bool same_number(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Updating by sorted occurrences is updating by their sums, and rows that do not occur stay as they are.
void check_update(const TableData& data, const GradientData& gradients, const demb::RuleStep& rule, InvalidIds policy,
                  const demb::Executor& executor) {
  demb::OccurrenceSorter sorter;
  sorter.sort(&gradients.gradient, 1, policy, executor);
  const demb::Occurrences& o = sorter.of(0);
  const int32_t dim = data.table.dim;
  const int64_t num_rows = demb::count_rows(o, executor);
  std::vector<int64_t> rows(static_cast<size_t>(num_rows));
  std::vector<float> sums(static_cast<size_t>(num_rows * dim));
  demb::sum_rows(o, dim, rows.data(), sums.data(), executor);
  const auto want = naive_gradients(gradients.gradient, policy);
  CHECK(rows.size() == want.size());
  size_t at = 0;
  for (const auto& [row, sum] : want) {
    CHECK(rows[at] == row);
    for (size_t d = 0; d < static_cast<size_t>(dim) && tame(gradients, policy); ++d) {
      const double got = sums[at * static_cast<size_t>(dim) + d];
      CHECK(std::fabs(got - sum.value[d]) <= sum.bound(d), "row %ld: %g, want %g", static_cast<long>(row), got, sum.value[d]);
    }
    ++at;
  }
  const int32_t width = rule.kind == demb::RuleKind::kAdagrad ? dim : rule.kind == demb::RuleKind::kSgd ? 0 : 1;
  Updated one(data, width), two(data, width);
  CHECK(demb::slots_fit(rule, one.target));
  const demb::UpdateJob job{&o, one.target, rule};
  demb::update_rows(&job, 1, executor);
  demb::update_rows(rows.data(), num_rows, sums.data(), nullptr, two.target, rule, executor);
  const std::set<int64_t> touched(rows.begin(), rows.end());
  for (int64_t row = 0; row < data.table.num_rows; ++row) {
    for (int32_t d = 0; d < dim; ++d) {
      const double now = one.table.value(row, d);
      CHECK(same_number(now, two.table.value(row, d)));
      if (touched.count(row) == 0) CHECK(same_number(now, data.value(row, d)), "row %ld", static_cast<long>(row));
    }
    for (int32_t d = 0; d < width; ++d) {
      const float now = one.slot[static_cast<size_t>(row * width + d)];
      CHECK(same_number(now, two.slot[static_cast<size_t>(row * width + d)]));
      if (touched.count(row) == 0) CHECK(now == 0.1f);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes in(data, size);
  constexpr int32_t kDims[] = {1, 3, 8, 13, 16, 32, 40, 64, 128};
  constexpr demb::RuleKind kRules[] = {demb::RuleKind::kSgd, demb::RuleKind::kAdagrad, demb::RuleKind::kRowwiseAdagrad};
  Random random(in.take<uint16_t>());
  const auto policy = static_cast<InvalidIds>(in.below(3));
  const int32_t dim = kDims[in.below(9)];
  const TableData table(random, 1 + in.below(60), dim, static_cast<demb::DType>(in.below(3)), 4 * in.below(3));
  demb::RuleStep rule;
  rule.kind = kRules[in.below(3)];
  rule.learning_rate = rule.rate = 0.1f;
  rule.hyper[0] = 1e-7f;
  rule.stochastic_rounding = in.below(2) == 0;
  const demb::SerialExecutor serial;
  const ThreadExecutor threaded(3);
  const demb::Executor& executor = in.below(4) == 0 ? static_cast<const demb::Executor&>(threaded) : serial;
  GradientData gradients(random, table.table.num_rows, dim, {}, 0);
  for (int64_t features = 1 + in.below(3); features > 0; --features) {
    auto bags = take_bags(in, table.table.num_rows);
    if (bags == nullptr) continue;
    check_lookup(table, bags->bags, policy, executor);
    gradients.add(random, std::move(bags), in.below(3));
  }
  check_update(table, gradients, rule, policy, executor);
  return 0;
}
