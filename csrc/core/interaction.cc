#include "interaction.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "cpu.h"
#include "numbers.h"

// Here results need not match the portable path bit for bit, so that fused multiply-add may be used.
#if defined(__x86_64__)
#define DEMB_AVX2_FMA __attribute__((target("avx2,f16c,fma"), optimize("fp-contract=fast")))
#else
#define DEMB_AVX2_FMA
#endif

namespace demb {
namespace {

constexpr int64_t kPad = 8;  // rows are padded to whole multiples of this many numbers
constexpr int64_t kRows = 4;   // rows of a block: 4 × 2 accumulators leave half the registers for operands
constexpr int64_t kAhead = 2;  // samples: two streams a vector are more than the processor follows by itself

// GCC takes vectors wider than the processor's apart into single numbers, hence one type for each instruction set.
template <int LANES>
struct Vector {
  typedef float type __attribute__((vector_size(4 * LANES)));
  typedef float unaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
};

constexpr int64_t padded(int64_t n) { return (n + kPad - 1) / kPad * kPad; }

template <int LANES>
DEMB_INLINE void copy_whole(const float* from, float* to, int64_t n) {
  using Unaligned = typename Vector<LANES>::unaligned;
  for (int64_t i = 0; i < n; i += LANES) {
    *reinterpret_cast<Unaligned*>(to + i) = *reinterpret_cast<const Unaligned*>(from + i);
  }
}

// A row of n numbers; behind them zeros up to a whole number of kPad when `pad`.
template <int LANES>
DEMB_INLINE void copy_row(const float* from, float* to, int64_t n, bool pad) {
  const int64_t whole = n / LANES * LANES;
  copy_whole<LANES>(from, to, whole);
  int64_t i = whole;
  for (; i < n; ++i) to[i] = from[i];
  if (pad) {
    for (; i < padded(n); ++i) to[i] = 0.0f;
  }
}

// c[0..4)[0..LANES VECTORS) = Σ_k a[row][k] · b[k][column].
template <int LANES, int VECTORS>
DEMB_INLINE void multiply_block(const float* __restrict a, int64_t a_stride, const float* __restrict b,
                                int64_t b_stride, int64_t inner, float* __restrict c, int64_t c_stride) {
  using Lanes = typename Vector<LANES>::type;
  Lanes sums[kRows][VECTORS] = {};
  for (int64_t k = 0; k < inner; ++k) {
    Lanes right[VECTORS];
    for (int v = 0; v < VECTORS; ++v) right[v] = *reinterpret_cast<const Lanes*>(b + k * b_stride + v * LANES);
    for (int row = 0; row < kRows; ++row) {
      const float left = a[row * a_stride + k];
      for (int v = 0; v < VECTORS; ++v) sums[row][v] += left * right[v];
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int v = 0; v < VECTORS; ++v) *reinterpret_cast<Lanes*>(c + row * c_stride + v * LANES) = sums[row][v];
  }
}

// The same for any number of columns, a multiple of kPad.
template <int LANES>
DEMB_INLINE void multiply_rows(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t inner,
                               float* c, int64_t c_stride, int64_t columns) {
  int64_t at = 0;
  for (; at + 2 * LANES <= columns; at += 2 * LANES) {
    multiply_block<LANES, 2>(a, a_stride, b + at, b_stride, inner, c + at, c_stride);
  }
  if (at < columns) multiply_block<LANES, 1>(a, a_stride, b + at, b_stride, inner, c + at, c_stride);
}

// to[j][i] = from[i][j] for a block of 8 × 8.
template <int LANES>
DEMB_INLINE void transpose_block(const float* __restrict from, int64_t from_stride, float* __restrict to,
                                 int64_t to_stride) {
  if constexpr (LANES == 8) {
    using Lanes = typename Vector<8>::type;
    typedef int Index __attribute__((vector_size(32)));
    Lanes in[8], pairs[8], quads[8];
    for (int i = 0; i < 8; ++i) in[i] = *reinterpret_cast<const Lanes*>(from + i * from_stride);
    for (int i = 0; i < 4; ++i) {
      pairs[2 * i] = __builtin_shuffle(in[2 * i], in[2 * i + 1], Index{0, 8, 1, 9, 4, 12, 5, 13});
      pairs[2 * i + 1] = __builtin_shuffle(in[2 * i], in[2 * i + 1], Index{2, 10, 3, 11, 6, 14, 7, 15});
    }
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 2; ++i) {
        const Lanes low = pairs[4 * half + i], high = pairs[4 * half + i + 2];
        quads[4 * half + 2 * i] = __builtin_shuffle(low, high, Index{0, 1, 8, 9, 4, 5, 12, 13});
        quads[4 * half + 2 * i + 1] = __builtin_shuffle(low, high, Index{2, 3, 10, 11, 6, 7, 14, 15});
      }
    }
    for (int i = 0; i < 4; ++i) {
      const Lanes top = __builtin_shuffle(quads[i], quads[i + 4], Index{0, 1, 2, 3, 8, 9, 10, 11});
      const Lanes bottom = __builtin_shuffle(quads[i], quads[i + 4], Index{4, 5, 6, 7, 12, 13, 14, 15});
      *reinterpret_cast<Lanes*>(to + i * to_stride) = top;
      *reinterpret_cast<Lanes*>(to + (i + 4) * to_stride) = bottom;
    }
  } else {
    for (int i = 0; i < 8; ++i) {
      for (int j = 0; j < 8; ++j) to[j * to_stride + i] = from[i * from_stride + j];
    }
  }
}

// What one thread works in: a sample's vectors and a square matrix over them, padded to whole multiples of kPad.
class Scratch {
 public:
  explicit Scratch(const InteractionShape& shape)
      : columns(padded(shape.dim)), side(padded(shape.count)),
        room_(new float[2 * side * columns + side * side + kPad]()) {
    // Loads and stores of whole vectors want addresses of 32 bytes.
    vectors = room_.get();
    while (reinterpret_cast<uintptr_t>(vectors) % 32 != 0) ++vectors;
    other = vectors + side * columns;
    square = other + side * columns;
  }

  const int64_t columns, side;
  float* vectors;  // [side, columns]; rows from `count` on stay zero
  float* other;    // [columns, side] or [side, columns]
  float* square;   // [side, side]

 private:
  std::unique_ptr<float[]> room_;
};

// Asks for a vector of the sample kAhead behind this one. WRITE: it will be written, not read.
template <bool WRITE>
DEMB_INLINE void ask_ahead(const InteractionShape& shape, const float* vector, int64_t sample) {
  const int64_t bytes = shape.dim * 4;
  prefetch_row<WRITE>(reinterpret_cast<const char*>(vector), std::min(sample + kAhead, shape.batch - 1), bytes, bytes);
}

template <int LANES>
DEMB_INLINE void load_sample(const InteractionShape& shape, const float* const* vectors, int64_t sample,
                             const Scratch& scratch) {
  for (int64_t i = 0; i < shape.count; ++i) {
    ask_ahead<false>(shape, vectors[i], sample);
    copy_row<LANES>(vectors[i] + sample * shape.dim, scratch.vectors + i * scratch.columns, shape.dim, true);
  }
}

template <int LANES>
DEMB_INLINE void forward_body(const InteractionShape& shape, const float* const* vectors, float* out, int64_t begin,
                              int64_t end, const Scratch& s) {
  const int64_t products = shape.products();
  for (int64_t sample = begin; sample < end; ++sample) {
    load_sample<LANES>(shape, vectors, sample, s);
    for (int64_t i = 0; i < s.side; i += kPad) {
      for (int64_t d = 0; d < s.columns; d += kPad) {
        transpose_block<LANES>(s.vectors + i * s.columns + d, s.columns, s.other + d * s.side + i, s.side);
      }
    }
    for (int64_t i = 0; i < shape.count; i += kRows) {
      multiply_rows<LANES>(s.vectors + i * s.columns, s.columns, s.other, s.side, shape.dim, s.square + i * s.side,
                           s.side, padded(std::min(i + kRows, shape.count) - 1));
    }
    float* to = out + sample * shape.width();
    if (shape.keep_first) copy_row<LANES>(s.vectors, to, shape.dim, false);
    to += shape.kept();
    for (int64_t i = 1, at = 0; i < shape.count; at += i, ++i) {
      // Whole vectors where the next rows of the same sample, written later, cover what is too much.
      const float* row = s.square + i * s.side;
      if (at + padded(i) <= products) {
        copy_whole<LANES>(row, to + at, padded(i));
      } else {
        copy_row<LANES>(row, to + at, i, false);
      }
    }
  }
}

// The upstream's triangle as a symmetric matrix with a diagonal of zeros.
template <int LANES>
DEMB_INLINE void unfold(const InteractionShape& shape, const float* triangle, const Scratch& s) {
  for (int64_t i = 1, at = 0; i < shape.count; at += i, ++i) {
    copy_row<LANES>(triangle + at, s.square + i * s.side, i, true);
  }
  // Above the diagonal's blocks the transposes of those below; within a block of the diagonal number by number.
  for (int64_t i = 0; i < s.side; i += kPad) {
    for (int64_t j = 0; j < i; j += kPad) {
      transpose_block<LANES>(s.square + i * s.side + j, s.side, s.square + j * s.side + i, s.side);
    }
    float* block = s.square + i * s.side + i;
    for (int64_t row = 1; row < kPad; ++row) {
      for (int64_t column = 0; column < row; ++column) block[column * s.side + row] = block[row * s.side + column];
    }
  }
}

template <int LANES>
DEMB_INLINE void backward_body(const InteractionShape& shape, const float* upstream, const float* const* vectors,
                               float* const* gradients, int64_t begin, int64_t end, const Scratch& s) {
  const int64_t width = shape.width();
  for (int64_t sample = begin; sample < end; ++sample) {
    load_sample<LANES>(shape, vectors, sample, s);
    const float* mine = upstream + sample * width;
    unfold<LANES>(shape, mine + shape.kept(), s);
    for (int64_t i = 0; i < shape.count; i += kRows) {
      multiply_rows<LANES>(s.square + i * s.side, s.side, s.vectors, s.columns, shape.count, s.other + i * s.columns,
                           s.columns, s.columns);
    }
    for (int64_t d = 0; d < shape.kept(); ++d) s.other[d] += mine[d];
    for (int64_t i = 0; i < shape.count; ++i) {
      ask_ahead<true>(shape, gradients[i], sample);
      copy_row<LANES>(s.other + i * s.columns, gradients[i] + sample * shape.dim, shape.dim, false);
    }
  }
}

void forward_portable(const InteractionShape& shape, const float* const* vectors, float* out, int64_t begin,
                      int64_t end, const Scratch& scratch) {
  forward_body<4>(shape, vectors, out, begin, end, scratch);
}

DEMB_AVX2_FMA void forward_avx2(const InteractionShape& shape, const float* const* vectors, float* out, int64_t begin,
                                int64_t end, const Scratch& scratch) {
  forward_body<8>(shape, vectors, out, begin, end, scratch);
}

void backward_portable(const InteractionShape& shape, const float* upstream, const float* const* vectors,
                       float* const* gradients, int64_t begin, int64_t end, const Scratch& scratch) {
  backward_body<4>(shape, upstream, vectors, gradients, begin, end, scratch);
}

DEMB_AVX2_FMA void backward_avx2(const InteractionShape& shape, const float* upstream, const float* const* vectors,
                                 float* const* gradients, int64_t begin, int64_t end, const Scratch& scratch) {
  backward_body<8>(shape, upstream, vectors, gradients, begin, end, scratch);
}

// Chunks of samples, a few for each thread; fewer where the samples are too few to be worth a thread's start.
void over_samples(const InteractionShape& shape, const Executor& executor,
                  FunctionRef<void(int64_t, int64_t, const Scratch&)> work) {
  constexpr int64_t kLeast = 64;
  const int64_t most = executor.threads() == 1 ? 1 : 4 * executor.threads();
  const int64_t chunks = std::max<int64_t>(1, std::min(most, shape.batch / kLeast));
  executor.run(chunks, [&](int64_t chunk) {
    const Scratch scratch(shape);
    work(shape.batch * chunk / chunks, shape.batch * (chunk + 1) / chunks, scratch);
  });
}

}  // namespace

void interact(const InteractionShape& shape, const float* const* vectors, float* out, const Executor& executor) {
  const auto body = has_avx2() ? forward_avx2 : forward_portable;
  over_samples(shape, executor, [&](int64_t begin, int64_t end, const Scratch& scratch) {
    body(shape, vectors, out, begin, end, scratch);
  });
}

void interact_gradient(const InteractionShape& shape, const float* upstream, const float* const* vectors,
                       float* const* gradients, const Executor& executor) {
  const auto body = has_avx2() ? backward_avx2 : backward_portable;
  over_samples(shape, executor, [&](int64_t begin, int64_t end, const Scratch& scratch) {
    body(shape, upstream, vectors, gradients, begin, end, scratch);
  });
}

}  // namespace demb
