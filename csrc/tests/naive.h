// What the kernels must compute, said as plainly as possible and in double; and random tables and bags to try.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "core/types.h"

namespace demb_test {

using Random = std::mt19937_64;

inline int64_t below(Random& random, int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); }
// In [-1, 1).
inline float uniform(Random& random) { return static_cast<float>(static_cast<double>(random() >> 40) / (1 << 23) - 1.0); }

// ---- 16-bit floats by their definition ----

// A float of `fraction` bits after the point and exponents from `least` on.
inline double decode16(uint16_t bits, int fraction, int least) {
  const int exponent = (bits & 0x7fff) >> fraction, top = (0x7fff >> fraction);
  const double mantissa = bits & ((1 << fraction) - 1);
  double value;
  if (exponent == top) {
    value = mantissa == 0 ? INFINITY : NAN;
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, least - fraction);
  } else {
    value = std::ldexp(mantissa + (1 << fraction), exponent - 1 + least - fraction);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

// The nearest such float, ties to even, as a value.
inline double round16(double x, int fraction, int least) {
  if (x == 0.0 || !std::isfinite(x)) return x;
  const double unit = std::ldexp(1.0, std::max(std::ilogb(x), least) - fraction);
  const double rounded = std::nearbyint(x / unit) * unit;
  return std::fabs(rounded) >= std::ldexp(1.0, 2 - least) ? std::copysign(INFINITY, x) : rounded;
}

inline double read(const char* at, demb::DType dtype) {
  uint16_t half;
  float single;
  switch (dtype) {
    case demb::DType::kFloat32: std::memcpy(&single, at, 4); return single;
    case demb::DType::kBFloat16: std::memcpy(&half, at, 2); return decode16(half, 7, -126);
    default: std::memcpy(&half, at, 2); return decode16(half, 10, -14);
  }
}

// Unit in the last place of a table's dtype, relative.
inline double epsilon(demb::DType dtype) {
  return dtype == demb::DType::kFloat32 ? 0x1p-23 : dtype == demb::DType::kBFloat16 ? 0x1p-7 : 0x1p-10;
}

// ---- tables ----

// Owns exactly the bytes of its rows, so that the address sanitizer sees a read before or behind them.
struct TableData {
  std::vector<char> bytes;
  demb::Table table;

  TableData(Random& random, int64_t num_rows, int32_t dim, demb::DType dtype, int64_t gap = 0) {
    const int64_t row = dim * demb::bytes_of(dtype);
    table = {nullptr, (row + 3) / 4 * 4 + gap, num_rows, dim, dtype};
    bytes.resize(static_cast<size_t>((num_rows - 1) * table.stride + row));
    table.data = bytes.data();
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int32_t d = 0; d < dim; ++d) put(r, d, uniform(random));
    }
  }
  TableData(const TableData& other) : bytes(other.bytes), table(other.table) { table.data = bytes.data(); }
  TableData& operator=(const TableData&) = delete;

  char* at(int64_t row, int32_t d) const { return table.data + row * table.stride + d * demb::bytes_of(table.dtype); }
  double value(int64_t row, int32_t d) const { return read(at(row, d), table.dtype); }

 private:
  void put(int64_t row, int32_t d, float value) {
    if (table.dtype == demb::DType::kFloat32) {
      std::memcpy(at(row, d), &value, 4);
      return;
    }
    // Any pattern of a number of this size will do: sign, an exponent just below 1, random fraction.
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const uint16_t fraction = bits & (table.dtype == demb::DType::kBFloat16 ? 0x7f : 0x3ff);
    const uint16_t exponent = table.dtype == demb::DType::kBFloat16 ? 126 << 7 : 14 << 10;
    const uint16_t half = static_cast<uint16_t>((value < 0 ? 0x8000 : 0) | exponent | fraction);
    std::memcpy(at(row, d), &half, 2);
  }
};

// ---- bags ----

struct BagData {
  std::vector<int64_t> ids64;
  std::vector<int32_t> ids32;
  std::vector<int64_t> splits;
  std::vector<float> weights;
  demb::Bags bags;

  void point() {
    bags.ids = bags.ids_are_64 ? static_cast<const void*>(ids64.data()) : ids32.data();
    bags.splits = splits.empty() ? nullptr : splits.data();
    bags.weights = weights.empty() ? nullptr : weights.data();
  }
  BagData() = default;
  BagData(const BagData& other)
      : ids64(other.ids64), ids32(other.ids32), splits(other.splits), weights(other.weights), bags(other.bags) {
    point();
  }
  BagData& operator=(const BagData&) = delete;
};

struct BagShape {
  int64_t num_bags = 1;
  int64_t hotness = 1;  // of every bag; ragged: the largest
  bool ragged = false;
  bool weighted = false;
  bool ids_are_64 = true;
  int invalid_percent = 0;
  demb::Combiner combiner = demb::Combiner::kSum;
};

inline BagData make_bags(Random& random, const BagShape& shape, int64_t num_rows) {
  BagData data;
  data.bags.ids_are_64 = shape.ids_are_64;
  data.bags.num_bags = shape.num_bags;
  data.bags.hotness = shape.hotness;
  data.bags.combiner = shape.combiner;
  int64_t num_ids = shape.num_bags * shape.hotness;
  if (shape.ragged) {
    data.splits.push_back(0);
    for (int64_t b = 0; b < shape.num_bags; ++b) data.splits.push_back(data.splits.back() + below(random, shape.hotness + 1));
    num_ids = data.splits.back();
  }
  data.bags.num_ids = num_ids;
  const int64_t bad[] = {-1, num_rows, num_rows + 7, INT32_MIN, INT32_MAX, INT64_MIN, INT64_MAX, INT64_MAX / 64};
  for (int64_t i = 0; i < num_ids; ++i) {
    int64_t id = below(random, num_rows);
    // A few rows many times: duplicates across bags and tasks.
    if (below(random, 3) == 0) id %= 3;
    if (below(random, 100) < shape.invalid_percent) id = bad[below(random, shape.ids_are_64 ? 8 : 5)];
    if (shape.ids_are_64) data.ids64.push_back(id);
    else data.ids32.push_back(static_cast<int32_t>(id));
    if (shape.weighted) data.weights.push_back(uniform(random) * 2.0f);
  }
  data.point();
  return data;
}

// ---- the lookup ----

// The row an id names, -1 for none.
inline int64_t naive_row(int64_t id, int64_t num_rows, demb::InvalidIds policy) {
  if (id >= 0 && id < num_rows) return id;
  if (policy == demb::InvalidIds::kClip) return id < 0 ? 0 : num_rows - 1;
  return -1;
}

inline double naive_scale(const demb::Bags& bags, int64_t bag, int64_t num_rows, demb::InvalidIds policy) {
  double sum = 0, squares = 0;
  for (int64_t i = bags.begin(bag); i < bags.begin(bag + 1); ++i) {
    if (naive_row(bags.id(i), num_rows, policy) < 0) continue;
    const double w = bags.weights != nullptr ? bags.weights[i] : 1.0;
    sum += w;
    squares += w * w;
  }
  if (bags.combiner == demb::Combiner::kSum) return 1.0;
  const double total = bags.combiner == demb::Combiner::kMean ? sum : std::sqrt(squares);
  return total != 0 ? 1.0 / total : 0.0;
}

// How much larger rounding errors of a mean of signed weights are when these nearly cancel: about Σ|w| / |Σw|.
inline double naive_condition(const demb::Bags& bags, int64_t bag, int64_t num_rows, demb::InvalidIds policy) {
  if (bags.weights == nullptr || bags.combiner != demb::Combiner::kMean) return 1.0;
  double sum = 0, size = 0;
  for (int64_t i = bags.begin(bag); i < bags.begin(bag + 1); ++i) {
    if (naive_row(bags.id(i), num_rows, policy) < 0) continue;
    sum += bags.weights[i];
    size += std::fabs(bags.weights[i]);
  }
  return sum != 0 ? 1.0 + size / std::fabs(sum) : 1.0;
}

// What float32 arithmetic may be away from naive_element.
inline double naive_bound(const demb::Bags& bags, int64_t bag, int64_t num_rows, demb::InvalidIds policy, double size) {
  const double terms = static_cast<double>(bags.begin(bag + 1) - bags.begin(bag));
  return 0x1p-23 * size * (4.0 + terms) * naive_condition(bags, bag, num_rows, policy);
}

// Element d of a bag, and in *size the sum of the absolute values that went into it: rounding errors grow with it.
inline double naive_element(const TableData& data, const demb::Bags& bags, int64_t bag, int32_t d,
                            demb::InvalidIds policy, double* size) {
  const double scale = naive_scale(bags, bag, data.table.num_rows, policy);
  double sum = 0;
  *size = 0;
  for (int64_t i = bags.begin(bag); i < bags.begin(bag + 1); ++i) {
    const int64_t row = naive_row(bags.id(i), data.table.num_rows, policy);
    if (row < 0) continue;
    const double term = data.value(row, d) * (bags.weights != nullptr ? bags.weights[i] : 1.0);
    sum += term;
    *size += std::fabs(term * scale);
  }
  return sum * scale;
}

inline void naive_invalid(const demb::Bags& bags, int64_t num_rows, int64_t* count, int64_t* first) {
  *count = 0;
  *first = INT64_MAX;
  for (int64_t i = 0; i < bags.num_ids; ++i) {
    if (bags.id(i) >= 0 && bags.id(i) < num_rows) continue;
    *first = std::min(*first, i);
    ++*count;
  }
}

}  // namespace demb_test
