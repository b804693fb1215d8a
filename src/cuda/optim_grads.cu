// What surrounds a step: the norm of all gradients, scaling them, the loss scale.
//
//   norm  = (sum over all tensors of |grad|^ord)^(1 / ord)
//
// Two stages: a block sums the powers of one chunk in float32 (float64 for float64) into its place
// of the workspace, in float64; one block adds these in a fixed order. (For an infinite order they
// are maxima.) Bound by memory: gradients are read once, flat ones some hundred in one launch
// (prims/tensor_list.cuh).
#include <limits>

#include "cuda/optim.cuh"
#include "cuda/prims/reduce.cuh"

namespace dlkern {
namespace {

using namespace gpu;

constexpr int kThreads = 256;
constexpr int kNormUnroll = 4, kScaleUnroll = 2;  // packs of a thread at a time

template <class T>
constexpr int kWidth = 16 / sizeof(T);

// f(W elements as they lie in memory, where) over the elements [begin, end) of `data` by the threads
// of a block, kUnroll packs of each on their way at a time.
template <int W, int kUnroll, class T, class F>
__device__ __forceinline__ void for_packs(const T* data, int64_t begin, int64_t end, F&& f) {
  if (begin >= end) return;
  constexpr int kStride = kThreads * W;
  for (int64_t i = begin + threadIdx.x * W; i < end; i += kUnroll * kStride) {
    Vec<T, W> packs[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = i + u * kStride;
      packs[u] = load_vec<W>(data + (u == 0 || at < end ? at : end - W));
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = i + u * kStride;
      if (u == 0 || at < end) f(packs[u], at);
    }
  }
}
// The same with packs of 16 bytes wherever the address allows them.
template <int kUnroll, class T, class F>
__device__ __forceinline__ void for_elements(const T* data, int64_t begin, int64_t end, F&& f) {
  int64_t whole = begin;
  if (reinterpret_cast<uintptr_t>(data) % 16 == 0) {
    whole = end - end % kWidth<T>;
    for_packs<kWidth<T>, kUnroll>(data, begin, whole, f);
  }
  for_packs<1, 4>(data, whole, end, f);
}

// ---- Norm ----------------------------------------------------------------------------------------

template <class T, NormTerm kTerm>
__global__ void __launch_bounds__(kThreads)
    norm_kernel(const DLK_GRID_CONSTANT TensorTable<1> table, Accumulator<T> ord, double* partial) {
  using Acc = Accumulator<T>;
  const JoinTerms<kTerm> join;
  const Chunk chunk = table.find(blockIdx.x);
  // A lane for each element of a pack: which one an element adds to depends on its place only.
  Acc terms[kWidth<T>] = {};
  for_elements<kNormUnroll>(table.at<const T>(chunk, 0), chunk.begin, chunk.end,
                            [&](auto pack, int64_t) {
                              constexpr int W = sizeof(pack) / sizeof(T);
#pragma unroll
                              for (int w = 0; w < W; ++w) {
                                const Acc v = static_cast<Acc>(pack.v[w]);
                                terms[w] = join(terms[w], norm_term<kTerm>(v, ord));
                              }
                            });
#pragma unroll
  for (int w = 1; w < kWidth<T>; ++w) terms[0] = join(terms[0], terms[w]);
  const Acc total = block_reduce(terms[0], join, Acc(0));
  if (threadIdx.x == 0) partial[table.first_chunk + blockIdx.x] = static_cast<double>(total);
}

// The same for one tensor of any strides.
template <class T, NormTerm kTerm>
__global__ void __launch_bounds__(kThreads)
    strided_norm_kernel(const T* data, StridedIndex<1> index, int64_t chunk, Accumulator<T> ord,
                        double* partial) {
  using Acc = Accumulator<T>;
  const JoinTerms<kTerm> join;
  const int64_t begin = blockIdx.x * chunk;
  const int64_t end = begin + chunk < index.numel ? begin + chunk : index.numel;
  Acc terms = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    int64_t at[1];
    index.offsets(i, at);
    terms = join(terms, norm_term<kTerm>(static_cast<Acc>(data[at[0]]), ord));
  }
  const Acc total = block_reduce(terms, join, Acc(0));
  if (threadIdx.x == 0) partial[blockIdx.x] = static_cast<double>(total);
}

constexpr int kTotalThreads = 1024;

template <class Join>
__global__ void __launch_bounds__(kTotalThreads)
    total_kernel(const double* partial, int64_t count, Join join, NormResults results) {
  double terms = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < count; i += kTotalThreads) terms = join(terms, partial[i]);
  terms = block_reduce(terms, join, 0.0);
  if (threadIdx.x == 0) results.set(terms);
}

// Elements of a chunk: at most about 16,000 chunks, and a multiple of what a block takes at a time.
int64_t norm_chunk(const std::vector<Tensor>& grads) {
  int64_t elements = 0, chunk = 16384;
  for (const Tensor& grad : grads) elements += grad.numel();
  while (elements / chunk > 16384) chunk *= 2;
  return chunk;
}

int64_t count_chunks(const std::vector<Tensor>& grads) {
  const int64_t chunk = norm_chunk(grads);
  int64_t count = 0;
  for (const Tensor& grad : grads) count += ceil_div(grad.numel(), chunk);
  return count;
}

size_t norm_workspace(const GradNorm& p) { return count_chunks(p.grads) * sizeof(double); }

// Writes the partial sums of all tensors of type T from `partial` on; returns the first place behind.
template <class T, NormTerm kTerm>
double* launch_terms(const GradNorm& p, DType dtype, double* partial, void* stream) {
  const int64_t chunk = norm_chunk(p.grads);
  const auto ord = static_cast<Accumulator<T>>(p.ord);
  auto launcher = make_list_launcher<1>(chunk, [&](const TensorTable<1>& table) {
    launch_kernel(norm_kernel<T, kTerm>, table.chunks(), kThreads, 0, stream, table, ord, partial);
  });
  std::vector<const Tensor*> strided;
  int64_t flat_chunks = 0;
  for (const Tensor& grad : p.grads) {
    if (grad.dtype != dtype || grad.numel() == 0) continue;
    if (in_memory_order(make_index<1>({&grad})).is_flat()) {
      launcher.add({grad.data}, grad.numel());
      flat_chunks += ceil_div(grad.numel(), chunk);
    } else {
      strided.push_back(&grad);
    }
  }
  launcher.flush();
  partial += flat_chunks;
  for (const Tensor* grad : strided) {
    const auto index = in_memory_order(make_index<1>({grad}));
    const int64_t chunks = ceil_div(index.numel, chunk);
    launch_kernel(strided_norm_kernel<T, kTerm>, static_cast<unsigned>(chunks), kThreads, 0, stream,
                  grad->as<T>(), index, chunk, ord, partial);
    partial += chunks;
  }
  return partial;
}

template <NormTerm kTerm>
void launch_norm_of(const GradNorm& p, const Launch& launch) {
  auto* const partial = static_cast<double*>(launch.workspace);
  double* end = partial;
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    dispatch_floating(
        dtype, [&]<class T>() { end = launch_terms<T, kTerm>(p, dtype, end, launch.stream); });
  }
  using Join = JoinTerms<kTerm == NormTerm::kLargest ? kTerm : NormTerm::kSize>;
  launch_kernel(total_kernel<Join>, 1, kTotalThreads, 0, launch.stream, partial, end - partial,
                Join(), NormResults(p));
}

void launch_norm(const GradNorm& p, const Launch& launch) {
  with_norm_term(p.ord, [&]<NormTerm kTerm>() { launch_norm_of<kTerm>(p, launch); });
}

// ---- Scaling in place ----------------------------------------------------------------------------

template <class Acc>
__device__ __forceinline__ Acc scaled(Acc v, Acc scale, bool& bad) {
  v *= scale;
  bad = bad || !(fabs(v) <= std::numeric_limits<Acc>::max());
  return v;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    scale_kernel(const DLK_GRID_CONSTANT TensorTable<1> table, Scalar scale_, Scalar found_inf) {
  using Acc = Accumulator<T>;
  const Acc scale = scale_.real<Acc>();
  const Chunk chunk = table.find(blockIdx.x);
  T* data = table.at<T>(chunk, 0);
  bool bad = false;
  for_elements<kScaleUnroll>(data, chunk.begin, chunk.end, [&](auto pack, int64_t at) {
    constexpr int W = sizeof(pack) / sizeof(T);
#pragma unroll
    for (int w = 0; w < W; ++w) {
      pack.v[w] = static_cast<T>(scaled(static_cast<Acc>(pack.v[w]), scale, bad));
    }
    store_vec(data + at, pack);
  });
  if (bad && found_inf) found_inf.set(1.0);  // by whoever finds one: all write the same
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    strided_scale_kernel(T* data, StridedIndex<1> index, Scalar scale_, Scalar found_inf) {
  using Acc = Accumulator<T>;
  const Acc scale = scale_.real<Acc>();
  bool bad = false;
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < index.numel; i += threads) {
    int64_t at[1];
    index.offsets(i, at);
    data[at[0]] = static_cast<T>(scaled(static_cast<Acc>(data[at[0]]), scale, bad));
  }
  if (bad && found_inf) found_inf.set(1.0);
}

template <class T>
void launch_scale(const ScaleGrads& p, DType dtype, void* stream) {
  const Scalar scale(p.scale), found_inf(p.found_inf);
  auto launcher =
      make_list_launcher<1>(kThreads * kWidth<T> * kScaleUnroll, [&](const TensorTable<1>& table) {
        launch_kernel(scale_kernel<T>, table.chunks(), kThreads, 0, stream, table, scale,
                      found_inf);
      });
  for (const Tensor& grad : p.grads) {
    if (grad.dtype != dtype || grad.numel() == 0) continue;
    const auto index = in_memory_order(make_index<1>({&grad}));
    if (index.is_flat()) {
      launcher.add({grad.data}, grad.numel());
    } else {
      launch_kernel(strided_scale_kernel<T>, grid_for(index.numel, kThreads), kThreads, 0, stream,
                    grad.as<T>(), index, scale, found_inf);
    }
  }
  launcher.flush();
}

void launch_scale_all(const ScaleGrads& p, const Launch& launch) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    dispatch_floating(dtype, [&]<class T>() { launch_scale<T>(p, dtype, launch.stream); });
  }
}

// ---- Loss scale ----------------------------------------------------------------------------------

__global__ void loss_scale_kernel(LossScaleRule rule) { rule(); }

constexpr Impl<GradNorm> kGradNorm[] = {
    {"two_stages", supports_all, norm_workspace, launch_norm},
};
constexpr Impl<ScaleGrads> kScaleGrads[] = {
    {"tensor_list", supports_all, nullptr, launch_scale_all},
};
constexpr Impl<UpdateLossScale> kUpdateLossScale[] = {
    {"one_thread", supports_all, nullptr,
     [](const UpdateLossScale& p, const Launch& launch) {
       launch_kernel(loss_scale_kernel, 1, 1, 0, launch.stream, LossScaleRule(p));
     }},
};

}  // namespace

template <>
ImplList<GradNorm> gpu_impls<GradNorm>() {
  return kGradNorm;
}
template <>
ImplList<ScaleGrads> gpu_impls<ScaleGrads>() {
  return kScaleGrads;
}
template <>
ImplList<UpdateLossScale> gpu_impls<UpdateLossScale>() {
  return kUpdateLossScale;
}

}  // namespace dlkern
