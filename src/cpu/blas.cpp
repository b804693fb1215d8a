#include "cpu/prims/blas.h"

#include <cblas.h>

#include <algorithm>

#include "core/index.h"
#include "core/status.h"
#include "cpu/prims/parallel.h"

namespace dlkern::cpu {
namespace {

void call_blas(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n, int k, float alpha,
               const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc) {
  scipy_cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
void call_blas(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n, int k, double alpha,
               const double* a, int lda, const double* b, int ldb, double beta, double* c,
               int ldc) {
  scipy_cblas_dgemm(CblasRowMajor, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void call_gemv(CBLAS_TRANSPOSE trans, int rows, int cols, float alpha, const float* a, int lda,
               const float* x, int incx, float* y, int incy) {
  scipy_cblas_sgemv(CblasRowMajor, trans, rows, cols, alpha, a, lda, x, incx, 1, y, incy);
}
void call_gemv(CBLAS_TRANSPOSE trans, int rows, int cols, double alpha, const double* a, int lda,
               const double* x, int incx, double* y, int incy) {
  scipy_cblas_dgemv(CblasRowMajor, trans, rows, cols, alpha, a, lda, x, incx, 1, y, incy);
}

template <class T>
void scale(int64_t m, int64_t n, T beta, T* c, int64_t ldc) {
  if (beta == 1) return;
  for (int64_t i = 0; i < m; ++i) {
    T* row = c + i * ldc;
    for (int64_t j = 0; j < n; ++j) row[j] = beta == 0 ? T(0) : beta * row[j];
  }
}

// OpenBLAS counts in 32 bits.
constexpr int64_t kMaxExtent = int64_t{1} << 30;

int leading(int64_t ld, int64_t columns) {
  ld = std::max<int64_t>({ld, columns, 1});
  if (ld > INT32_MAX) fail(DLK_NOT_SUPPORTED, "a matrix has rows ", ld, " elements apart");
  return static_cast<int>(ld);
}

// One product whose extents fit BLAS. A product with a vector is bound by memory, which gemv reads
// faster than gemm.
template <class T>
void product(bool ta, bool tb, int m, int n, int k, T alpha, const T* a, int lda, const T* b,
             int ldb, T beta, T* c, int ldc) {
  if (m != 1 && n != 1) {
    call_blas(ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, m, n, k, alpha, a,
              lda, b, ldb, beta, c, ldc);
    return;
  }
  scale<T>(m, n, beta, c, ldc);
  if (m == 1) {  // c^T = op(b)^T a^T
    call_gemv(tb ? CblasNoTrans : CblasTrans, tb ? n : k, tb ? k : n, alpha, b, ldb, a,
              ta ? lda : 1, c, 1);
  } else {
    call_gemv(ta ? CblasTrans : CblasNoTrans, ta ? k : m, ta ? m : k, alpha, a, lda, b,
              tb ? 1 : ldb, c, ldc);
  }
}

template <class T>
void gemm_impl(bool ta, bool tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
               const T* b, int64_t ldb, T beta, T* c, int64_t ldc) {
  // Threads are ours: OpenBLAS computes on the one that calls it.
  static const bool single = (scipy_openblas_set_num_threads(1), true);
  (void)single;
  if (m == 0 || n == 0) return;
  if (k == 0 || alpha == 0) return scale(m, n, beta, c, ldc);
  for (int64_t i = 0; i < m; i += kMaxExtent) {
    for (int64_t j = 0; j < n; j += kMaxExtent) {
      for (int64_t l = 0; l < k; l += kMaxExtent) {
        const auto mi = static_cast<int>(std::min(m - i, kMaxExtent));
        const auto nj = static_cast<int>(std::min(n - j, kMaxExtent));
        const auto kl = static_cast<int>(std::min(k - l, kMaxExtent));
        product(ta, tb, mi, nj, kl, alpha, a + (ta ? l * lda + i : i * lda + l),
                leading(lda, ta ? mi : kl), b + (tb ? j * ldb + l : l * ldb + j),
                leading(ldb, tb ? kl : nj), l == 0 ? beta : T(1), c + i * ldc + j,
                leading(ldc, nj));
      }
    }
  }
}

template <class T>
void parallel_gemm_impl(bool ta, bool tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a,
                        int64_t lda, const T* b, int64_t ldb, T beta, T* c, int64_t ldc) {
  const Panels p = make_panels(m, n, k);
  parallel_for(p.count(), p.grain, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t i = panel / p.column_panels * p.rows;
      const int64_t j = panel % p.column_panels * p.columns;
      gemm_impl(ta, tb, std::min(p.rows, m - i), std::min(p.columns, n - j), k, alpha,
                a + (ta ? i : i * lda), lda, b + (tb ? j * ldb : j), ldb, beta, c + i * ldc + j,
                ldc);
    }
  });
}

}  // namespace

Panels make_panels(int64_t m, int64_t n, int64_t k) {
  // Large enough to use the caches well and to be worth a call, small enough that many threads get
  // some each.
  constexpr int64_t kGrain = int64_t{1} << 20;  // multiplications worth a thread
  const auto round_up = [](int64_t extent) { return ceil_div(extent, 16) * 16; };
  int64_t rows = std::clamp<int64_t>(round_up(m), 16, 256);
  int64_t columns = std::clamp<int64_t>(round_up(n), 16, 512);
  while (ceil_div(m, rows) * ceil_div(n, columns) < 32 && rows * columns > 64 * 128 &&
         std::min(m, rows) * std::min(n, columns) * k > kGrain / 2) {
    (columns > rows ? columns : rows) /= 2;
  }
  const auto even = [&](int64_t extent, int64_t part) {  // parts of about equal size
    const int64_t parts = std::max<int64_t>(ceil_div(extent, part), 1);
    return std::max<int64_t>(round_up(ceil_div(extent, parts)), 16);
  };
  Panels p;
  p.rows = even(m, rows);
  p.columns = even(n, columns);
  p.row_panels = ceil_div(m, p.rows);
  p.column_panels = ceil_div(n, p.columns);
  p.grain = 1 + kGrain / (std::min(m, p.rows) * std::min(n, p.columns) * k + 1);
  return p;
}

void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
          int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  gemm_impl(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, double alpha, const double* a,
          int64_t lda, const double* b, int64_t ldb, double beta, double* c, int64_t ldc) {
  gemm_impl(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
void parallel_gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
                   int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  parallel_gemm_impl(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
void parallel_gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, double alpha, const double* a,
                   int64_t lda, const double* b, int64_t ldb, double beta, double* c, int64_t ldc) {
  parallel_gemm_impl(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

}  // namespace dlkern::cpu
