#include "core/update_plain.h"

#include "core/numbers.h"

namespace demb {
namespace {

template <typename Rule, bool ROWWISE, int DIM>
DEMB_INLINE void prefetch_target(const UpdateTarget& to, int64_t row) {
  prefetch_floats<DIM, true>(row_address(to.table.data, row, to.table.stride));
  if (ROWWISE) __builtin_prefetch(to.slots[0].data + row * to.slots[0].stride, 1, 3);
  for (int s = 0; s < Rule::SLOTS; ++s) {
    prefetch_floats<DIM, true>(row_address(to.slots[s].data, row, to.slots[s].stride));
  }
}

template <typename Rule, bool ROWWISE, int DIM>
DEMB_INLINE void update_row(const UpdateTarget& to, const Rule& rule, int64_t row, const V8* g) {
  constexpr int kChunks = DIM / 8;
  float* w = reinterpret_cast<float*>(to.table.data + row * to.table.stride);
  float accumulator = 0.0f;
  if (ROWWISE) {
    float* a = reinterpret_cast<float*>(to.slots[0].data + row * to.slots[0].stride);
    accumulator = *a += mean_square(g, DIM);
  }
  for (int k = 0; k < kChunks; ++k) {
    V8 value = load8(w + 8 * k);
    V8 state[kMaxSlots];
    for (int s = 0; s < Rule::SLOTS; ++s) {
      state[s] = load8(reinterpret_cast<float*>(to.slots[s].data + row * to.slots[s].stride) + 8 * k);
    }
    rule.update(value, g[k], state, accumulator);
    store8(w + 8 * k, value);
    for (int s = 0; s < Rule::SLOTS; ++s) {
      store8(reinterpret_cast<float*>(to.slots[s].data + row * to.slots[s].stride) + 8 * k, state[s]);
    }
  }
}

template <typename Rule, bool ROWWISE, int DIM>
DEMB_INLINE void walk(const Occurrences& o, int64_t first, int64_t last, const UpdateTarget& to, const RuleStep& r) {
  constexpr int kChunks = DIM / 8;
  constexpr int64_t kAhead = DIM == 16 ? 24 : DIM == 32 ? 16 : DIM == 64 ? 12 : 4;
  const Rule rule(r);
  const Pair* pairs = o.begin();
  const int64_t count = o.count();
  const bool scaled = o.has_factor();
  for (int64_t at = o.row_start(first); at < last;) {
    const uint32_t row = pairs[at].key;
    const float* g = o.gradient(pairs[at].item);
    V8 sum[kChunks];
    const float begin = scaled ? o.factor(pairs[at].item) : 1.0f;
    for (int k = 0; k < kChunks; ++k) sum[k] = load8(g + 8 * k) * begin;
    for (bool more = true; more;) {
      const int64_t next = at + kAhead;
      if (next < count) {
        prefetch_floats<DIM, false>(reinterpret_cast<uintptr_t>(o.gradient(pairs[next].item)));
        // Asking for a narrow row again costs less than guessing wrongly whether it is another one.
        if (DIM <= 32 || pairs[next].key != pairs[next - 1].key) {
          prefetch_target<Rule, ROWWISE, DIM>(to, pairs[next].key);
        }
      }
      ++at;
      more = at < count && pairs[at].key == row;
      if (!more) break;
      g = o.gradient(pairs[at].item);
      if (scaled) {
        const float f = o.factor(pairs[at].item);
        for (int k = 0; k < kChunks; ++k) sum[k] += load8(g + 8 * k) * f;
      } else {
        for (int k = 0; k < kChunks; ++k) sum[k] += load8(g + 8 * k);
      }
    }
    update_row<Rule, ROWWISE, DIM>(to, rule, row, sum);
  }
}

template <typename Rule, bool ROWWISE, int DIM>
DEMB_AVX2 void walk_avx2(const Occurrences& o, int64_t first, int64_t last, const UpdateTarget& to, const RuleStep& r) {
  walk<Rule, ROWWISE, DIM>(o, first, last, to, r);
}

template <typename Rule, bool ROWWISE, int DIM>
void walk_portable(const Occurrences& o, int64_t first, int64_t last, const UpdateTarget& to, const RuleStep& r) {
  walk<Rule, ROWWISE, DIM>(o, first, last, to, r);
}

template <typename Rule, bool ROWWISE>
PlainUpdate of_dim(int dim) {
  const bool avx2 = has_avx2();
  switch (dim) {
    case 16: return avx2 ? walk_avx2<Rule, ROWWISE, 16> : walk_portable<Rule, ROWWISE, 16>;
    case 32: return avx2 ? walk_avx2<Rule, ROWWISE, 32> : walk_portable<Rule, ROWWISE, 32>;
    case 64: return avx2 ? walk_avx2<Rule, ROWWISE, 64> : walk_portable<Rule, ROWWISE, 64>;
    case 128: return avx2 ? walk_avx2<Rule, ROWWISE, 128> : walk_portable<Rule, ROWWISE, 128>;
    default: return nullptr;
  }
}

}  // namespace

PlainUpdate plain_update(const UpdateTarget& target, const RuleStep& rule) {
  if (target.table.dtype != DType::kFloat32 || rule.clip >= 0.0f || rule.weight_decay != 0.0f) return nullptr;
  switch (rule.kind) {
    case RuleKind::kSgd: return of_dim<Sgd, false>(target.table.dim);
    case RuleKind::kAdagrad: return of_dim<Adagrad, false>(target.table.dim);
    case RuleKind::kRowwiseAdagrad: return of_dim<RowwiseAdagrad, true>(target.table.dim);
    case RuleKind::kAdam: return of_dim<Adam<false>, false>(target.table.dim);
    default: return nullptr;
  }
}

}  // namespace demb
