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

struct Aligns {
  int x, residual, residual_out, y;
};

// share: 1 / n. kFloat8: y is.
template <class T, int kItems, bool kBlocks, bool kFloat8>
__global__ void __launch_bounds__(kRowThreads, (kItems == 8 ? 1 : kRowBlocks<T>))
    row_norm_forward_registers_kernel(const Args<T> args, RowParameter<T> weight,
                                      RowParameter<T> bias, Accumulator<T> share, int team_size,
                                      Aligns align) {
  using Acc = Accumulator<T>;
  // Deviations are computed once and kept, but where they do not fit the registers.
  constexpr bool kPacked = sizeof(T) == 2 && kItems > 2;
  RowTeam<kBlocks> team(team_size);
  const bool there = team.row < args.elements.rows.numel;
  const int n = static_cast<int>(args.elements.row.numel), elements = there ? n : 0;
  int64_t at[4];
  args.elements.rows.offsets(there ? team.row : 0, at);
  const T begin = !args.rms && elements > 0 ? args.sum_at(at) : T(0.0f);
  const float scale = kFloat8 ? args.scale() : 1.0f;
  RowPieces<T, kItems> row;
  row.template load<true>(args.x + at[0], elements, team, align.x, T(0.0f));
  if (args.residual) {
    RowPieces<T, kItems> other;
    other.template load<true>(args.residual + at[1], elements, team, align.residual, T(0.0f));
    row.assign([&](T v, int k) { return static_cast<Acc>(v) + static_cast<Acc>(other.get(k)); });
  }
  // s minus its first value: the mean of the rest keeps all its digits.
  const Acc shift = finite_or_zero(static_cast<Acc>(begin));
  Acc mean = 0;
  if (!args.rms) {
    const Acc sum = row.sum(team, elements, [&](T v, int) { return static_cast<Acc>(v) - shift; });
    mean = team.reduce(sum, Sum{}, Acc(0)) * share;
    if constexpr (kPacked) row.forget();
  }
  const auto deviation = [&](T v) { return (static_cast<Acc>(v) - shift) - mean; };
  Acc squares = row.sum(team, elements, [&](T v, int) { return deviation(v) * deviation(v); });
  squares = team.reduce(squares, Sum{}, Acc(0));
  if constexpr (kPacked) row.forget();
  const Acc rstd = 1 / sqrt(squares * share + static_cast<Acc>(args.eps));
  if (args.residual_out) {
    row.store(args.residual_out + at[2], elements, team, align.residual_out);
  }
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    Acc w[kPiece<T>], b[kPiece<T>];
    const int first = row.place(team, i * kPiece<T>);
    weight.load(first, n, 1, w);
    bias.load(first, n, 0, b);
    const auto result = [&](T v, int k) {
      return deviation(v) * (rstd * w[k % kPiece<T>]) + b[k % kPiece<T>];
    };
    if constexpr (kFloat8) {
      auto* y = static_cast<uint8_t*>(args.y) + at[3];
      float v[kPiece<T>];
#pragma unroll
      for (int e = 0; e < kPiece<T>; ++e) {
        v[e] = static_cast<float>(result(row.get(i * kPiece<T> + e), e));
        if (first + e < elements) largest = Max{}(fabsf(v[e]), largest);
        v[e] *= scale;
      }
      store_float8(v, y + first, elements - first, align.y, args.y_dtype == DType::kFloat8E5M2);
    } else {
      row.assign(i, result);
    }
  }
  if constexpr (kFloat8) {
    if (args.largest) largest = team.reduce(largest, Max{}, 0.0f);
  } else {
    row.store(static_cast<T*>(args.y) + at[3], elements, team, align.y);
  }
  if (there && team.rank == 0) args.finish_row(team.row, shift + mean, rstd, largest);
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

// Pieces of a thread: float8 results have no kernel for more than 4.
int most_items(const RowNormForward& p) { return is_float8(p.y.dtype) ? 4 : 8; }

const char* row_norm_not_in_registers(const RowNormForward& p) {
  for (const Tensor* t : {&p.x, &p.residual, &p.residual_out, &p.y}) {
    if (!is_row(*t, *t ? p.axis : 0)) return kStrided;
  }
  if (!is_row(p.weight) || !is_row(p.bias)) return kParameters;
  if (is_float8(p.y.dtype) && p.x.dtype == DType::kFloat64) return "x is float64, and y float8";
  return not_in_registers(rows_of(p.x, p.axis), columns_of(p.x, p.axis),
                          static_cast<int>(16 / dtype_size(p.x.dtype)), most_items(p));
}

template <class T, bool kFloat8>
void launch_registers(const RowNormForward& p, const Launch& launch, const Args<T>& args) {
  constexpr int kMostItems = kFloat8 ? 4 : 8;
  const auto& rows = args.elements.rows;
  const RowPlan plan = plan_row(args.elements.row.numel, kPiece<T>, kMostItems);
  const auto kernel = pick_row_kernel<kMostItems>(plan, [&]<int kItems, bool kBlocks>() {
    return row_norm_forward_registers_kernel<T, kItems, kBlocks, kFloat8>;
  });
  const Aligns align{row_alignment(p.x.data, rows, 0, sizeof(T)),
                     row_alignment(p.residual.data, rows, 1, sizeof(T)),
                     row_alignment(p.residual_out.data, rows, 2, sizeof(T)),
                     row_alignment(p.y.data, rows, 3, kFloat8 ? 1 : sizeof(T))};
  launch_rows(kernel, plan, rows.numel, launch.stream, args,
              RowParameter<T>(args.weight, p.weight_offset), RowParameter<T>(args.bias),
              1 / static_cast<Accumulator<T>>(args.elements.row.numel), plan.size, align);
}

template <class T>
void launch_forward_registers(const RowNormForward& p, const Launch& launch) {
  launch_with_amax<T>(p, launch, [&](const Args<T>& args) {
    if constexpr (sizeof(T) < 8) {
      if (is_float8(p.y.dtype)) return launch_registers<T, true>(p, launch, args);
    }
    launch_registers<T, false>(p, launch, args);
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
