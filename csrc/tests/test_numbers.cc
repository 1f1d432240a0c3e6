// 16-bit floats: every pattern read, roundings written, tails.
#include <vector>

#include "core/numbers.h"
#include "tests/check.h"
#include "tests/naive.h"

using namespace demb_test;  // NOLINT: this is a test
using demb::BFloat16;
using demb::Float16;
using demb::V8;

namespace {

template <typename T>
struct Format;
template <>
struct Format<BFloat16> {
  static constexpr int fraction = 7, least = -126;
};
template <>
struct Format<Float16> {
  static constexpr int fraction = 10, least = -14;
};

template <typename T>
double decode(uint16_t bits) {
  return decode16(bits, Format<T>::fraction, Format<T>::least);
}

template <typename T>
void read_every_pattern() {
  for (int first = 0; first < 65536; first += 8) {
    T in[8];
    float out[8];
    for (int k = 0; k < 8; ++k) in[k].bits = static_cast<uint16_t>(first + k);
    const V8 v = demb::load8(in);
    demb::store8(out, v);
    for (int k = 0; k < 8; ++k) {
      const double want = decode<T>(in[k].bits);
      CHECK(std::isnan(want) ? std::isnan(out[k]) : out[k] == want, "pattern %04x: %g, want %g", in[k].bits, out[k], want);
      CHECK(std::isnan(want) || std::signbit(out[k]) == std::signbit(want), "pattern %04x", in[k].bits);
    }
  }
}

template <typename T>
void check_written(const float* in) {
  T out[8];
  demb::store8(out, demb::load8(in));
  for (int k = 0; k < 8; ++k) {
    const double got = decode<T>(out[k].bits);
    const double want = round16(in[k], Format<T>::fraction, Format<T>::least);
    CHECK(std::isnan(want) ? std::isnan(got) : got == want, "%.9g (%a): %.9g, want %.9g", in[k], in[k], got, want);
    CHECK(std::isnan(want) || std::signbit(got) == std::signbit(want), "%a", in[k]);
  }
  digest().add(out, sizeof(out));
}

template <typename T>
void write_random_and_awkward() {
  Random random(6);
  float in[8];
  for (int i = 0; i < 100000; ++i) {
    for (float& x : in) {
      const uint32_t bits = static_cast<uint32_t>(random());
      std::memcpy(&x, &bits, 4);
      // Numbers float16 can hold are rare among all floats.
      if (below(random, 2) == 0) x = std::ldexp(uniform(random), static_cast<int>(below(random, 46)) - 28);
      if (std::isnan(x)) x = 1.0f;  // what a NaN becomes is checked below
    }
    check_written<T>(in);
  }
  // Around every number of the format: itself, the middle to the next, and the floats beside the middle.
  for (uint32_t pattern = 0; pattern < 0x7fff; ++pattern) {
    const double here = decode<T>(static_cast<uint16_t>(pattern)), next = decode<T>(static_cast<uint16_t>(pattern + 1));
    if (!std::isfinite(here) || !std::isfinite(next)) continue;
    const float middle = static_cast<float>((here + next) / 2);
    const float around[8] = {static_cast<float>(here),          middle,  std::nextafterf(middle, 0.0f),
                             std::nextafterf(middle, INFINITY), -middle, -std::nextafterf(middle, 0.0f),
                             -std::nextafterf(middle, INFINITY), static_cast<float>(-here)};
    check_written<T>(around);
  }
  const float special[8] = {INFINITY, -INFINITY, NAN, -NAN, 65519.9f, 65520.0f, 3.4e38f, -0.0f};
  check_written<T>(special);
}

template <typename T>
void tails(T one) {
  for (int n = 1; n < 8; ++n) {
    std::vector<T> in(static_cast<size_t>(n), one), out(static_cast<size_t>(n));
    const V8 v = demb::load_tail(in.data(), n);
    for (int k = 0; k < 8; ++k) CHECK((v[k] != 0.0f) == (k < n));
    demb::store_tail(out.data(), v, n);
    CHECK(same_bits(in, out));
  }
}

}  // namespace

TEST(reads_every_bfloat16_and_float16) {
  read_every_pattern<BFloat16>();
  read_every_pattern<Float16>();
}

TEST(writes_bfloat16_to_the_nearest_even) { write_random_and_awkward<BFloat16>(); }

TEST(writes_float16_to_the_nearest_even) { write_random_and_awkward<Float16>(); }

TEST(tails_neither_read_nor_write_behind_the_row) {
  tails(1.5f);
  tails(BFloat16{0x3fc0});
  tails(Float16{0x3e00});
}

TEST(roots_are_correctly_rounded) {
  Random random(7);
  for (int i = 0; i < 20000; ++i) {
    V8 x;
    for (int k = 0; k < 8; ++k) x[k] = std::fabs(std::ldexp(uniform(random), static_cast<int>(below(random, 60)) - 30));
    const V8 y = demb::root(x);
    for (int k = 0; k < 8; ++k) CHECK(y[k] == std::sqrt(x[k]) && demb::root(x[k]) == y[k]);
  }
}
