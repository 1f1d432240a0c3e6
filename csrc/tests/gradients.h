// Random gradients of bags' vectors, and what each row of a table gets of them.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "core/occurrences.h"
#include "tests/naive.h"

namespace demb_test {

// All features of one table with the gradients of their vectors.
struct GradientData {
  std::vector<std::unique_ptr<BagData>> bags;
  std::vector<std::vector<float>> grads;
  std::vector<demb::GradientSource> sources;
  demb::TableGradient gradient;

  GradientData(Random& random, int64_t num_rows, int32_t dim, const std::vector<BagShape>& shapes, int64_t gap) {
    gradient.num_rows = num_rows;
    gradient.dim = dim;
    for (const BagShape& shape : shapes) {
      add(random, std::make_unique<BagData>(make_bags(random, shape, num_rows)), gap);
    }
  }
  void add(Random& random, std::unique_ptr<BagData> feature, int64_t gap) {
    const int64_t stride = gradient.dim + gap;
    // Exactly what the last vector needs, for the address sanitizer.
    grads.emplace_back(static_cast<size_t>(std::max<int64_t>(0, feature->bags.num_bags * stride - gap)));
    for (float& x : grads.back()) x = uniform(random);
    sources.push_back({feature->bags, nullptr, stride});
    bags.push_back(std::move(feature));
    point();
  }
  GradientData(const GradientData& other) : grads(other.grads), sources(other.sources), gradient(other.gradient) {
    for (const auto& b : other.bags) bags.push_back(std::make_unique<BagData>(*b));
    point();
  }
  GradientData& operator=(const GradientData&) = delete;

 private:
  void point() {
    for (size_t s = 0; s < sources.size(); ++s) {
      sources[s].bags = bags[s]->bags;
      sources[s].grads = grads[s].data();
    }
    gradient.sources = sources.data();
    gradient.num_sources = static_cast<int64_t>(sources.size());
  }
};

struct NaiveSum {
  std::vector<double> value;
  std::vector<double> size;  // Σ |terms|
  int64_t terms = 0;
  // What float32 sums in any order may be away from it; the factors themselves are sums over bags.
  double bound(size_t d) const { return 0x1p-23 * size[d] * (16.0 + static_cast<double>(terms)); }
};

// By row, for the rows that occur.
inline std::map<int64_t, NaiveSum> naive_gradients(const demb::TableGradient& table, demb::InvalidIds policy) {
  std::map<int64_t, NaiveSum> sums;
  const auto dim = static_cast<size_t>(table.dim);
  for (int64_t s = 0; s < table.num_sources; ++s) {
    const demb::GradientSource& source = table.sources[s];
    const demb::Bags& bags = source.bags;
    for (int64_t b = 0; b < bags.num_bags; ++b) {
      const double scale = naive_scale(bags, b, table.num_rows, policy);
      const double condition = naive_condition(bags, b, table.num_rows, policy);
      for (int64_t i = bags.begin(b); i < bags.begin(b + 1); ++i) {
        const int64_t row = naive_row(bags.id(i), table.num_rows, policy);
        if (row < 0) continue;
        NaiveSum& sum = sums[row];
        sum.value.resize(dim);
        sum.size.resize(dim);
        ++sum.terms;
        const double factor = scale * (bags.weights != nullptr ? bags.weights[i] : 1.0);
        for (size_t d = 0; d < dim; ++d) {
          const double term = factor * source.grads[b * source.grad_stride + static_cast<int64_t>(d)];
          sum.value[d] += term;
          sum.size[d] += std::fabs(term) * condition;
        }
      }
    }
  }
  return sums;
}

}  // namespace demb_test
