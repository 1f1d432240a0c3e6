// Dot interaction and its gradient against loops in double; any number of threads.
#include <vector>

#include "core/interaction.h"
#include "tests/check.h"
#include "tests/naive.h"
#include "tests/thread_executor.h"

using namespace demb_test;  // NOLINT: this is a test

namespace {

using Vectors = std::vector<std::vector<float>>;

Vectors random_vectors(Random& random, int64_t count, int64_t size) {
  Vectors all(static_cast<size_t>(count), std::vector<float>(static_cast<size_t>(size)));
  for (auto& v : all) {
    for (float& x : v) x = uniform(random);
  }
  return all;
}

template <typename T, typename V>
std::vector<T> pointers(V& vectors) {
  std::vector<T> all;
  for (auto& v : vectors) all.push_back(v.data());
  return all;
}

void check_shape(Random& random, const demb::InteractionShape& shape, const demb::Executor& executor) {
  const int64_t n = shape.count, dim = shape.dim;
  const Vectors in = random_vectors(random, n, shape.batch * dim);
  std::vector<float> out(static_cast<size_t>(shape.batch * shape.width()), std::nanf(""));
  const Vectors up = random_vectors(random, 1, shape.batch * shape.width());
  Vectors gradients(in.size(), std::vector<float>(in[0].size(), std::nanf("")));
  demb::interact(shape, pointers<const float*>(in).data(), out.data(), executor);
  demb::interact_gradient(shape, up[0].data(), pointers<const float*>(in).data(), pointers<float*>(gradients).data(),
                          executor);
  const double bound = 1e-6 * static_cast<double>(n + dim);
  for (int64_t b = 0; b < shape.batch; ++b) {
    const auto at = [&](int64_t v, int64_t d) -> double { return in[static_cast<size_t>(v)][static_cast<size_t>(b * dim + d)]; };
    std::vector<double> want(static_cast<size_t>(n * dim));
    auto column = static_cast<size_t>(b * shape.width());
    for (int64_t d = 0; shape.keep_first && d < dim; ++d, ++column) {
      CHECK(out[column] == static_cast<float>(at(0, d)));
      want[static_cast<size_t>(d)] += up[0][column];
    }
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < i; ++j, ++column) {
        double dot = 0;
        for (int64_t d = 0; d < dim; ++d) {
          dot += at(i, d) * at(j, d);
          want[static_cast<size_t>(i * dim + d)] += at(j, d) * up[0][column];
          want[static_cast<size_t>(j * dim + d)] += at(i, d) * up[0][column];
        }
        CHECK(std::fabs(out[column] - dot) <= bound, "%g %g", out[column], dot);
      }
    }
    for (int64_t v = 0; v < n; ++v) {
      for (int64_t d = 0; d < dim; ++d) {
        const double got = gradients[static_cast<size_t>(v)][static_cast<size_t>(b * dim + d)];
        CHECK(std::fabs(got - want[static_cast<size_t>(v * dim + d)]) <= bound, "vector %ld d %ld", static_cast<long>(v),
              static_cast<long>(d));
      }
    }
  }
}

}  // namespace

TEST(interaction_and_its_gradient_equal_naive) {
  Random random(51);
  const demb::SerialExecutor serial;
  const ThreadExecutor threaded(3);
  for (int64_t batch : {0, 1, 70}) {
    for (int64_t count : {1, 2, 9, 27}) {
      for (int64_t dim : {1, 4, 16, 19, 64}) {
        for (bool keep : {false, true}) {
          context() = "count " + std::to_string(count) + " dim " + std::to_string(dim) + (keep ? " kept" : "");
          check_shape(random, {batch, count, dim, keep}, serial);
          check_shape(random, {batch, count, dim, keep}, threaded);
        }
      }
    }
  }
}
