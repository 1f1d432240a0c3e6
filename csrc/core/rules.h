// Row rules: how a row and its slots change by the row's whole gradient. float32 throughout, eight elements at a time.
// The formulas are those of the classes of the same names in optimizers/, which say where they come from.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/numbers.h"

namespace demb {

enum class RuleKind : int32_t { kSgd, kMomentum, kNesterov, kAdagrad, kRowwiseAdagrad, kAdam, kAmsgrad, kRmsprop, kFtrl };

constexpr int kMaxSlots = 3;

// A rule with the numbers of one step.
struct RuleStep {
  RuleKind kind = RuleKind::kSgd;
  float learning_rate = 0.0f;
  float rate = 0.0f;          // the learning rate with Adam's bias correction; elsewhere the learning rate
  int64_t step = 1;           // this update's number, from 1
  float hyper[8] = {};        // in the order in which the rule's struct below reads them
  float weight_decay = 0.0f;  // decoupled; 0: none
  float clip = -1.0f;         // of every element of the gradient; negative: none
  // bfloat16 tables: round by chance, so that updates below half a unit in the last place are not all lost.
  bool stochastic_rounding = false;
  uint64_t seed = 0;
  // Row r of the block is row first + r * every of the table, and its column 0 the table's column `column`: rounding
  // must not depend on how a table is cut.
  int64_t first_row = 0, row_step = 1, first_column = 0;
};

// Mean square of a row's gradient, the statistic of row-wise Adagrad. g: in chunks of eight.
DEMB_INLINE float mean_square(const V8* g, int dim) {
  V8 total = splat(0.0f);
  for (int k = 0; k < dim / 8; ++k) total += g[k] * g[k];
  if (dim % 8 != 0) {
    // Lanes behind dim are 0, but NaN where a factor was infinite.
    const I8 inside = I8{0, 1, 2, 3, 4, 5, 6, 7} < dim % 8;
    const V8 last = (V8)((I8)g[dim / 8] & inside);
    total += last * last;
  }
  return lane_sum(total) / static_cast<float>(dim);
}

// Each rule: SLOTS row-wide slots, and update(w, g, s, statistic) for a chunk; statistic: see below, else 0.
struct Sgd {
  static constexpr int SLOTS = 0;
  float rate;
  explicit Sgd(const RuleStep& r) : rate(r.learning_rate) {}
  DEMB_INLINE_METHOD void update(V8& w, V8 g, V8*, float) const { w -= rate * g; }
};

template <bool NESTEROV>
struct Momentum {
  static constexpr int SLOTS = 1;
  float rate, momentum;
  explicit Momentum(const RuleStep& r) : rate(r.learning_rate), momentum(r.hyper[0]) {}
  DEMB_INLINE_METHOD void update(V8& w, V8 g, V8* s, float) const {
    const V8 delta = rate * g;
    s[0] = s[0] * momentum - delta;
    w += NESTEROV ? s[0] * momentum - delta : s[0];
  }
};

struct Adagrad {
  static constexpr int SLOTS = 1;
  float rate, epsilon;
  explicit Adagrad(const RuleStep& r) : rate(r.learning_rate), epsilon(r.hyper[0]) {}
  DEMB_INLINE_METHOD void update(V8& w, V8 g, V8* s, float) const {
    s[0] += g * g;
    w -= rate * g / root(s[0] + epsilon);
  }
};

// Its one slot has one value a row, which the caller has brought up to date: statistic is the new accumulator.
struct RowwiseAdagrad {
  static constexpr int SLOTS = 0;
  float rate, epsilon;
  explicit RowwiseAdagrad(const RuleStep& r) : rate(r.learning_rate), epsilon(r.hyper[0]) {}
  DEMB_INLINE_METHOD void update(V8& w, V8 g, V8*, float accumulator) const {
    w -= g * (rate / root(accumulator + epsilon));
  }
};

// hyper: 1 - beta_1, 1 - beta_2, epsilon. The differences are taken in double by the caller: 1.0f - 0.999f is wrong by
// 1.3e-5 of itself.
template <bool AMSGRAD>
struct Adam {
  static constexpr int SLOTS = AMSGRAD ? 3 : 2;
  float rate, keep_1, keep_2, epsilon;
  explicit Adam(const RuleStep& r)
      : rate(r.rate), keep_1(r.hyper[0]), keep_2(r.hyper[1]), epsilon(r.hyper[2]) {}
  DEMB_INLINE_METHOD void update(V8& w, V8 g, V8* s, float) const {
    s[0] += (g - s[0]) * keep_1;
    s[1] += (g * g - s[1]) * keep_2;
    V8 scale = s[1];
    if (AMSGRAD) scale = s[SLOTS - 1] = larger(s[SLOTS - 1], s[1]);
    w -= s[0] * rate / (root(scale) + epsilon);
  }
};

// Slots: velocity, then momentum where there is one, then the average gradient where it is centered. hyper: rho,
// momentum, epsilon, whether it is centered, 1 - rho.
template <bool MOMENTUM, bool CENTERED>
struct Rmsprop {
  static constexpr int SLOTS = 1 + MOMENTUM + CENTERED;
  float rate, rho, rest, momentum, epsilon;
  explicit Rmsprop(const RuleStep& r)
      : rate(r.learning_rate), rho(r.hyper[0]), rest(r.hyper[4]), momentum(r.hyper[1]), epsilon(r.hyper[2]) {}
  DEMB_INLINE_METHOD void update(V8& w, V8 g, V8* s, float) const {
    s[0] = rho * s[0] + rest * (g * g);
    V8 denominator = s[0] + epsilon;
    if (CENTERED) {
      V8& average = s[SLOTS - 1];
      average = rho * average + rest * g;
      denominator = s[0] - average * average + epsilon;
    }
    V8 increment = rate * g / root(denominator);
    if (MOMENTUM) increment = s[1] = momentum * s[1] + increment;
    w -= increment;
  }
};

struct Ftrl {
  static constexpr int SLOTS = 2;
  float rate, power, l1, l2, twice_shrinkage;
  explicit Ftrl(const RuleStep& r)
      : rate(r.learning_rate), power(-r.hyper[0]), l1(r.hyper[1]), twice_shrinkage(2.0f * r.hyper[3]) {
    l2 = r.hyper[2] + r.hyper[4] / (2.0f * r.learning_rate);
  }
  DEMB_INLINE_METHOD V8 raised(V8 x) const {
    if (power == 0.5f) return root(x);
    V8 r;
    for (int k = 0; k < 8; ++k) r[k] = std::pow(x[k], power);
    return r;
  }
  DEMB_INLINE_METHOD void update(V8& w, V8 g, V8* s, float) const {
    const V8 before = raised(s[0]);
    s[0] += g * g;
    const V8 after = raised(s[0]);
    s[1] += g + twice_shrinkage * w - (after - before) / rate * w;
    const V8 clipped = smaller(larger(s[1], splat(-l1)), splat(l1));
    w = (clipped - s[1]) / (after / rate + 2.0f * l2);
  }
};

}  // namespace demb
