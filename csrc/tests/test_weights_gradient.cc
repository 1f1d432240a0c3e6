// Gradients of weights against differences of the lookup itself, in double.
#include <vector>

#include "core/weights_gradient.h"
#include "tests/check.h"
#include "tests/naive.h"
#include "tests/thread_executor.h"

using namespace demb_test;  // NOLINT: this is a test
using demb::InvalidIds;

namespace {

// Σ_d gradient_d * (bag's vector)_d as a function of the weights given in double.
double objective(const TableData& table, const demb::Bags& bags, int64_t bag, InvalidIds policy,
                 const std::vector<double>& weights, const float* gradient) {
  double sum = 0, squares = 0, dots = 0;
  for (int64_t i = bags.begin(bag); i < bags.begin(bag + 1); ++i) {
    const int64_t row = naive_row(bags.id(i), table.table.num_rows, policy);
    if (row < 0) continue;
    const double w = weights[static_cast<size_t>(i)];
    sum += w;
    squares += w * w;
    for (int32_t d = 0; d < table.table.dim; ++d) dots += w * table.value(row, d) * gradient[d];
  }
  if (bags.combiner == demb::Combiner::kSum) return dots;
  return dots / (bags.combiner == demb::Combiner::kMean ? sum : std::sqrt(squares));
}

void check_bag(const TableData& table, const demb::Bags& bags, int64_t bag, InvalidIds policy, const float* gradient,
               const std::vector<float>& got) {
  std::vector<double> weights(bags.weights, bags.weights + bags.num_ids);
  for (int64_t i = bags.begin(bag); i < bags.begin(bag + 1); ++i) {
    const auto at = static_cast<size_t>(i);
    constexpr double kStep = 1e-5;
    const double w = weights[at];
    weights[at] = w + kStep;
    const double above = objective(table, bags, bag, policy, weights, gradient);
    weights[at] = w - kStep;
    const double under = objective(table, bags, bag, policy, weights, gradient);
    weights[at] = w;
    double want = (above - under) / (2 * kStep);
    if (naive_row(bags.id(i), table.table.num_rows, policy) < 0) want = 0;
    CHECK(std::fabs(got[at] - want) <= 2e-4 * (1 + std::fabs(want)), "bag %ld id %ld: %g, want %g",
          static_cast<long>(bag), static_cast<long>(i), got[at], want);
  }
}

}  // namespace

TEST(gradients_of_weights_equal_differences) {
  Random random(41);
  const demb::SerialExecutor serial;
  const ThreadExecutor threaded(3);
  for (int variant = 0; variant < 108; ++variant) {
    const auto combiner = static_cast<demb::Combiner>(variant % 3);
    const auto policy = static_cast<InvalidIds>(variant / 3 % 3);
    const auto dtype = static_cast<demb::DType>(variant / 9 % 3);
    const int32_t dim = std::vector<int32_t>{1, 8, 19, 64}[static_cast<size_t>(variant / 27)];
    context() = "variant " + std::to_string(variant);
    const TableData table(random, 20, dim, dtype);
    BagData data = make_bags(random, {40, 5, variant % 2 == 0, true, variant % 4 < 2, 15, combiner}, 20);
    // Positive, so that differences of means are well-behaved.
    for (float& w : data.weights) w = 1.5f + 0.4f * w;
    const int64_t stride = dim + variant % 3;
    std::vector<float> gradients(static_cast<size_t>(40 * stride - (stride - dim)));
    for (float& g : gradients) g = uniform(random);
    std::vector<float> out(static_cast<size_t>(data.bags.num_ids), std::nanf("")), again(out);
    demb::WeightsJob job{table.table, data.bags, gradients.data(), stride, out.data()};
    demb::weights_gradient(&job, 1, policy, serial);
    for (int64_t b = 0; b < 40; ++b) check_bag(table, data.bags, b, policy, gradients.data() + b * stride, out);
    job.out = again.data();
    demb::weights_gradient(&job, 1, policy, threaded);
    CHECK(same_bits(out, again));
    digest().add(out);
  }
}
