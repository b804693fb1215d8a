// Matrix products on the CPU: y is cut into panels (cpu/prims/blas.h) that threads compute one by
// one. A panel of an operand goes to BLAS where it lies if its type and strides allow it; else the
// panel is converted, a piece of k at a time, into a buffer that stays in cache. A panel of y is
// computed in place, or in a buffer of float where y is of another type or strided along n.
//
// Panels and pieces depend on the shape alone, so the bits do not depend on the number of threads;
// nor do they on the item's place in the batch.
#include "ops/gemm.h"

#include <memory>

#include "core/activation_math.h"
#include "cpu/prims/blas.h"
#include "cpu/prims/convert.h"
#include "cpu/prims/parallel.h"
#include "cpu/prims/vmath.h"

namespace dlkern {
namespace {

using namespace cpu;

constexpr int64_t kPiece = 128;  // of k, where an operand is converted

// A matrix that BLAS can read: rows x cols, stored so or transposed.
template <class Acc>
struct BlasOperand {
  const Acc* data;
  int64_t ld;
  bool transposed;
};

// Whether BLAS can take rows `row` apart whose elements are `col` apart (or the transpose of that).
inline bool is_blas_layout(int64_t rows, int64_t cols, int64_t row, int64_t col) {
  return (col == 1 || cols == 1) && (rows == 1 || (row >= cols && row <= INT32_MAX));
}

// One operand of the products of a panel. `row` and `col` are strides.
template <class T>
class Operand {
  using Acc = Accumulator<T>;

 public:
  // The largest piece will be rows x cols; `direct` as is_direct() says.
  Operand(int64_t rows, int64_t cols, bool direct)
      : direct_(direct), buffer_(direct ? nullptr : new Acc[rows * cols]) {}

  static bool is_direct(int64_t rows, int64_t cols, int64_t row, int64_t col) {
    return std::is_same_v<T, Acc> &&
           (is_blas_layout(rows, cols, row, col) || is_blas_layout(cols, rows, col, row));
  }

  BlasOperand<Acc> get(const T* data, int64_t rows, int64_t cols, int64_t row, int64_t col) {
    if constexpr (std::is_same_v<T, Acc>) {
      if (direct_) {
        if (is_blas_layout(rows, cols, row, col)) return {data, rows == 1 ? cols : row, false};
        return {data, cols == 1 ? rows : col, true};
      }
    }
    Acc* out = buffer_.get();
    if (std::abs(col) <= std::abs(row)) {
      for (int64_t i = 0; i < rows; ++i) load_span(data + i * row, col, cols, out + i * cols);
      return {out, cols, false};
    }
    for (int64_t j = 0; j < cols; ++j) load_span(data + j * col, row, rows, out + j * rows);
    return {out, rows, true};
  }

 private:
  bool direct_;
  std::unique_ptr<Acc[]> buffer_;
};

template <class Acc>
void load_row(const Matrix& t, int64_t at, int64_t n, Acc* row) {
  dispatch_floating(t.dtype, [&]<class T>() { load_span(t.as<const T>() + at, t.col, n, row); });
}
template <class Acc>
void store_row(const Acc* row, const Matrix& t, int64_t at, int64_t n) {
  dispatch_floating(t.dtype, [&]<class T>() { store_span(row, t.as<T>() + at, t.col, n); });
}

// What one thread needs to compute panels of y.
template <class T>
class Worker {
  using Acc = Accumulator<T>;

 public:
  Worker(const Gemm& g, const Panels& panels)
      : g_(g),
        rows_(std::min(panels.rows, g.m)),
        cols_(std::min(panels.columns, g.n)),
        inner_(g.k.ndim ? g.k.shape[g.k.ndim - 1] : 1),
        a_k_(g.k.ndim ? g.k.stride[0][g.k.ndim - 1] : 0),
        b_k_(g.k.ndim ? g.k.stride[1][g.k.ndim - 1] : 0),
        direct_a_(Operand<T>::is_direct(rows_, inner_, g.a.row, a_k_)),
        direct_b_(Operand<T>::is_direct(inner_, cols_, b_k_, g.b.col)),
        piece_(direct_a_ && direct_b_ ? inner_ : std::min(inner_, kPiece)),
        a_(rows_, piece_, direct_a_),
        b_(piece_, cols_, direct_b_),
        in_place_(g.y.dtype == dtype && is_blas_layout(rows_, cols_, g.y.row, g.y.col)),
        buffer_(in_place_ ? nullptr : new Acc[rows_ * cols_]) {}

  // Rows i0 .. i0 + rows, columns j0 .. j0 + cols of the batch item whose tensors begin at `at`.
  void compute(const int64_t (&at)[Gemm::kTensors], int64_t i0, int64_t rows, int64_t j0,
               int64_t cols) {
    const int64_t y_at = at[3] + i0 * g_.y.row + j0 * g_.y.col;
    Acc* panel = in_place_ ? g_.y.as<Acc>() + y_at : buffer_.get();
    const int64_t ld = in_place_ && rows > 1 ? g_.y.row : cols;
    // BLAS adds to what is in the panel, where c is.
    const bool c_in_place = in_place_ && g_.c.data == g_.y.data;
    if (g_.beta != 0 && !c_in_place) {
      for (int64_t i = 0; i < rows; ++i) {
        Acc* row = panel + i * ld;
        load_row(g_.c, at[2] + (i0 + i) * g_.c.row + j0 * g_.c.col, cols, row);
        for (int64_t j = 0; j < cols && g_.beta != 1; ++j) row[j] *= static_cast<Acc>(g_.beta);
      }
    }
    const Acc keep = g_.beta == 0 ? Acc(0) : c_in_place ? static_cast<Acc>(g_.beta) : Acc(1);
    multiply(g_.a.as<const T>() + at[0] + i0 * g_.a.row, rows,
             g_.b.as<const T>() + at[1] + j0 * g_.b.col, cols, keep, panel, ld);
    finish(panel, ld, rows, cols, at[4] + i0 * g_.pre.row + j0 * g_.pre.col, y_at);
  }

 private:
  static constexpr DType dtype = std::is_same_v<Acc, double> ? DType::kFloat64 : DType::kFloat32;

  void multiply(const T* a, int64_t rows, const T* b, int64_t cols, Acc keep, Acc* panel,
                int64_t ld) {
    const auto alpha = static_cast<Acc>(g_.alpha);
    if (g_.k.numel == 0)
      return gemm(false, false, rows, cols, 0, alpha, panel, 1, panel, 1, keep, panel, ld);
    for (int64_t outer = 0; outer < g_.k.numel; outer += inner_) {
      int64_t at[2];
      g_.k.offsets(outer, at);
      for (int64_t k = 0; k < inner_; k += piece_) {
        const int64_t depth = std::min(piece_, inner_ - k);
        const auto x = a_.get(a + at[0] + k * a_k_, rows, depth, g_.a.row, a_k_);
        const auto y = b_.get(b + at[1] + k * b_k_, depth, cols, b_k_, g_.b.col);
        gemm(x.transposed, y.transposed, rows, cols, depth, alpha, x.data, x.ld, y.data, y.ld, keep,
             panel, ld);
        keep = 1;
      }
    }
  }

  // Activation and the ways out, row by row.
  void finish(Acc* panel, int64_t ld, int64_t rows, int64_t cols, int64_t pre_at, int64_t y_at) {
    for (int64_t i = 0; i < rows; ++i) {
      Acc* row = panel + i * ld;
      if (g_.pre.data) store_row(row, g_.pre, pre_at + i * g_.pre.row, cols);
      activate_row(row, cols);
      if (!in_place_) store_row(row, g_.y, y_at + i * g_.y.row, cols);
    }
  }

  void activate_row(Acc* row, int64_t n) const {
    const ActivationScalars<Acc> scalars(g_.activation_alpha, g_.activation_threshold);
    dispatch_activation(g_.activation, [=]<dlk_activation kKind>() {
      if constexpr (kKind != DLK_ACTIVATION_NONE) {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) {
          row[i] = activation_forward<kKind, VectorMath>(row[i], scalars);
        }
      }
    });
  }

  const Gemm& g_;
  int64_t rows_, cols_;        // of the largest panel
  int64_t inner_, a_k_, b_k_;  // innermost dimension of k, and the strides along it
  bool direct_a_, direct_b_;
  int64_t piece_;
  Operand<T> a_, b_;
  bool in_place_;
  std::unique_ptr<Acc[]> buffer_;
};

// row_sum[m] (+)= sum_k a[m, k]: columns of a few rows at a time, and block sums of block sums, so
// that rounding errors grow with the number of blocks only.
template <class T>
void sum_rows(const Gemm& g) {
  using Acc = Accumulator<T>;
  constexpr int64_t kRows = 64, kBlock = 256;
  parallel_for(ceil_div(g.m, kRows), 1 + 32768 / (kRows * (g.k.numel + 1)),
               [&](int64_t begin, int64_t end) {
                 Acc total[kRows], block[kRows], column[kRows];
                 for (int64_t i0 = begin * kRows; i0 < std::min(end * kRows, g.m); i0 += kRows) {
                   const int64_t rows = std::min(kRows, g.m - i0);
                   std::fill_n(total, kRows, Acc(0));
                   for (int64_t k0 = 0; k0 < g.k.numel; k0 += kBlock) {
                     std::fill_n(block, kRows, Acc(0));
                     for (int64_t k = k0; k < std::min(k0 + kBlock, g.k.numel); ++k) {
                       int64_t at[2];
                       g.k.offsets(k, at);
                       const T* first = g.a.as<const T>() + at[0] + i0 * g.a.row;
                       const Acc* v = read_span(first, g.a.row, rows, column);
                       for (int64_t i = 0; i < rows; ++i) block[i] += v[i];
                     }
                     for (int64_t i = 0; i < rows; ++i) total[i] += block[i];
                   }
                   const Matrix out{g.row_sum.data, g.row_sum.dtype, 0, g.row_sum.row};
                   if (g.add_row_sum) {
                     load_row(out, i0 * out.col, rows, column);
                     for (int64_t i = 0; i < rows; ++i) total[i] += column[i];
                   }
                   store_row(total, out, i0 * out.col, rows);
                 }
               });
}

template <class T>
void run(const Gemm& g) {
  const Panels panels = make_panels(g.m, g.n, g.k.numel);
  const int64_t per_item = panels.count();
  parallel_for(g.batch.numel * per_item, panels.grain, [&](int64_t begin, int64_t end) {
    Worker<T> worker(g, panels);
    for (int64_t i = begin; i < end; ++i) {
      int64_t at[Gemm::kTensors];
      g.batch.offsets(i / per_item, at);
      const int64_t i0 = i % per_item / panels.column_panels * panels.rows;
      const int64_t j0 = i % per_item % panels.column_panels * panels.columns;
      worker.compute(at, i0, std::min(panels.rows, g.m - i0), j0,
                     std::min(panels.columns, g.n - j0));
    }
  });
  if (g.row_sum.data) sum_rows<T>(g);
}

constexpr Impl<Gemm> kGemm[] = {
    {"blas_panels", supports_all, nullptr,
     [](const Gemm& g, const Launch&) {
       dispatch_floating(g.a.dtype, [&]<class T>() { run<T>(g); });
     }},
};

}  // namespace

template <>
ImplList<Gemm> cpu_impls<Gemm>() {
  return kGemm;
}

}  // namespace dlkern
