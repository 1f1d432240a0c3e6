// Every row rule for one element, in double, as the classes of optimizers/ have it; and tables with slots to try it on.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/update.h"
#include "tests/naive.h"

namespace demb_test {

struct NamedRule {
  std::string name;
  demb::RuleStep step;
  int row_wide_slots;
  bool rowwise = false;

  int slots() const { return rowwise ? 1 : row_wide_slots; }
};

inline NamedRule named(const std::string& name, demb::RuleKind kind, const std::vector<float>& hyper, int slots) {
  NamedRule rule{name, {}, slots};
  rule.step.kind = kind;
  rule.step.learning_rate = rule.step.rate = 0.1f;
  rule.step.step = 3;
  std::copy(hyper.begin(), hyper.end(), rule.step.hyper);
  if (kind == demb::RuleKind::kAdam || kind == demb::RuleKind::kAmsgrad) {
    rule.step.rate = static_cast<float>(0.1 * std::sqrt(1 - std::pow(1 - hyper[1], 3)) / (1 - std::pow(1 - hyper[0], 3)));
  }
  return rule;
}

inline std::vector<NamedRule> all_rules() {
  using Kind = demb::RuleKind;
  std::vector<NamedRule> rules = {
      named("sgd", Kind::kSgd, {}, 0),
      named("momentum", Kind::kMomentum, {0.9f}, 1),
      named("nesterov", Kind::kNesterov, {0.9f}, 1),
      named("adagrad", Kind::kAdagrad, {1e-7f}, 1),
      named("rowwise_adagrad", Kind::kRowwiseAdagrad, {1e-7f}, 0),
      named("adam", Kind::kAdam, {0.1f, 0.001f, 1e-7f}, 2),
      named("amsgrad", Kind::kAmsgrad, {0.1f, 0.001f, 1e-7f}, 3),
      named("rmsprop", Kind::kRmsprop, {0.9f, 0.0f, 1e-7f, 0.0f, 0.1f}, 1),
      named("rmsprop momentum", Kind::kRmsprop, {0.9f, 0.5f, 1e-7f, 0.0f, 0.1f}, 2),
      named("rmsprop centered", Kind::kRmsprop, {0.9f, 0.0f, 1e-7f, 1.0f, 0.1f}, 2),
      named("rmsprop momentum centered", Kind::kRmsprop, {0.9f, 0.5f, 1e-7f, 1.0f, 0.1f}, 3),
      named("ftrl", Kind::kFtrl, {-0.5f, 0.01f, 0.02f, 0.03f, 0.1f}, 2),
      named("ftrl power", Kind::kFtrl, {-0.7f, 0.0f, 0.0f, 0.0f, 0.0f}, 2),
  };
  rules[4].rowwise = true;
  return rules;
}

// One element: w and its slots s by gradient g. statistic: what the row-wise accumulator grows by.
inline double naive_rule(const demb::RuleStep& r, double w, double g, double* s, double statistic) {
  using Kind = demb::RuleKind;
  const double rate = r.learning_rate;
  const float* h = r.hyper;
  if (r.weight_decay != 0) w -= w * r.weight_decay * rate;
  switch (r.kind) {
    case Kind::kSgd: return w - rate * g;
    case Kind::kMomentum: s[0] = h[0] * s[0] - rate * g; return w + s[0];
    case Kind::kNesterov: s[0] = h[0] * s[0] - rate * g; return w + h[0] * s[0] - rate * g;
    case Kind::kAdagrad: s[0] += g * g; return w - rate * g / std::sqrt(s[0] + h[0]);
    case Kind::kRowwiseAdagrad: s[0] += statistic; return w - rate * g / std::sqrt(s[0] + h[0]);
    case Kind::kAdam:
    case Kind::kAmsgrad: {
      const double beta_1 = 1.0 - h[0], beta_2 = 1.0 - h[1];
      const double corrected = rate * std::sqrt(1 - std::pow(beta_2, r.step)) / (1 - std::pow(beta_1, r.step));
      s[0] = beta_1 * s[0] + h[0] * g;
      s[1] = beta_2 * s[1] + h[1] * g * g;
      if (r.kind == Kind::kAdam) return w - corrected * s[0] / (std::sqrt(s[1]) + h[2]);
      s[2] = std::max(s[2], s[1]);
      return w - corrected * s[0] / (std::sqrt(s[2]) + h[2]);
    }
    case Kind::kRmsprop: {
      const bool momentum = h[1] > 0, centered = h[3] != 0;
      s[0] = h[0] * s[0] + h[4] * g * g;
      double* average = s + 1 + momentum;
      if (centered) *average = h[0] * *average + h[4] * g;
      const double variance = centered ? s[0] - *average * *average : s[0];
      double increment = rate * g / std::sqrt(variance + h[2]);
      if (momentum) increment = s[1] = h[1] * s[1] + increment;
      return w - increment;
    }
    case Kind::kFtrl: {
      const double before = std::pow(s[0], -h[0]), l1 = h[1], l2 = h[2] + h[4] / (2 * rate);
      s[0] += g * g;
      const double after = std::pow(s[0], -h[0]);
      s[1] += g + 2.0 * h[3] * w - (after - before) / rate * w;
      return (std::min(std::max(s[1], -l1), l1) - s[1]) / (after / rate + 2 * l2);
    }
  }
  return NAN;
}

// A table and its slots: each in memory of its own, or a row's slots right behind the row.
struct TargetData {
  std::vector<char> bytes;
  std::vector<std::vector<float>> slots;
  std::vector<int64_t> offsets;  // of interleaved slots in a row
  demb::UpdateTarget target;

  TargetData(Random& random, const NamedRule& rule, int64_t rows, int32_t dim, demb::DType dtype, bool interleaved) {
    const int32_t width = rule.rowwise ? 1 : dim;
    int64_t stride = (dim * demb::bytes_of(dtype) + 3) / 4 * 4;
    for (int s = 0; s < rule.slots(); ++s) {
      offsets.push_back(stride);
      if (interleaved) stride += 4 * width;
      else slots.emplace_back(static_cast<size_t>(rows * width));
      target.slots[s] = {nullptr, interleaved ? 0 : 4 * width, width};
    }
    target.num_slots = rule.slots();
    target.table = {nullptr, stride, rows, dim, dtype};
    // Random values of the dtype, and behind each row what belongs to its slots.
    const TableData values(random, rows, dim, dtype, stride - (dim * demb::bytes_of(dtype) + 3) / 4 * 4);
    bytes.resize(static_cast<size_t>(rows * stride));
    std::memcpy(bytes.data(), values.bytes.data(), values.bytes.size());
    if (interleaved) {
      for (int s = 0; s < rule.slots(); ++s) target.slots[s].stride = stride;
    }
    point();
    // Accumulators are positive, and so large that a centered variance is.
    for (int s = 0; s < rule.slots(); ++s) {
      for (int64_t row = 0; row < rows; ++row) {
        for (int32_t d = 0; d < width; ++d) *slot(s, row, d) = (s == 0 ? 1.5f : 0.3f) + 0.2f * uniform(random);
      }
    }
  }
  TargetData(const TargetData& other)
      : bytes(other.bytes), slots(other.slots), offsets(other.offsets), target(other.target) {
    point();
  }
  TargetData& operator=(const TargetData&) = delete;

  const char* at(int64_t row, int32_t d) const {
    return target.table.data + row * target.table.stride + d * demb::bytes_of(target.table.dtype);
  }
  double value(int64_t row, int32_t d) const { return read(at(row, d), target.table.dtype); }
  float* slot(int s, int64_t row, int32_t d) const {
    return reinterpret_cast<float*>(target.slots[s].data + row * target.slots[s].stride) + d;
  }
  bool same(const TargetData& other) const {
    bool all = bytes == other.bytes;
    for (size_t s = 0; s < slots.size(); ++s) {
      all = all && std::memcmp(slots[s].data(), other.slots[s].data(), slots[s].size() * 4) == 0;
    }
    return all;
  }

 private:
  void point() {
    target.table.data = bytes.data();
    for (int s = 0; s < target.num_slots; ++s) {
      const auto i = static_cast<size_t>(s);
      target.slots[s].data = slots.empty() ? bytes.data() + offsets[i] : reinterpret_cast<char*>(slots[i].data());
    }
  }
};

}  // namespace demb_test
