// What forward pooling does with the elements of its windows.
#pragma once

#include "cuda/pool.cuh"
#include "cuda/prims/reduce.cuh"

namespace dlkern::gpu {

template <class Acc>
__device__ __forceinline__ Acc infinity() {
  return static_cast<Acc>(INFINITY);
}

// ---- What is done with a window's elements ------------------------------------------------------
//
// A Cell holds what is known of N windows after some of their taps, in row-major order:
//     begin(label of the first tap inside)   begin_row()   take(k, value, label)   end_row()
// A Row does the same for one row of taps, and is then merged into the Cells of those windows that
// hold the row. Taps outside the image are taken with the value kPadding.

template <class T>
struct MaxOp {
  using Label = int;
  static constexpr bool kLabels = false;
  static __device__ T padding() { return T(-infinity<Accumulator<T>>()); }
  template <int N>
  struct Cell {
    using Acc = Accumulator<T>;
    Acc value[N];

    __device__ __forceinline__ void begin(int k, Label) { value[k] = -infinity<Acc>(); }
    __device__ __forceinline__ void begin_row() {}
    __device__ __forceinline__ void take(const MaxOp&, int k, Acc v, Label) {
      value[k] = Max{}(v, value[k]);
    }
    __device__ __forceinline__ void end_row() {}
    __device__ __forceinline__ void merge(int k, const Cell& row, int from, Label) {
      value[k] = Max{}(row.value[from], value[k]);
    }
  };
  template <class I>
  __device__ __forceinline__ Accumulator<T> scale(const PoolShape&, const PoolPlace<I>&) const {
    return 1;
  }
  __device__ __forceinline__ Accumulator<T> result(Accumulator<T> v, Accumulator<T>) const {
    return v;
  }
};

// Labels are kept relative to that of tap 0.
template <class T, class Label_>
struct MaxIndexOp {
  using Label = Label_;
  static constexpr bool kLabels = true;
  Indices indices;
  Label step[kMaxSpatial];  // from tap to tap

  MaxIndexOp(const Tensor& t, const PoolShape& s) : indices(t) {
    const auto set = [this](int64_t d, int64_t h, int64_t w) {
      step[0] = static_cast<Label>(d), step[1] = static_cast<Label>(h);
      step[2] = static_cast<Label>(w);
    };
    const Window(&w)[kMaxSpatial] = s.window;
    if (indices.bytes == 1) {
      set(w[1].kernel * w[2].kernel, w[2].kernel, 1);
    } else {
      set(w[0].dilation * s.in[1] * s.in[2], w[1].dilation * s.in[2], w[2].dilation);
    }
  }
  // The label of tap 0 of a window, from where it lies: maybe in the padding.
  __device__ __forceinline__ Label base(const PoolShape& s, Label d, Label h, Label w) const {
    if (indices.are_taps()) return 0;
    return (d * static_cast<Label>(s.in[1]) + h) * static_cast<Label>(s.in[2]) + w;
  }
  static __device__ T padding() { return T(-infinity<Accumulator<T>>()); }
  template <int N>
  struct Cell {
    using Acc = Accumulator<T>;
    Acc value[N];
    Label label[N];

    __device__ __forceinline__ void begin(int k, Label first) {
      value[k] = -infinity<Acc>(), label[k] = first;
    }
    __device__ __forceinline__ void begin_row() {}
    __device__ __forceinline__ void take(const MaxIndexOp&, int k, Acc v, Label at) {
      const bool better = !(v <= value[k]) && value[k] == value[k];  // the first NaN stays
      value[k] = better ? v : value[k];
      label[k] = better ? at : label[k];
    }
    __device__ __forceinline__ void end_row() {}
    __device__ __forceinline__ void merge(int k, const Cell& row, int from, Label at) {
      const bool better = !(row.value[from] <= value[k]) && value[k] == value[k];
      value[k] = better ? row.value[from] : value[k];
      label[k] = better ? at + row.label[from] : label[k];
    }
  };
  template <class I>
  __device__ __forceinline__ Accumulator<T> scale(const PoolShape&, const PoolPlace<I>&) const {
    return 1;
  }
  __device__ __forceinline__ Accumulator<T> result(Accumulator<T> v, Accumulator<T>) const {
    return v;
  }
};

template <class Acc, class Op>
struct TotalCell {
  template <int N>
  struct Of {
    Acc value[N], row[N];

    template <class I>
    __device__ __forceinline__ void begin(int k, I) {
      value[k] = 0, row[k] = 0;
    }
    __device__ __forceinline__ void begin_row() {
#pragma unroll
      for (int k = 0; k < N; ++k) row[k] = 0;
    }
    template <class I>
    __device__ __forceinline__ void take(const Op& op, int k, Acc v, I) {
      row[k] += op.term(v);
    }
    __device__ __forceinline__ void end_row() {
#pragma unroll
      for (int k = 0; k < N; ++k) value[k] += row[k];
    }
    template <class I>
    __device__ __forceinline__ void merge(int k, const Of& from, int i, I) {
      value[k] += from.row[i];
    }
  };
};

template <class T>
struct AvgOp {
  using Acc = Accumulator<T>;
  using Label = int;
  static constexpr bool kLabels = false;
  PoolDivisor divisor;
  Acc uniform;  // scale() of all windows; 0: they differ

  AvgOp(const PoolDivisor& d, const PoolShape& s) : divisor(d) {
    const Acc all = static_cast<Acc>(d.uniform(s));
    uniform = all != 0 && sizeof(T) == 2 ? 1 / all : all;
  }
  static __device__ T padding() { return T(Acc(0)); }
  __device__ __forceinline__ Acc term(Acc v) const { return v; }
  template <int N>
  using Cell = typename TotalCell<Acc, AvgOp>::template Of<N>;
  // Of a window; the results of one in 16 bits are right with a reciprocal, too.
  template <class I>
  __device__ __forceinline__ Acc scale(const PoolShape& s, const PoolPlace<I>& o) const {
    if (uniform != 0) return uniform;
    const Acc by = static_cast<Acc>(divisor.rows(s, o.d, o.h) * divisor.columns(s, o.w));
    return sizeof(T) == 2 ? reciprocal(by) : by;
  }
  __device__ __forceinline__ Acc result(Acc sum, Acc scale) const {
    return sizeof(T) == 2 ? sum * scale : sum / scale;
  }
};

template <class T, class Norm>
struct LpOp {
  using Acc = Accumulator<T>;
  using Label = int;
  static constexpr bool kLabels = false;
  Norm norm;

  static __device__ T padding() { return T(Acc(0)); }
  __device__ __forceinline__ Acc term(Acc v) const { return norm.power(v); }
  template <int N>
  using Cell = typename TotalCell<Acc, LpOp>::template Of<N>;
  template <class I>
  __device__ __forceinline__ Acc scale(const PoolShape&, const PoolPlace<I>&) const {
    return 1;
  }
  __device__ __forceinline__ Acc result(Acc sum, Acc) const { return norm.root(sum); }
};

// The label of a tap, relative to that of tap 0.
template <class Op, class I>
__device__ __forceinline__ I label_of(const Op& op, I d, I h, I w) {
  if constexpr (Op::kLabels) return d * op.step[0] + h * op.step[1] + w * op.step[2];
  return 0;
}

// f(operation) for what a problem does, where counts_in_int() and the norm is the usual one; and for all
// problems, with labels of 64 bits.
template <class T, class F>
void with_op(const MaxPoolForward& p, F&& f) {
  p.indices ? f(MaxIndexOp<T, int>(p.indices, p.shape)) : f(MaxOp<T>{});
}
template <class T, class F>
void with_any_op(const MaxPoolForward& p, F&& f) {
  f(MaxIndexOp<T, int64_t>(p.indices, p.shape));
}
template <class T, class F>
void with_op(const AvgPoolForward& p, F&& f) {
  f(AvgOp<T>(p.divisor, p.shape));
}
template <class T, class F>
void with_any_op(const AvgPoolForward& p, F&& f) {
  f(AvgOp<T>(p.divisor, p.shape));
}
template <class T, class F>
void with_op(const LpPoolForward&, F&& f) {
  f(LpOp<T, Norm2<Accumulator<T>>>{});
}
template <class T, class F>
void with_any_op(const LpPoolForward& p, F&& f) {
  f(LpOp<T, AnyNorm<Accumulator<T>>>{{static_cast<Accumulator<T>>(p.norm)}});
}

}  // namespace dlkern::gpu
