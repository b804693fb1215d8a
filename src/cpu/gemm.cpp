// Matrix products on the CPU: y is cut into panels (cpu/prims/blas.h) that threads compute one by
// one. A panel of an operand goes to BLAS where it lies if its type and strides allow it; else the
// panel is converted, a piece of k at a time, into a buffer that stays in cache. A panel of y is
// computed in place, or in a buffer of float where y is of another type or strided along n.
//
// Panels and pieces depend on the shape alone, so the bits do not depend on the number of threads;
// nor do they on the item's place in the batch. Where they must not depend on the number of rows
// either, the sums are made in order (gemm_ordered.cpp) instead of by BLAS. int8: gemm_int8.cpp.
#include "cpu/gemm.h"

namespace dlkern {
namespace cpu {

PanelList::PanelList(const Gemm& g)
    : grouped_(g.is_grouped()),
      m_(g.m),
      n_(g.n),
      inner_(inner_extent(g)),
      panels_(make_panels(g.m, g.n, g.k.numel)) {
  if (grouped_) {
    list_groups(g);
    return;
  }
  count_ = g.batch.numel * panels_.count();
  rows_ = std::min(panels_.rows, g.m);
  cols_ = std::min(panels_.columns, g.n);
}

Panel PanelList::operator[](int64_t i) const {
  if (grouped_) return listed_[i];
  const int64_t panel = i % panels_.count();
  const int64_t i0 = panel / panels_.column_panels * panels_.rows;
  const int64_t j0 = panel % panels_.column_panels * panels_.columns;
  return {i / panels_.count(),
          i0,
          std::min(panels_.rows, m_ - i0),
          j0,
          std::min(panels_.columns, n_ - j0),
          0,
          inner_};
}

void PanelList::list_groups(const Gemm& g) {
  const bool by_rows = g.groups.along == Groups::Along::kRows;
  for (int64_t item = 0; item < g.batch.numel; ++item) {
    const int64_t extent = by_rows ? g.m : g.k.numel;
    const int64_t begin = g.groups.begin(item, extent), end = g.groups.end(item, extent);
    const int64_t first = by_rows ? begin : 0, rows = by_rows ? end - begin : g.m;
    const int64_t depth = by_rows ? g.k.numel : std::max<int64_t>(end - begin, 0);
    if (rows <= 0 || g.n == 0) continue;
    const Panels p = make_panels(rows, g.n, depth);
    for (int64_t i = 0; i < rows; i += p.rows) {
      for (int64_t j = 0; j < g.n; j += p.columns) {
        const int64_t k = by_rows ? 0 : begin;
        listed_.push_back({item, first + i, std::min(p.rows, rows - i), j,
                           std::min(p.columns, g.n - j), k, k + (by_rows ? inner_ : depth)});
        rows_ = std::max(rows_, listed_.back().rows);
        cols_ = std::max(cols_, listed_.back().cols);
      }
    }
  }
}

namespace {

constexpr int64_t kPiece = kScaleDepth;  // of k, where an operand is converted
constexpr int64_t kThinRows = 4, kThinPiece = 16 * kScaleDepth;

// Part of an operand as [r][k] (along_k) or [k][r], rows of it `ld` apart.
template <class Acc>
struct Part {
  const Acc* data;
  int64_t ld;
  bool along_k;
};

// An operand's elements (r, k), r being m of a or n of b, as numbers of type Acc.
template <class Acc>
class Operand {
 public:
  Operand(const Matrix& t, const Scale& scale, int64_t row, int64_t k, int64_t rows, int64_t depth)
      : t_(t), scale_(scale), row_(row), k_(k) {
    constexpr DType kAcc = sizeof(Acc) == 8 ? DType::kFloat64 : DType::kFloat32;
    direct_ = t.dtype == kAcc && !scale.along_depth() &&
              (is_blas_layout(rows, depth, row, k) || is_blas_layout(depth, rows, k, row));
  }

  bool is_direct() const { return direct_; }
  bool runs_along_k() const { return std::abs(k_) <= std::abs(row_); }
  // Of the batch; `at` says where the elements lie, this where their factors do.
  void set_item(int64_t item) { item_ = item; }
  void reserve(int64_t elements) { buffer_.reset(new Acc[std::max<int64_t>(elements, 1)]); }

  // Where it lies, or in the buffer.
  Part<Acc> get(int64_t at, int64_t r, int64_t rows, int64_t k, int64_t depth) {
    if (direct_) {
      const Acc* data = t_.as<const Acc>() + at + r * row_ + k * k_;
      if (is_blas_layout(rows, depth, row_, k_)) return {data, rows == 1 ? depth : row_, true};
      return {data, depth == 1 ? rows : k_, false};
    }
    const bool along_k = runs_along_k();
    const int64_t ld = along_k ? depth : rows, count = along_k ? rows : depth;
    for (int64_t i = 0; i < count; ++i) {
      load(along_k, at, along_k ? r + i : r, along_k ? k : k + i, ld, buffer_.get() + i * ld);
    }
    return {buffer_.get(), ld, along_k};
  }

  // As [r][k], always in the buffer.
  const Acc* rows_along_k(int64_t at, int64_t r, int64_t rows, int64_t k, int64_t depth) {
    for (int64_t i = 0; i < rows; ++i) {
      load(true, at, r + i, k, depth, buffer_.get() + i * depth);
    }
    return buffer_.get();
  }

  // Packed as ordered_gemm() wants it: [rows / width][depth][width], padded with zeros.
  const Acc* pack(int64_t at, int64_t r, int64_t rows, int64_t k, int64_t depth, int64_t width,
                  Acc* span) {
    Acc* out = buffer_.get();
    std::fill_n(out, ceil_div(rows, width) * width * depth, Acc(0));
    if (runs_along_k()) {
      for (int64_t i = 0; i < rows; ++i) {
        load(true, at, r + i, k, depth, span);
        Acc* to = out + i / width * width * depth + i % width;
        for (int64_t l = 0; l < depth; ++l) to[l * width] = span[l];
      }
    } else {
      for (int64_t l = 0; l < depth; ++l) {
        load(false, at, r, k + l, rows, span);
        for (int64_t i = 0; i < rows; i += width) {
          std::copy_n(span + i, std::min(width, rows - i), out + i * depth + l * width);
        }
      }
    }
    return out;
  }

  // Whether BLAS can take rows `row` apart whose elements are `col` apart.
  static bool is_blas_layout(int64_t rows, int64_t cols, int64_t row, int64_t col) {
    return (col == 1 || cols == 1) && (rows == 1 || (row >= cols && row <= INT32_MAX));
  }

 private:
  // n elements from (r, k) on, along k or along r, with their factors along the depth.
  void load(bool along_k, int64_t at, int64_t r, int64_t k, int64_t n, Acc* out) const {
    load_any_span(t_.dtype, t_.data, at + r * row_ + k * k_, along_k ? k_ : row_, n, out);
    if (!scale_.along_depth()) return;
    if (!along_k) {
      for (int64_t i = 0; i < n; ++i) out[i] *= scale_.at(item_, r + i, k);
      return;
    }
    for (int64_t i = 0; i < n;) {
      const int64_t end = std::min(n, ((k + i) / kScaleDepth + 1) * kScaleDepth - k);
      for (const Acc factor = scale_.at(item_, r, k + i); i < end; ++i) out[i] *= factor;
    }
  }

  Matrix t_;
  Scale scale_;
  int64_t row_, k_, item_ = 0;
  bool direct_;
  std::unique_ptr<Acc[]> buffer_;
};

// What one thread needs to compute panels of y.
template <class Acc>
class Worker {
 public:
  Worker(const Gemm& g, int64_t rows, int64_t cols)
      : g_(g),
        inner_(inner_extent(g)),
        a_(g.a, g.scale_a, g.a.row, inner_stride(g, 0), rows, inner_),
        b_(g.b, g.scale_b, g.b.col, inner_stride(g, 1), cols, inner_),
        finish_(g, cols),
        ordered_(g.batch_invariant),
        thin_(rows <= kThinRows && !ordered_ && !b_.is_direct() && b_.runs_along_k()),
        raw_(ordered_ || thin_ || g.is_scaled()) {
    constexpr DType kAcc = sizeof(Acc) == 8 ? DType::kFloat64 : DType::kFloat32;
    // A residual in y itself would be lost.
    in_place_ = g.y.dtype == kAcc && !raw_ && g.residual.data != g.y.data &&
                Operand<Acc>::is_blas_layout(rows, cols, g.y.row, g.y.col);
    piece_ = thin_                                           ? std::min(inner_, kThinPiece)
             : a_.is_direct() && b_.is_direct() && !ordered_ ? inner_
                                                             : std::min(inner_, kPiece);
    rows_ = ceil_div(rows, kOrderedRows) * kOrderedRows;
    cols_ = ceil_div(cols, kOrderedCols) * kOrderedCols;
    if (!a_.is_direct() || raw_) a_.reserve(rows_ * piece_);
    if (!b_.is_direct() || ordered_) b_.reserve((thin_ ? 1 : cols_) * piece_);
    if (!in_place_) panel_.reset(new Acc[rows_ * cols_ + 1]);
    if (ordered_) span_.reset(new Acc[std::max({rows_, cols_, piece_, int64_t{1}})]);
  }

  void compute(const Panel& p) {
    int64_t at[Gemm::kTensors];
    g_.batch.offsets(p.item, at);
    a_.set_item(p.item);
    b_.set_item(p.item);
    const int64_t y_at = at[3] + p.i0 * g_.y.row + p.j0 * g_.y.col;
    Acc* panel = in_place_ ? g_.y.as<Acc>() + y_at : panel_.get();
    const int64_t ld = in_place_ ? (p.rows > 1 ? g_.y.row : p.cols) : cols_;
    if (raw_) {
      std::fill_n(panel, rows_ * cols_, Acc(0));
      if (ordered_) {
        multiply_in_order(p, at);
      } else if (thin_) {
        multiply_thin(p, at);
      } else {
        multiply(p, at, Acc(1), Acc(1), panel, ld);
      }
    } else {
      multiply(p, at, static_cast<Acc>(g_.alpha), begin(p, at, panel, ld), panel, ld);
    }
    for (int64_t i = 0; i < p.rows; ++i) {
      if (raw_) finish_.scale(panel + i * ld, p.item, at, p.i0 + i, p.j0, p.cols);
      finish_.store(panel + i * ld, at, p.i0 + i, p.j0, p.cols, in_place_);
    }
  }
  void end() { finish_.finish_amax(); }

 private:
  // What BLAS adds to: beta c in the panel, or c where it lies. Returns BLAS's beta.
  Acc begin(const Panel& p, const int64_t (&at)[Gemm::kTensors], Acc* panel, int64_t ld) const {
    if (g_.beta == 0) return 0;
    const auto beta = static_cast<Acc>(g_.beta);
    if (in_place_ && g_.c.data == g_.y.data) return beta;
    for (int64_t i = 0; i < p.rows; ++i) {
      Acc* row = panel + i * ld;
      load_any_span(g_.c.dtype, g_.c.data, at[2] + (p.i0 + i) * g_.c.row + p.j0 * g_.c.col,
                    g_.c.col, p.cols, row);
      for (int64_t j = 0; j < p.cols && beta != 1; ++j) row[j] *= beta;
    }
    return 1;
  }

  // f(offset of a, offset of b, k, depth) for all pieces of the sums.
  template <class F>
  void for_each_piece(const Panel& p, const int64_t (&at)[Gemm::kTensors], F&& f) {
    for (int64_t outer = 0; outer < g_.k.numel; outer += inner_) {
      int64_t from[2];
      g_.k.offsets(outer, from);
      for (int64_t k = p.k_begin; k < p.k_end; k += piece_) {
        f(at[0] + from[0], at[1] + from[1], k, std::min(piece_, p.k_end - k));
      }
    }
  }

  void multiply(const Panel& p, const int64_t (&at)[Gemm::kTensors], Acc alpha, Acc keep,
                Acc* panel, int64_t ld) {
    if (g_.k.numel == 0 || p.k_end <= p.k_begin)
      return gemm(false, false, p.rows, p.cols, 0, alpha, panel, 1, panel, 1, keep, panel, ld);
    for_each_piece(p, at, [&](int64_t a_at, int64_t b_at, int64_t k, int64_t depth) {
      const auto x = a_.get(a_at, p.i0, p.rows, k, depth);
      const auto y = b_.get(b_at, p.j0, p.cols, k, depth);
      gemm(!x.along_k, y.along_k, p.rows, p.cols, depth, alpha, x.data, x.ld, y.data, y.ld, keep,
           panel, ld);
      keep = 1;
    });
  }

  void multiply_in_order(const Panel& p, const int64_t (&at)[Gemm::kTensors]) {
    for_each_piece(p, at, [&](int64_t a_at, int64_t b_at, int64_t k, int64_t depth) {
      const Acc* x = a_.pack(a_at, p.i0, p.rows, k, depth, kOrderedRows, span_.get());
      const Acc* y = b_.pack(b_at, p.j0, p.cols, k, depth, kOrderedCols, span_.get());
      ordered_gemm(p.rows, p.cols, depth, x, y, panel_.get(), cols_);
    });
  }

  // A few rows, with b to be converted: each row of b^T meets them while it is in the fastest cache.
  void multiply_thin(const Panel& p, const int64_t (&at)[Gemm::kTensors]) {
    for_each_piece(p, at, [&](int64_t a_at, int64_t b_at, int64_t k, int64_t depth) {
      const Acc* x = a_.rows_along_k(a_at, p.i0, p.rows, k, depth);
      for (int64_t j = 0; j < p.cols; ++j) {
        const Acc* y = b_.rows_along_k(b_at, p.j0 + j, 1, k, depth);
        for (int64_t i = 0; i < p.rows; ++i) {
          panel_[i * cols_ + j] += dot(depth, x + i * depth, y);
        }
      }
    });
  }

  const Gemm& g_;
  int64_t inner_;
  Operand<Acc> a_, b_;
  Finish<Acc> finish_;
  bool ordered_, thin_;
  bool raw_;  // factors, alpha and c are left to the end
  bool in_place_;
  int64_t piece_, rows_, cols_;  // rows_ and cols_: of the panel's buffer
  std::unique_ptr<Acc[]> panel_, span_;
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
                   const Matrix& out = g.row_sum;
                   if (g.add_row_sum) {
                     load_any_span(out.dtype, out.data, i0 * out.row, out.row, rows, column);
                     for (int64_t i = 0; i < rows; ++i) total[i] += column[i];
                   }
                   store_any_span(total, out.dtype, out.data, i0 * out.row, out.row, rows);
                 }
               });
}

void run(const Gemm& g, const Launch&) {
  if (g.a.dtype == DType::kInt8) return run_int8(g);
  if (g.a.dtype == DType::kFloat64) {
    for_each_panel<Worker<double>>(g);
  } else {
    for_each_panel<Worker<float>>(g);
  }
  if (g.row_sum.data) {
    dispatch_floating(g.a.dtype, [&]<class T>() { sum_rows<T>(g); });
  }
}

constexpr const char* kInOrder = "a row's bits may depend on the number of rows";
constexpr Impl<Gemm> kGemm[] = {
    {"int8_panels",
     [](const Gemm& g) -> const char* { return g.a.dtype == DType::kInt8 ? nullptr : "not int8"; },
     nullptr, run},
    {"ordered_panels", [](const Gemm& g) { return g.batch_invariant ? nullptr : kInOrder; },
     nullptr, run},
    {"blas_panels", supports_all, nullptr, run},
};

}  // namespace
}  // namespace cpu

template <>
ImplList<Gemm> cpu_impls<Gemm>() {
  return cpu::kGemm;
}

}  // namespace dlkern
