// int8 products with exact sums in int32 (modulo 2^32): operands are widened to int16, a piece of k
// at a time, and multiplied in pairs, which AVX2 adds to int32 in one instruction.
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "cpu/gemm.h"

namespace dlkern::cpu {
namespace {

constexpr int64_t kPiece = 512;  // of k
constexpr int64_t kStep = 16;    // pieces are padded with zeros to a multiple of this
constexpr int kCols = 4;         // columns computed together

// sums[j] += sum_k a[k] b[j * depth + k], j < kCols; depth is a multiple of kStep.
inline void dot(const int16_t* a, const int16_t* b, int64_t depth, int32_t* sums) {
#if defined(__AVX2__)
  __m256i sum[kCols] = {};
  for (int64_t k = 0; k < depth; k += kStep) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + k));
    for (int j = 0; j < kCols; ++j) {
      const __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + j * depth + k));
      sum[j] = _mm256_add_epi32(sum[j], _mm256_madd_epi16(x, y));
    }
  }
  const __m256i low = _mm256_hadd_epi32(sum[0], sum[1]), high = _mm256_hadd_epi32(sum[2], sum[3]);
  const __m256i pairs = _mm256_hadd_epi32(low, high);
  const __m128i all =
      _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  const auto to = reinterpret_cast<__m128i*>(sums);
  _mm_storeu_si128(to, _mm_add_epi32(_mm_loadu_si128(to), all));
#else
  for (int j = 0; j < kCols; ++j) {
    int32_t sum = 0;
    for (int64_t k = 0; k < depth; ++k) sum += int32_t{a[k]} * b[j * depth + k];
    sums[j] += sum;
  }
#endif
}

class Int8Worker {
 public:
  Int8Worker(const Gemm& g, int64_t rows, int64_t cols)
      : g_(g),
        cols_(ceil_div(cols, kCols) * kCols),
        a_(rows * kPiece + 1),
        b_(cols_ * kPiece + 1),
        sums_(rows * cols_ + 1),
        row_(cols_ + 1),
        finish_(g, cols) {}

  void compute(const Panel& p) {
    int64_t at[Gemm::kTensors];
    g_.batch.offsets(p.item, at);
    std::fill(sums_.begin(), sums_.end(), 0);
    const int64_t inner = inner_extent(g_);
    for (int64_t outer = 0; outer < g_.k.numel; outer += inner) {
      int64_t from[2];
      g_.k.offsets(outer, from);
      for (int64_t k = p.k_begin; k < p.k_end; k += kPiece) {
        const int64_t depth = std::min(kPiece, p.k_end - k);
        const int64_t padded = ceil_div(depth, kStep) * kStep;
        widen(g_.a, at[0] + from[0], p.i0, p.rows, g_.a.row, k, depth, padded, 0, a_.data());
        widen(g_.b, at[1] + from[1], p.j0, p.cols, g_.b.col, k, depth, padded, 1, b_.data());
        for (int64_t j = 0; j < p.cols; j += kCols) {
          for (int64_t i = 0; i < p.rows; ++i) {
            dot(a_.data() + i * padded, b_.data() + j * padded, padded, &sums_[i * cols_ + j]);
          }
        }
      }
    }
    for (int64_t i = 0; i < p.rows; ++i) {
      finish_.finish(&sums_[i * cols_], row_.data(), p.item, at, p.i0 + i, p.j0, p.cols);
    }
  }
  void end() { finish_.finish_amax(); }

 private:
  // Rows r .. r + rows of an operand as [r][k].
  void widen(const Matrix& t, int64_t at, int64_t r, int64_t rows, int64_t row, int64_t k,
             int64_t depth, int64_t padded, int operand, int16_t* out) const {
    const int64_t step = inner_stride(g_, operand);
    const int8_t* from = t.as<const int8_t>() + at + r * row + k * step;
    for (int64_t i = 0; i < rows; ++i)
      std::fill(out + i * padded + depth, out + (i + 1) * padded, 0);
    if (std::abs(step) <= std::abs(row)) {
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t l = 0; l < depth; ++l) out[i * padded + l] = from[i * row + l * step];
      }
    } else {
      for (int64_t l = 0; l < depth; ++l) {
        for (int64_t i = 0; i < rows; ++i) out[i * padded + l] = from[i * row + l * step];
      }
    }
  }

  const Gemm& g_;
  int64_t cols_;
  std::vector<int16_t> a_, b_;
  std::vector<int32_t> sums_;
  std::vector<float> row_;
  Finish<float> finish_;
};

}  // namespace

void run_int8(const Gemm& g) { for_each_panel<Int8Worker>(g); }

}  // namespace dlkern::cpu
