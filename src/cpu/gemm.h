// What the matrix products of the CPU backend share: how y is cut into panels, and what becomes of
// the sums.
#pragma once

#include <atomic>
#include <cmath>
#include <memory>
#include <vector>

#include "core/activation_math.h"
#include "core/fast_math.h"
#include "cpu/prims/any_dtype.h"
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

// The epilogue of one thread's panels, row by row.
template <class Acc>
class Finish {
 public:
  Finish(const Gemm& g, int64_t cols) : g_(g), other_(new Acc[std::max<int64_t>(cols, 1)]) {}

  // What is still to be done to sums: factors, alpha and c.
  void scale(Acc* row, int64_t item, const int64_t (&at)[Gemm::kTensors], int64_t i, int64_t j0,
             int64_t n) {
    // One after the other: their product may be infinite where the result is not.
    if (g_.scale_a.data && !g_.scale_a.along_depth()) {
      const Acc factor = g_.scale_a.at(item, i, 0);
      for (int64_t j = 0; j < n; ++j) row[j] *= factor;
    }
    if (g_.scale_b.data && !g_.scale_b.along_depth()) {
      for (int64_t j = 0; j < n; ++j) row[j] *= g_.scale_b.at(item, j0 + j, 0);
    }
    const auto alpha = static_cast<Acc>(g_.alpha), beta = static_cast<Acc>(g_.beta);
    for (int64_t j = 0; j < n && alpha != 1; ++j) row[j] *= alpha;
    if (beta == 0) return;
    load(g_.c, at[2], i, j0, n);
    for (int64_t j = 0; j < n; ++j) row[j] += beta * other_[j];
  }

  // The rest. in_place: row is y's own.
  void store(Acc* row, const int64_t (&at)[Gemm::kTensors], int64_t i, int64_t j0, int64_t n,
             bool in_place) {
    if (g_.pre.data) put(row, g_.pre, at[4], i, j0, n);
    activate(row, at, i, j0, n);
    if (g_.residual.data) {
      load(g_.residual, at[5], i, j0, n);
      for (int64_t j = 0; j < n; ++j) row[j] += other_[j];
    }
    if (g_.amax) {
      for (int64_t j = 0; j < n; ++j) take_largest(std::abs(row[j]));
    }
    if (g_.scale_y) {
      for (int64_t j = 0; j < n; ++j) row[j] *= *g_.scale_y;
    }
    if (!in_place) put(row, g_.y, at[3], i, j0, n);
  }

  // After the last panel. The order in which threads come here does not matter.
  void finish_amax() {
    if (!g_.amax) return;
    std::atomic_ref<uint32_t> bits(*reinterpret_cast<uint32_t*>(g_.amax));
    uint32_t before = bits.load();
    while (before < largest_ && !bits.compare_exchange_weak(before, largest_)) {
    }
  }

 private:
  void load(const Matrix& t, int64_t at, int64_t i, int64_t j0, int64_t n) {
    load_any_span(t.dtype, t.data, at + i * t.row + j0 * t.col, t.col, n, other_.get());
  }
  static void put(const Acc* row, const Matrix& t, int64_t at, int64_t i, int64_t j0, int64_t n) {
    store_any_span(row, t.dtype, t.data, at + i * t.row + j0 * t.col, t.col, n);
  }
  // Non-negative floats are ordered as their bits are, and NaN is above all.
  void take_largest(Acc v) {
    const auto bits = v != v ? 0x7fc00000u : bit_cast_to<uint32_t>(static_cast<float>(v));
    largest_ = std::max(largest_, bits);
  }

  void activate(Acc* row, const int64_t (&at)[Gemm::kTensors], int64_t i, int64_t j0, int64_t n) {
    const ActivationScalars<Acc> scalars(g_.activation_alpha, g_.activation_threshold);
    if (g_.activation == DLK_ACTIVATION_NONE) return;
    if (g_.saved.data) load(g_.saved, at[6], i, j0, n);
    const Acc* saved = g_.saved.data ? other_.get() : nullptr;
    dispatch_activation(g_.activation, [=]<dlk_activation kKind>() {
      if (saved) {
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) {
          row[j] = activation_backward<kKind, FastMath>(row[j], saved[j], scalars);
        }
      } else {
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) {
          row[j] = activation_forward<kKind, FastMath>(row[j], scalars);
        }
      }
    });
  }

  const Gemm& g_;
  std::unique_ptr<Acc[]> other_;
  uint32_t largest_ = 0;
};

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
