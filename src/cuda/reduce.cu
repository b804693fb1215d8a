// Reductions over any set of axes.
//
//   sum, mean, max, min   y = op over the reduced axes of x
//   argmax, argmin        y = the first index of the largest or smallest element
//   backward              dx = dy, dy / n, or dy / ties where x = y
//
// Results are numbered along the kept axes and their n elements along the reduced axes, both in the
// order of memory (row-major for argmax and argmin, whose index is the result). The n elements are
// cut into chunks. Where neighbouring results lie closer together than the elements of one, or n is
// small, a thread takes one chunk of one result, neighbouring threads neighbouring results; else a
// block takes a chunk, its threads neighbouring elements. Loads are coalesced both ways. With more
// than one chunk the partial results go to the workspace, [results][chunks], and a second kernel
// reduces them. Bound by memory; n elements are read once, 1 / chunk of that is written and read.
// Sums are kept in float32 (float64, int64), in an order fixed by shape and strides alone.
#include "ops/reduce.h"

#include <limits>

#include "core/index.h"
#include "cuda/prims/gpu.h"
#include "cuda/prims/reduce.cuh"

namespace dlkern {
namespace {

using namespace gpu;

constexpr int kThreads = 256;
constexpr int kRun = 16;

template <class Acc>
struct Candidate {
  Acc value;
  int64_t index;
};
template <class Acc>
__device__ Candidate<Acc> shuffle_xor(Candidate<Acc> c, int mask) {
  return {gpu::shuffle_xor(c.value, mask), gpu::shuffle_xor(c.index, mask)};
}

// Ops: the state of one element, and two states made one. `pivot` is the result's entry of y.
template <class Acc>
struct SumOp {
  using State = Acc;
  __device__ State identity() const { return Acc(0); }
  __device__ State of(Acc v, Acc /*pivot*/, int64_t /*i*/) const { return v; }
  __device__ State operator()(State a, State b) const { return a + b; }
};
// The number of elements equal to the pivot.
template <class Acc>
struct TiesOp : SumOp<Acc> {
  __device__ Acc of(Acc v, Acc pivot, int64_t /*i*/) const { return v == pivot ? Acc(1) : Acc(0); }
};
template <class Acc>
__device__ Acc worst(bool minimum) {
  using Limits = std::numeric_limits<Acc>;
  if constexpr (Limits::has_infinity) return minimum ? Acc(INFINITY) : -Acc(INFINITY);
  return minimum ? Limits::max() : Limits::lowest();
}
template <class Acc>
struct ExtremeOp {
  using State = Acc;
  bool minimum;
  __device__ State identity() const { return worst<Acc>(minimum); }
  __device__ State of(Acc v, Acc /*pivot*/, int64_t /*i*/) const { return v; }
  __device__ State operator()(State a, State b) const {
    return minimum ? Min{}(a, b) : Max{}(a, b);
  }
};
template <class Acc>
struct ArgOp {
  using State = Candidate<Acc>;
  bool minimum;
  __device__ State identity() const { return {worst<Acc>(minimum), INT64_MAX}; }
  __device__ State of(Acc v, Acc /*pivot*/, int64_t i) const { return {v, i}; }
  __device__ State operator()(const State& a, const State& b) const {
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    const bool tie = a.value == b.value || (a_nan && b_nan);
    const bool better = (minimum ? a.value < b.value : a.value > b.value) || (a_nan && !b_nan);
    return (tie ? a.index < b.index : better) ? a : b;
  }
};

struct Result {
  void* y;
  DType dtype;
  double divisor;  // of a mean; else 1
};
__device__ void store(const Result& r, int64_t at, double v) {
  static_cast<double*>(r.y)[at] = v / r.divisor;
}
__device__ void store(const Result& r, int64_t at, float v) {
  v /= static_cast<float>(r.divisor);
  if (r.dtype == DType::kFloat32) {
    static_cast<float*>(r.y)[at] = v;
  } else if (r.dtype == DType::kFloat16) {
    static_cast<Half*>(r.y)[at] = Half(v);
  } else {
    static_cast<BFloat16*>(r.y)[at] = BFloat16(v);
  }
}
__device__ void store(const Result& r, int64_t at, int64_t v) {
  if (r.dtype == DType::kInt64) {
    static_cast<int64_t*>(r.y)[at] = v;
  } else {
    static_cast<int32_t*>(r.y)[at] = static_cast<int32_t>(v);
  }
}
template <class Acc>
__device__ void store(const Result& r, int64_t at, const Candidate<Acc>& c) {
  store(r, at, c.index);
}

struct Plan {
  StridedIndex<3> kept;     // x, y, pivot
  StridedIndex<1> reduced;  // x
  int64_t chunk, chunks;
  bool by_thread;
};

Plan make_plan(const Reduce& p, const Tensor& pivot) {
  Plan plan;
  plan.kept = in_memory_order(make_index<3>({&p.x, &p.y, &pivot}, ~p.axes));
  plan.reduced = make_index<1>({&p.x}, p.axes);
  if (!is_arg(p.kind)) plan.reduced = in_memory_order(plan.reduced);
  const int64_t n = plan.reduced.numel;
  // Where the last axis is kept, neighbouring results are mostly adjacent in memory. Nothing that
  // tells how many results there are may matter, strides included: a result's bits would depend on it.
  const bool keeps_last = p.x.ndim > 0 && !(p.axes >> (p.x.ndim - 1) & 1u);
  plan.by_thread = keeps_last || n < 32;
  plan.chunk = plan.by_thread ? 256 : 16384;
  plan.chunks = std::max<int64_t>(ceil_div(n, plan.chunk), 1);
  return plan;
}

size_t state_bytes(const Reduce& p) {
  if (is_arg(p.kind)) return sizeof(Candidate<double>);
  return p.x.dtype == DType::kFloat64 || is_index(p.x.dtype) ? 8 : 4;
}

size_t partials_bytes(const Reduce& p, const Plan& plan) {
  return plan.chunks > 1 ? plan.kept.numel * plan.chunks * state_bytes(p) : 0;
}

__device__ int64_t offset_of(const StridedIndex<1>& index, int64_t i) {
  if (index.ndim <= 1) return i * index.stride[0][0];
  int64_t at[1];
  index.offsets(i, at);
  return at[0];
}

// One chunk of one result, by a thread or a block.
template <class T, class Op, bool kByThread>
__global__ void reduce_kernel(const T* x, const T* pivots, Plan plan, Op op, Result result,
                              typename Op::State* partials) {
  using Acc = Accumulator<T>;
  const int64_t results = plan.kept.numel, tasks = results * plan.chunks;
  int64_t task = blockIdx.x, tasks_at_once = gridDim.x;
  if constexpr (kByThread) {
    task = task * blockDim.x + threadIdx.x;
    tasks_at_once *= blockDim.x;
  }
  const int rank = kByThread ? 0 : threadIdx.x, size = kByThread ? 1 : blockDim.x;
  for (; task < tasks; task += tasks_at_once) {
    const int64_t r = kByThread ? task % results : task / plan.chunks;
    const int64_t chunk = kByThread ? task / results : task % plan.chunks;
    int64_t at[3];
    plan.kept.offsets(r, at);
    const T* first = x + at[0];
    const Acc pivot = pivots ? static_cast<Acc>(pivots[at[2]]) : Acc(0);
    const int64_t begin = chunk * plan.chunk;
    const int64_t rest = plan.reduced.numel - begin;
    const int64_t end = begin + (rest < plan.chunk ? rest : plan.chunk);
    typename Op::State state = op.identity();
    for (int64_t i = begin + rank; i < end;) {
      // In runs, so that the rounding error of a sum grows with the run and the number of runs.
      typename Op::State run = op.identity();
      const int64_t stop = i + int64_t{kRun} * size < end ? i + int64_t{kRun} * size : end;
#pragma unroll 4
      for (; i < stop; i += size) {
        const Acc v = static_cast<Acc>(first[offset_of(plan.reduced, i)]);
        run = op(run, op.of(v, pivot, i));
      }
      state = op(state, run);
    }
    if constexpr (!kByThread) state = block_reduce(state, op, op.identity());
    if (rank != 0) continue;
    if (partials) {
      partials[r * plan.chunks + chunk] = state;
    } else {
      store(result, at[1], state);
    }
  }
}

// One block reduces the chunks of one result.
template <class Op>
__global__ void combine_kernel(const typename Op::State* partials, Plan plan, Op op,
                               Result result) {
  for (int64_t r = blockIdx.x; r < plan.kept.numel; r += gridDim.x) {
    typename Op::State state = op.identity();
    for (int64_t c = threadIdx.x; c < plan.chunks; c += blockDim.x) {
      state = op(state, partials[r * plan.chunks + c]);
    }
    state = block_reduce(state, op, op.identity());
    if (threadIdx.x == 0) {
      int64_t at[3];
      plan.kept.offsets(r, at);
      store(result, at[1], state);
    }
  }
}

// A block with as many threads as a task has use for.
int block_for(int64_t elements) { return elements <= 512 ? kWarpSize : kThreads; }

template <class T, class Op>
void reduce(const Reduce& p, const Tensor& pivot, Op op, const Launch& launch, void* workspace) {
  const Plan plan = make_plan(p, pivot);
  const int64_t tasks = plan.kept.numel * plan.chunks;
  auto* partials = static_cast<typename Op::State*>(plan.chunks > 1 ? workspace : nullptr);
  const auto n = static_cast<double>(plan.reduced.numel);
  const Result result{p.y.data, p.y.dtype, p.kind == DLK_REDUCE_MEAN ? n : 1.0};
  if (plan.by_thread) {
    launch_kernel(reduce_kernel<T, Op, true>, grid_for(tasks, kThreads, 16), kThreads, 0,
                  launch.stream, p.x.as<T>(), pivot.as<T>(), plan, op, result, partials);
  } else {
    launch_kernel(reduce_kernel<T, Op, false>, grid_for(tasks, 1, 32),
                  block_for(std::min(plan.reduced.numel, plan.chunk)), 0, launch.stream,
                  p.x.as<T>(), pivot.as<T>(), plan, op, result, partials);
  }
  if (partials) {
    launch_kernel(combine_kernel<Op>, grid_for(plan.kept.numel, 1, 32), block_for(plan.chunks), 0,
                  launch.stream, partials, plan, op, result);
  }
}

void run_forward(const Reduce& p, const Launch& launch) {
  dispatch_reducible(p.x.dtype, [&]<class T>() {
    using Acc = Accumulator<T>;
    const auto run = [&](auto op) { reduce<T>(p, Tensor{}, op, launch, launch.workspace); };
    if (is_arg(p.kind)) {
      run(ArgOp<Acc>{is_minimum(p.kind)});
    } else if (p.kind == DLK_REDUCE_SUM || p.kind == DLK_REDUCE_MEAN) {
      run(SumOp<Acc>{});
    } else {
      run(ExtremeOp<Acc>{is_minimum(p.kind)});
    }
  });
}

template <class T>
__global__ void spread_kernel(const T* dy, T* dx, StridedIndex<2> index, Accumulator<T> divisor) {
  using Acc = Accumulator<T>;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < index.numel; i += step) {
    int64_t at[2];
    index.offsets(i, at);
    dx[at[0]] = static_cast<T>(static_cast<Acc>(dy[at[1]]) / divisor);
  }
}

template <class T>
__global__ void share_kernel(const T* dy, const T* x, const T* y, const Accumulator<T>* ties, T* dx,
                             StridedIndex<5> index) {
  using Acc = Accumulator<T>;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < index.numel; i += step) {
    int64_t at[5];
    index.offsets(i, at);
    const Acc v = static_cast<Acc>(x[at[2]]), best = static_cast<Acc>(y[at[3]]);
    Acc g = best == best ? Acc(0) : best;  // NaN where y is
    if (v == best) g = static_cast<Acc>(dy[at[1]]) / ties[at[4]];
    dx[at[0]] = static_cast<T>(g);
  }
}

template <class T>
void spread(const ReduceBackward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  const auto index = in_memory_order(make_index<2>({&p.dx, &p.dy}));
  const int64_t n = make_index<1>({&p.dx}, p.axes).numel;
  launch_kernel(spread_kernel<T>, grid_for(index.numel, kThreads, 16), kThreads, 0, launch.stream,
                p.dy.as<T>(), p.dx.as<T>(), index,
                p.kind == DLK_REDUCE_MEAN ? static_cast<Acc>(n) : Acc(1));
}

// The reduction that counts ties, for max and min, into `counts`; its partial sums lie behind them.
struct Ties {
  Reduce problem;
  size_t counts_bytes, workspace_bytes;

  Ties(const ReduceBackward& p, void* counts) {
    const DType dtype = p.dy.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
    problem = {p.x, contiguous_like(p.dy, dtype, counts), p.axes, DLK_REDUCE_SUM};
    counts_bytes = ceil_div(p.dy.numel() * dtype_size(dtype), 256) * 256;
    workspace_bytes = counts_bytes + partials_bytes(problem, make_plan(problem, p.y));
  }
};

template <class T>
void share(const ReduceBackward& p, const Launch& launch) {
  using Acc = Accumulator<T>;
  const Ties ties(p, launch.workspace);
  const Tensor& counts = ties.problem.y;
  reduce<T>(ties.problem, p.y, TiesOp<Acc>{}, launch,
            static_cast<char*>(launch.workspace) + ties.counts_bytes);
  const auto index = in_memory_order(make_index<5>({&p.dx, &p.dy, &p.x, &p.y, &counts}));
  launch_kernel(share_kernel<T>, grid_for(index.numel, kThreads, 16), kThreads, 0, launch.stream,
                p.dy.as<T>(), p.x.as<T>(), p.y.as<T>(), counts.as<Acc>(), p.dx.as<T>(), index);
}

constexpr Impl<Reduce> kForward[] = {
    {"two_stage", supports_all,
     [](const Reduce& p) { return partials_bytes(p, make_plan(p, Tensor{})); }, run_forward},
};
constexpr Impl<ReduceBackward> kBackward[] = {
    {"elementwise", supports_all,
     [](const ReduceBackward& p) { return p.x ? Ties(p, nullptr).workspace_bytes : size_t{0}; },
     [](const ReduceBackward& p, const Launch& launch) {
       dispatch_floating(p.dy.dtype,
                         [&]<class T>() { p.x ? share<T>(p, launch) : spread<T>(p, launch); });
     }},
};

}  // namespace

template <>
ImplList<Reduce> gpu_impls<Reduce>() {
  return kForward;
}
template <>
ImplList<ReduceBackward> gpu_impls<ReduceBackward>() {
  return kBackward;
}

}  // namespace dlkern
