// Layer norm and RMS norm, forward.
//
//   s = x + residual, rounded    y = (s - mean) * rstd * (weight + offset) + bias
//   rstd = 1 / sqrt(var + eps)   RMS: no mean and bias, var = mean square
//   float8: y = that * scale_out, amax = max |that|
//
// Rows of neighbouring elements stay in the registers of a team of threads, so that each tensor is
// read once and written once (prims/row_pieces.cuh): x and y are the floor, at 16384 x 4096 of 16
// bits 268 MB. The parameters come from cache. Other rows are walked by one warp or one block
// (prims/rows.cuh); the passes after the first find the row in cache. Bound by memory.
// Variance in two passes, around the row's first value and then around the mean: no cancellation.
// Sums in float32 (float64 for float64), in an order that n alone decides. amax: each row's
// maximum goes to the workspace, those of all rows are merged by a two-stage reduction
// (prims/columns.cuh).
#include "core/float8.h"
#include "cuda/norm_rows.cuh"
#include "cuda/prims/columns.cuh"

namespace dlkern {
namespace {

using namespace gpu;

template <class T>
struct Args {
  Elements<4> elements;  // x, residual, residual_out, y
  const T *x, *residual;
  T* residual_out;
  void* y;
  DType y_dtype;
  bool float8;
  MixedView<T> weight, bias, mean, rstd;
  const float* scale_out;
  float* largest;  // of each row, or nullptr
  double eps, weight_offset;
  bool rms;

  explicit Args(const RowNormForward& p)
      : elements({&p.x, &p.residual, &p.residual_out, &p.y}, p.axis),
        x(p.x.as<const T>()),
        residual(p.residual.as<const T>()),
        residual_out(p.residual_out.as<T>()),
        y(p.y.data),
        y_dtype(p.y.dtype),
        float8(is_float8(p.y.dtype)),
        weight(p.weight),
        bias(p.bias),
        mean(p.mean),
        rstd(p.rstd),
        scale_out(p.scale_out.as<const float>()),
        largest(nullptr),
        eps(p.eps),
        weight_offset(p.weight_offset),
        rms(p.rms) {}

  // s, of elements of x and residual.
  __device__ T sum(T v, T r) const {
    return static_cast<T>(static_cast<Accumulator<T>>(v) + static_cast<Accumulator<T>>(r));
  }
  __device__ T sum_at(const int64_t (&at)[4]) const {
    return residual ? sum(x[at[0]], residual[at[1]]) : x[at[0]];
  }
  __device__ float scale() const { return scale_out ? *scale_out : 1.0f; }
  __device__ void finish_row(int64_t row, Accumulator<T> mean_, Accumulator<T> rstd_,
                             float largest_) const {
    if (mean) mean.store(row, mean_);
    if (rstd) rstd.store(row, rstd_);
    if (largest) largest[row] = largest_;
  }
};

// v where that is finite, else 0: what the deviations in a row are taken from.
template <class Acc>
__device__ Acc finite_or_zero(Acc v) {
  return v - v == 0 ? v : Acc(0);
}

// ---- Rows walked -------------------------------------------------------------------------------

template <class T>
__device__ void store_result(const Args<T>& args, int64_t at, Accumulator<T> v, float scale) {
  if (args.y_dtype == DType::kFloat8E4M3) {
    static_cast<Float8E4M3*>(args.y)[at] = Float8E4M3(static_cast<float>(v) * scale);
  } else if (args.y_dtype == DType::kFloat8E5M2) {
    static_cast<Float8E5M2*>(args.y)[at] = Float8E5M2(static_cast<float>(v) * scale);
  } else {
    static_cast<T*>(args.y)[at] = static_cast<T>(v);
  }
}

template <class T, Group kGroup>
__global__ void __launch_bounds__(kMaxRowThreads) row_norm_forward_kernel(const Args<T> args) {
  using Acc = Accumulator<T>;
  const Team<kGroup> team;
  const int64_t n = args.elements.row.numel;
  const float scale = args.scale();
  for (int64_t row = team.row; row < args.elements.rows.numel; row += team.row_step) {
    int64_t first[4], at[4];
    args.elements.rows.offsets(row, first);
    Acc shift = 0, mean = 0;
    if (!args.rms) {
      shift = finite_or_zero(n > 0 ? static_cast<Acc>(args.sum_at(first)) : Acc(0));
      for (int64_t i = team.rank; i < n; i += team.size) {
        args.elements.offsets(first, i, at);
        mean += static_cast<Acc>(args.sum_at(at)) - shift;
      }
      mean = team.reduce(mean, Sum{}, Acc(0)) / Acc(n);
    }
    Acc squares = 0;
    for (int64_t i = team.rank; i < n; i += team.size) {
      args.elements.offsets(first, i, at);
      const Acc d = (static_cast<Acc>(args.sum_at(at)) - shift) - mean;
      squares += d * d;
    }
    squares = team.reduce(squares, Sum{}, Acc(0));
    const Acc rstd = 1 / sqrt(squares / Acc(n) + static_cast<Acc>(args.eps));
    float largest = 0;
    for (int64_t i = team.rank; i < n; i += team.size) {
      args.elements.offsets(first, i, at);
      const T s = args.sum_at(at);
      Acc w = 1;
      if (args.weight) w = args.weight.load(i) + static_cast<Acc>(args.weight_offset);
      const Acc v = ((static_cast<Acc>(s) - shift) - mean) * rstd * w + args.bias.load_or(i, 0);
      if (args.residual_out) args.residual_out[at[2]] = s;
      store_result(args, at[3], v, scale);
      largest = Max{}(fabsf(static_cast<float>(v)), largest);
    }
    if (args.largest) largest = team.reduce(largest, Max{}, 0.0f);
    if (team.rank == 0) args.finish_row(row, shift + mean, rstd, largest);
  }
}

// ---- Rows in registers -------------------------------------------------------------------------

// What is done with a row's elements, in kernels for rows anywhere and for plain ones: to the same
// bits, so that products that are added are fma by name.
template <class T>
struct RowMath {
  using Acc = Accumulator<T>;
  Acc shift = 0;  // taken off before the sums: the mean of what is left keeps all its digits
  Acc mean = 0, rstd = 0, offset = 0;

  __device__ __forceinline__ Acc deviation(T v) const {
    return (static_cast<Acc>(v) - shift) - mean;
  }
  __device__ __forceinline__ Acc result(T v, Acc weight, Acc bias) const {
    return fma(deviation(v), fma(rstd, weight, offset), bias);
  }
  // share: 1 / n.
  template <bool kWhole, bool kBlocks, int kItems>
  __device__ __forceinline__ void take(RowTeam<kBlocks>& team, RowPieces<T, kItems>& row, int n,
                                       bool rms, Acc share, Acc eps, Acc weight_offset) {
    if (!rms) {
      const auto add = [&](Acc sum, T v) { return sum + (static_cast<Acc>(v) - shift); };
      mean = team.reduce(row.template sum<kWhole>(team, n, add), Sum{}, Acc(0)) * share;
      row.forget();
    }
    const auto add = [&](Acc sum, T v) { return fma(deviation(v), deviation(v), sum); };
    const Acc squares = team.reduce(row.template sum<kWhole>(team, n, add), Sum{}, Acc(0));
    row.forget();
    rstd = rsqrt(fma(squares, share, eps));
    offset = rstd * weight_offset;
  }
};

// Adds those of `from`, a few at a time: with all of them rows of 8 pieces would not fit the
// registers.
template <bool kWhole, class T, int kItems, bool kBlocks>
__device__ __forceinline__ void add_row(RowPieces<T, kItems>& row, const T* from, int n,
                                        const RowTeam<kBlocks>& team, int align, const T* end) {
  using Acc = Accumulator<T>;
  constexpr int kGroup = kItems == 8 ? 2 : kItems;
  const int step = kGroup * kPiece<T> * team.size;
#pragma unroll
  for (int group = 0; group < kItems / kGroup; ++group) {
    RowPieces<T, kGroup> other;
    other.template load<!kWhole, kWhole>(from + group * step, n - group * step, team, align,
                                         T(0.0f), end);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      row.assign(group * kGroup + i, [&](T v, int k) {
        return static_cast<Acc>(v) + static_cast<Acc>(other.get(k - group * other.kElements));
      });
    }
  }
}

// The results of piece i, times `scale`; `largest` is updated by the first `left` of them.
template <class T, int kItems>
__device__ __forceinline__ void scaled_results(const RowPieces<T, kItems>& row, int i,
                                               const RowMath<T>& math,
                                               const Accumulator<T> (&w)[kPiece<T>],
                                               const Accumulator<T> (&b)[kPiece<T>], float scale,
                                               int left, float& largest, float (&v)[kPiece<T>]) {
#pragma unroll
  for (int e = 0; e < kPiece<T>; ++e) {
    v[e] = math.result(row.get(i * kPiece<T> + e), w[e], b[e]);
    if (e < left) largest = Max{}(fabsf(v[e]), largest);
    v[e] *= scale;
  }
}

template <class T>
struct RegisterArgs {
  Args<T> all;
  RowParameter<T> weight, bias;
  Accumulator<T> share;  // 1 / n
  int team_size;
  struct {
    int x, residual, residual_out, y;
  } align;
  const T *x_end, *residual_end;  // of all rows
};

// kMore: a residual, float8, parameters of any type and place; else the common case, which fits half
// of the registers.
template <class T, int kItems, bool kBlocks, bool kMore>
__global__ void __launch_bounds__(kRowThreads, (kMore || kItems == 8 || sizeof(T) == 8 ? 1 : 2))
    row_norm_forward_registers_kernel(DLK_GRID_CONSTANT const RegisterArgs<T> registers) {
  using Acc = Accumulator<T>;
  const Args<T>& args = registers.all;
  RowTeam<kBlocks> team(registers.team_size);
  const bool there = team.row < args.elements.rows.numel;
  const int n = static_cast<int>(args.elements.row.numel), elements = there ? n : 0;
  int64_t at[4];
  row_offsets<!kMore>(args.elements.rows, there ? team.row : 0, at);
  RowPieces<T, kItems> row;
  RowMath<T> math;
  row.load(args.x + at[0], elements, team, registers.align.x, T(0.0f), registers.x_end);
  if (!args.rms) {
    const T first = kMore ? args.sum_at(at) : args.x[at[0]];
    math.shift = finite_or_zero(static_cast<Acc>(first));
  }
  if (kMore && args.residual) {
    add_row<false>(row, args.residual + at[1], elements, team, registers.align.residual,
                   registers.residual_end);
  }
  math.template take<false>(team, row, elements, args.rms, registers.share,
                            static_cast<Acc>(args.eps),
                            static_cast<Acc>(args.weight ? args.weight_offset : 0));
  // In place of x or residual: all have read the row.
  if (kMore && args.residual_out) {
    row.template store<false, true>(args.residual_out + at[2], elements, team,
                                    registers.align.residual_out);
  }
  float largest = 0;
  const bool float8 = kMore && args.float8;
  const float scale = float8 ? args.scale() : 1.0f;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (kMore || i % 2 == 0) team.forget();
    Acc w[kPiece<T>], b[kPiece<T>];
    const int first = row.place(team, i * kPiece<T>);
    registers.weight.template load<kMore>(first, n, 1, w);
    registers.bias.template load<kMore>(first, n, 0, b);
    if constexpr (kMore && sizeof(T) < 8) {
      if (float8) {
        float v[kPiece<T>];
        scaled_results(row, i, math, w, b, scale, elements - first, largest, v);
        store_float8(v, static_cast<uint8_t*>(args.y) + at[3] + first, elements - first,
                     registers.align.y, args.y_dtype == DType::kFloat8E5M2);
        continue;
      }
    }
    row.assign(i, [&](T v, int k) { return math.result(v, w[k % kPiece<T>], b[k % kPiece<T>]); });
  }
  if (kMore && args.largest) largest = team.reduce(largest, Max{}, 0.0f);
  if (!float8)
    row.template store<false, true>(static_cast<T*>(args.y) + at[3], elements, team,
                                    registers.align.y);
  if (!there || team.rank != 0) return;
  if constexpr (kMore) {
    args.finish_row(team.row, math.shift + math.mean, math.rstd, largest);
  } else {
    if (args.mean) static_cast<Acc*>(args.mean.data)[team.row] = math.shift + math.mean;
    if (args.rstd) static_cast<Acc*>(args.rstd.data)[team.row] = math.rstd;
  }
}

// Rows of whole pieces at multiples of 16 bytes, one stride apart; a weight, and neighbours beside.
template <class T>
struct PlainArgs {
  using Acc = Accumulator<T>;
  const T *x, *residual;
  T* residual_out;
  void* y;
  RowParameter<T> weight, bias;
  Acc *mean, *rstd;
  const float* scale_out;
  float* largest;
  int64_t rows, x_stride, residual_stride, residual_out_stride, y_stride;
  int n, team_size;
  Acc share, eps, weight_offset;
  bool rms, float8, e5m2;
};

template <class T, int kItems, bool kBlocks>
__global__ void __launch_bounds__(kRowThreads, (kItems == 8 ? 1 : kRowBlocks<T>))
    row_norm_forward_plain_kernel(const PlainArgs<T> args) {
  using Acc = Accumulator<T>;
  RowTeam<kBlocks> team(args.team_size);
  const int64_t row_number = team.row < args.rows ? team.row : 0;
  const int n = args.n, elements = team.row < args.rows ? n : 0;
  const T* x = args.x + row_number * args.x_stride;
  const T* residual = args.residual + row_number * args.residual_stride;
  RowPieces<T, kItems> row;
  row.template load<false, true>(x, elements, team, 16, T(0.0f));
  RowMath<T> math;
  if (!args.rms) {
    Acc first = static_cast<Acc>(*x);
    if (args.residual)
      first = static_cast<Acc>(static_cast<T>(first + static_cast<Acc>(*residual)));
    math.shift = finite_or_zero(first);
  }
  if (args.residual) add_row<true>(row, residual, elements, team, 16, residual);
  math.template take<true>(team, row, elements, args.rms, args.share, args.eps, args.weight_offset);
  // In place of x or residual: all have read the row.
  if (args.residual_out) {
    row.template store<true>(args.residual_out + row_number * args.residual_out_stride, elements,
                             team, 16);
  }
  float largest = 0;
  // One branch for all pieces: their parameters are on their way together.
  const auto finish = [&]<bool kWide, bool kFloat8>() {
    const float scale = kFloat8 && args.scale_out ? *args.scale_out : 1.0f;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      // More parameters at once would not fit the registers.
      if (kFloat8) team.forget();
      Acc w[kPiece<T>], b[kPiece<T>] = {};
      const int first = row.place(team, i * kPiece<T>);
      args.weight.template load_whole<kWide>(first, n, w);
      if (args.bias.data) args.bias.template load_whole<kWide>(first, n, b);
      if constexpr (kFloat8) {
        float v[kPiece<T>];
        const bool whole = first < elements;
        scaled_results(row, i, math, w, b, scale, whole ? kPiece<T> : 0, largest, v);
        auto* y = static_cast<uint8_t*>(args.y) + row_number * args.y_stride + first;
        if (whole) store_float8(v, y, kPiece<T>, kPiece<T>, args.e5m2);
      } else {
        row.assign(i,
                   [&](T v, int k) { return math.result(v, w[k % kPiece<T>], b[k % kPiece<T>]); });
      }
    }
    if constexpr (!kFloat8) {
      row.template store<true>(static_cast<T*>(args.y) + row_number * args.y_stride, elements, team,
                               16);
    }
  };
  const auto finish_float8 = [&]<bool kFloat8>() {
    if (sizeof(T) == sizeof(Acc) || args.weight.wide) {
      finish.template operator()<true, kFloat8>();
    } else {
      finish.template operator()<false, kFloat8>();
    }
  };
  if (args.float8) {
    finish_float8.template operator()<true>();
    if (args.largest) largest = team.reduce(largest, Max{}, 0.0f);
  } else {
    finish_float8.template operator()<false>();
  }
  if (team.rank == 0 && elements > 0) {
    if (args.mean) args.mean[team.row] = math.shift + math.mean;
    if (args.rstd) args.rstd[team.row] = math.rstd;
    if (args.largest) args.largest[team.row] = largest;
  }
}

// ---- amax --------------------------------------------------------------------------------------

struct Largest {
  using Value = Largest;
  float v;

  __device__ void merge(const Largest& other) { v = Max{}(other.v, v); }
  template <int K>
  __device__ void add(const Largest (&values)[K]) {
#pragma unroll
    for (int k = 0; k < K; ++k) merge(values[k]);
  }
};

// One column, whose positions are the rows.
struct LargestOfRows {
  const float* rows;
  float* amax;

  __device__ Largest load(int64_t, int64_t row) const { return {rows[row]}; }
  __device__ void finish(int64_t, const Largest& all) const { *amax = all.v; }
};

ColumnTiles tiles_of(const RowNormForward& p) {
  return ColumnTiles(rows_of(p.x, p.axis), 1, false);
}

size_t workspace_of(const RowNormForward& p) {
  if (!p.amax) return 0;
  return (static_cast<size_t>(rows_of(p.x, p.axis)) + tiles_of(p).partials()) * sizeof(float);
}

// kernels(args) launches what needs the rows.
template <class T, class F>
void launch_with_amax(const RowNormForward& p, const Launch& launch, F&& kernels) {
  Args<T> args(p);
  if (p.amax) args.largest = static_cast<float*>(launch.workspace);
  if (args.elements.rows.numel > 0) kernels(args);
  if (p.amax) {
    auto* partial = reinterpret_cast<Largest*>(args.largest + args.elements.rows.numel);
    reduce_columns(LargestOfRows{args.largest, p.amax.as<float>()}, tiles_of(p), partial,
                   launch.stream);
  }
}

// ---- Launch ------------------------------------------------------------------------------------

const char* row_norm_not_in_registers(const RowNormForward& p) {
  for (const Tensor* t : {&p.x, &p.residual, &p.residual_out, &p.y}) {
    if (!is_row(*t, *t ? p.axis : 0)) return kStrided;
  }
  if (!is_row(p.weight) || !is_row(p.bias)) return kParameters;
  if (is_float8(p.y.dtype) && p.x.dtype == DType::kFloat64) return "x is float64, and y float8";
  if (columns_of(p.x, p.axis) == 0) return "rows have no elements";
  return not_in_registers(rows_of(p.x, p.axis), columns_of(p.x, p.axis),
                          static_cast<int>(16 / dtype_size(p.x.dtype)));
}

template <class T>
bool is_plain(const RowNormForward& p, const Args<T>& args) {
  const RowParameter<T> weight(args.weight), bias(args.bias);
  const auto beside = [](const MixedView<T>& view) {
    return !view || (view.wide && view.index.is_flat());
  };
  return are_plain({&p.x, &p.residual, &p.residual_out, &p.y}, p.axis) && weight.data &&
         weight.vector && bias.vector && (!bias.data || weight.wide == bias.wide) &&
         beside(args.mean) && beside(args.rstd);
}

template <class T>
void launch_plain(const Args<T>& args, const RowPlan& plan, void* stream) {
  using Acc = Accumulator<T>;
  const auto& rows = args.elements.rows;
  const auto stride = [&](int tensor) { return rows.ndim ? rows.stride[tensor][0] : 0; };
  const auto beside = [](const MixedView<T>& view) { return static_cast<Acc*>(view.data); };
  const auto n = static_cast<int>(args.elements.row.numel);
  const PlainArgs<T> plain{args.x,
                           args.residual,
                           args.residual_out,
                           args.y,
                           RowParameter<T>(args.weight),
                           RowParameter<T>(args.bias),
                           beside(args.mean),
                           beside(args.rstd),
                           args.scale_out,
                           args.largest,
                           rows.numel,
                           stride(0),
                           stride(1),
                           stride(2),
                           stride(3),
                           n,
                           plan.size,
                           1 / static_cast<Acc>(n),
                           static_cast<Acc>(args.eps),
                           static_cast<Acc>(args.weight_offset),
                           args.rms,
                           args.float8,
                           args.y_dtype == DType::kFloat8E5M2};
  const auto kernel = pick_row_kernel(plan, [&]<int kItems, bool kBlocks>() {
    return row_norm_forward_plain_kernel<T, kItems, kBlocks>;
  });
  launch_rows(kernel, plan, rows.numel, stream, plain);
}

// Whether a problem is the common one: rows at one stride, x to y, with a weight and perhaps a bias
// of x's type; statistics beside one another.
template <class T>
bool is_common(const Args<T>& args) {
  const auto of_x = [](const MixedView<T>& view) {
    const RowParameter<T> p(view);
    return !p.data || (p.vector && (!p.wide || sizeof(T) == sizeof(Accumulator<T>)));
  };
  const auto beside = [](const MixedView<T>& view) {
    return !view || (view.wide && view.index.is_flat());
  };
  return args.elements.rows.ndim <= 1 && !args.residual && !args.residual_out && !args.float8 &&
         !args.largest && args.weight && of_x(args.weight) && of_x(args.bias) &&
         beside(args.mean) && beside(args.rstd);
}

template <class T>
void launch_anywhere(const RowNormForward& p, const Args<T>& args, const RowPlan& plan,
                     void* stream) {
  const auto& rows = args.elements.rows;
  const int64_t n = args.elements.row.numel;
  const auto align = [&](const Tensor& t, int number) {
    return row_alignment(t.data, rows, number, static_cast<int>(dtype_size(t.dtype)));
  };
  const RegisterArgs<T> registers{
      args,
      RowParameter<T>(args.weight),
      RowParameter<T>(args.bias),
      1 / static_cast<Accumulator<T>>(n),
      plan.size,
      {align(p.x, 0), align(p.residual, 1), align(p.residual_out, 2), align(p.y, 3)},
      end_of_rows(args.x, rows, 0, n),
      end_of_rows(args.residual, rows, 1, n)};
  const bool more = sizeof(T) == 8 || !is_common(args);
  const auto kernel = pick_row_kernel(plan, more, [&]<int kItems, bool kBlocks, bool kMore>() {
    return row_norm_forward_registers_kernel < T, kItems, kBlocks, kMore || sizeof(T) == 8 > ;
  });
  launch_rows(kernel, plan, rows.numel, stream, registers);
}

template <class T>
void launch_forward_registers(const RowNormForward& p, const Launch& launch) {
  launch_with_amax<T>(p, launch, [&](const Args<T>& args) {
    const RowPlan plan = plan_row(args.elements.row.numel, kPiece<T>);
    if constexpr (sizeof(T) < 8) {
      // Many RMS rows of 4 pieces are quicker by the kernel for rows anywhere, which keeps less in
      // registers. Measured: H200, 2026-12-01, 16384 x 4096 of bfloat16: 69 us, and 77 by the other.
      const bool lean = sizeof(T) == 2 && args.rms && plan.items == 4 && plan.blocks() == 1 &&
                        args.elements.rows.numel >= 4096 && is_common(args);
      if (!lean && is_plain(p, args)) return launch_plain(args, plan, launch.stream);
    }
    launch_anywhere(p, args, plan, launch.stream);
  });
}

template <class T>
void launch_forward(const RowNormForward& p, const Launch& launch) {
  launch_with_amax<T>(p, launch, [&](const Args<T>& args) {
    const RowConfig config = pick_rows(args.elements.row.numel, true);
    const int grid = grid_for(config.blocks(args.elements.rows.numel), 1, 16);
    dispatch_row_group(config.group, [&]<Group kGroup>() {
      launch_kernel(row_norm_forward_kernel<T, kGroup>, grid, config.threads, 0, launch.stream,
                    args);
    });
  });
}

constexpr Impl<RowNormForward> kForward[] = {
    {"registers", row_norm_not_in_registers, workspace_of,
     [](const RowNormForward& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { launch_forward_registers<T>(p, launch); });
     }},
    {"two_pass_rows", supports_all, workspace_of,
     [](const RowNormForward& p, const Launch& launch) {
       dispatch_floating(p.x.dtype, [&]<class T>() { launch_forward<T>(p, launch); });
     }},
};

}  // namespace

template <>
ImplList<RowNormForward> gpu_impls<RowNormForward>() {
  return kForward;
}

}  // namespace dlkern
