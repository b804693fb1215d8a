// Products whose sums have one order, so that a row's bits depend neither on the number of rows nor
// on its place among them: BLAS computes the rows at the edge of a block in other ways than those
// inside.
#include "cpu/gemm.h"

namespace dlkern::cpu {
namespace {

// kOrderedCols columns as vectors of the CPU's width; the compiler splits them where it has less.
template <class T>
struct Vector {
  static constexpr int64_t kLanes = 32 / sizeof(T);
  static constexpr int64_t kCount = kOrderedCols / kLanes;
  typedef T type __attribute__((vector_size(32)));
  typedef T unaligned __attribute__((vector_size(32), aligned(sizeof(T)), may_alias));
};

// kRows x kOrderedCols sums from registers.
template <int kRows, class T>
void block(int64_t k, const T* a, const T* b, T* c, int64_t ldc) {
  using V = Vector<T>;
  constexpr int64_t kCount = V::kCount;
  typename V::type sum[kRows][kCount];
  const auto at = [&](int64_t i, int64_t v) {
    return reinterpret_cast<typename V::unaligned*>(c + i * ldc + v * V::kLanes);
  };
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t v = 0; v < kCount; ++v) sum[i][v] = *at(i, v);
  }
  for (int64_t l = 0; l < k; ++l, a += kOrderedRows, b += kOrderedCols) {
    typename V::type y[kCount];
    for (int64_t v = 0; v < kCount; ++v) {
      y[v] = *reinterpret_cast<const typename V::unaligned*>(b + v * V::kLanes);
    }
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t v = 0; v < kCount; ++v) sum[i][v] += a[i] * y[v];  // contracted to FMA
    }
  }
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t v = 0; v < kCount; ++v) *at(i, v) = sum[i][v];
  }
}

template <class T>
void ordered(int64_t m, int64_t n, int64_t k, const T* a, const T* b, T* c, int64_t ldc) {
  // float: two vectors and 6 rows fill the registers; double: four vectors and 3 rows.
  constexpr int kRows = static_cast<int>(kOrderedRows * 4 / sizeof(T));
  for (int64_t j = 0; j < n; j += kOrderedCols) {
    for (int64_t i = 0; i < m; i += kOrderedRows) {
      for (int64_t r = 0; r < kOrderedRows; r += kRows) {
        block<kRows>(k, a + i * k + r, b + j * k, c + (i + r) * ldc + j, ldc);
      }
    }
  }
}

template <class T>
T dot_product(int64_t k, const T* a, const T* b) {
  using V = Vector<T>;
  constexpr int kSums = 4;
  const auto at = [](const T* x) { return *reinterpret_cast<const typename V::unaligned*>(x); };
  typename V::type sum[kSums] = {};
  int64_t i = 0;
  for (; i + kSums * V::kLanes <= k; i += kSums * V::kLanes) {
    for (int v = 0; v < kSums; ++v) sum[v] += at(a + i + v * V::kLanes) * at(b + i + v * V::kLanes);
  }
  const typename V::type all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  T total = 0;
  for (int64_t l = 0; l < V::kLanes; ++l) total += all[l];
  for (; i < k; ++i) total += a[i] * b[i];
  return total;
}

}  // namespace

float dot(int64_t k, const float* a, const float* b) { return dot_product(k, a, b); }
double dot(int64_t k, const double* a, const double* b) { return dot_product(k, a, b); }

void ordered_gemm(int64_t m, int64_t n, int64_t k, const float* a, const float* b, float* c,
                  int64_t ldc) {
  ordered(m, n, k, a, b, c, ldc);
}
void ordered_gemm(int64_t m, int64_t n, int64_t k, const double* a, const double* b, double* c,
                  int64_t ldc) {
  ordered(m, n, k, a, b, c, ldc);
}

}  // namespace dlkern::cpu
