// What the matrix products of the CPU backend share: how y is cut into panels.
#pragma once

#include <memory>
#include <vector>

#include "cpu/gemm_finish.h"
#include "cpu/prims/blas.h"
#include "cpu/prims/parallel.h"
#include "ops/gemm.h"

namespace dlkern::cpu {

// A panel of y: rows i0 .. i0 + rows, columns j0 .. j0 + cols of a batch item, whose sums run over
// k_begin .. k_end of the innermost dimension of k.
struct Panel {
  int64_t item, i0, rows, j0, cols, k_begin, k_end;
};

// All panels of a problem. They depend on its shape (and on the offsets of groups) alone, so that
// the bits do not depend on the number of threads.
class PanelList {
 public:
  explicit PanelList(const Gemm& g);

  int64_t count() const { return grouped_ ? static_cast<int64_t>(listed_.size()) : count_; }
  int64_t grain() const { return panels_.grain; }
  int64_t rows() const { return rows_; }  // of the largest panel
  int64_t cols() const { return cols_; }
  Panel operator[](int64_t i) const;

 private:
  void list_groups(const Gemm& g);

  bool grouped_;
  int64_t m_, n_, inner_, count_ = 0, rows_ = 0, cols_ = 0;
  Panels panels_;
  std::vector<Panel> listed_;
};

// k's innermost extent.
inline int64_t inner_extent(const Gemm& g) { return g.k.ndim ? g.k.shape[g.k.ndim - 1] : 1; }
inline int64_t inner_stride(const Gemm& g, int operand) {
  return g.k.ndim ? g.k.stride[operand][g.k.ndim - 1] : 0;
}

// work(worker, panel) for all panels; each thread has a worker of its own.
template <class Worker>
void for_each_panel(const Gemm& g) {
  const PanelList panels(g);
  if (g.amax) *g.amax = 0;
  parallel_for(panels.count(), panels.grain(), [&](int64_t begin, int64_t end) {
    Worker worker(g, panels.rows(), panels.cols());
    for (int64_t i = begin; i < end; ++i) worker.compute(panels[i]);
    worker.end();
  });
}

// c[m, n] += a[m, k] b[k, n], each sum one chain of multiply-adds in the order of k whatever the
// extents. a is packed as [m / kOrderedRows][k][kOrderedRows], b as [n / kOrderedCols][k]
// [kOrderedCols], both padded with zeros; c is row-major, `ldc` apart, padded to the same multiples.
inline constexpr int64_t kOrderedRows = 6, kOrderedCols = 16;
void ordered_gemm(int64_t m, int64_t n, int64_t k, const float* a, const float* b, float* c,
                  int64_t ldc);
void ordered_gemm(int64_t m, int64_t n, int64_t k, const double* a, const double* b, double* c,
                  int64_t ldc);

// sum_k a[k] b[k], in an order that depends on k alone.
float dot(int64_t k, const float* a, const float* b);
double dot(int64_t k, const double* a, const double* b);

// gemm_int8.cpp: exact sums in int32.
void run_int8(const Gemm& g);

}  // namespace dlkern::cpu
