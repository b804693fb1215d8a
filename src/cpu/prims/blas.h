// Matrix products of contiguous-row matrices by OpenBLAS, in float and double.
//
//     C[m, n] = alpha * op(A)[m, k] op(B)[k, n] + beta * C
//
// Row-major: element (i, j) of a stored matrix lies at i * ld + j, and 1 <= ld, columns <= ld.
// op(A) is A stored as [m, k], or for ta = true the transpose of A stored as [k, m]; likewise B.
// beta = 0: C is not read, so that NaN in it does not matter. alpha = 0 or k = 0: A and B are not
// read and C becomes beta * C. C overlaps neither A nor B. Extents may be 0.
#pragma once

#include <cstdint>

namespace dlkern::cpu {

// On the calling thread alone, whatever the number of threads; may be called by many at once. The
// bits depend on the arguments only.
void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
          int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc);
void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, double alpha, const double* a,
          int64_t lda, const double* b, int64_t ldb, double beta, double* c, int64_t ldc);

// The same on all threads: one gemm() per panel of C. The panels depend on m, n and k only, so the
// bits do not depend on the number of threads.
void parallel_gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
                   int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc);
void parallel_gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, double alpha, const double* a,
                   int64_t lda, const double* b, int64_t ldb, double beta, double* c, int64_t ldc);

// How parallel_gemm cuts C into panels of rows x columns, for callers that make their own panels.
struct Panels {
  int64_t rows, columns;  // of a panel; the last ones may be smaller
  int64_t row_panels, column_panels;
  int64_t grain;  // panels worth a thread
  int64_t count() const { return row_panels * column_panels; }
};
Panels make_panels(int64_t m, int64_t n, int64_t k);

}  // namespace dlkern::cpu
