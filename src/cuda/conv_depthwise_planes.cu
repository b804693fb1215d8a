// Depthwise convolution forward and its input gradient (see conv_depthwise.cu) where channels do not come
// last: a thread computes some rows by some columns of one plane, neighbours of a run
// (conv_depthwise.cuh), from what these meet of the image. Neighbouring threads are neighbours along the
// rows; what their windows share is met again in L1. Rows of aligned elements are read in groups.
// Bound by memory; from about 30 taps on by FMA issue. Sums in float32 (float64 for float64), one chain in
// the order of the taps.
#include "cuda/conv.h"
#include "cuda/conv_depthwise.cuh"

namespace dlkern {
namespace {

using namespace gpu;

constexpr int kThreads = 128, kHigh = 4, kWide = 4;

struct Args {
  RunAxis axis[3];
  FastDiv strips, bands, slices, by_channel;
  int64_t count;  // of all pieces
  TapWeights weights;
  const void *image, *bias;
  void* result;
  ConvImageStrides image_strides, result_strides;
  int64_t bias_stride;
  int summed;          // channels of the image for each of the result
  FastDiv multiplier;  // results for each channel of the image

  Args(const ConvProblem& p, bool inverse)
      : axis{{p.geometry, 0, inverse}, {p.geometry, 1, inverse}, {p.geometry, 2, inverse}},
        strips(axis[2].pieces(kWide)),
        bands(axis[1].pieces(kHigh)),
        slices(axis[0].pieces(1)),
        by_channel(p.geometry.groups * (inverse ? 1 : p.geometry.k)),
        count(p.geometry.batch * by_channel.divisor() * slices.divisor() * bands.divisor() *
              strips.divisor()),
        weights(p, inverse),
        image((inverse ? p.y : p.x).data),
        bias(p.bias.data),
        result((inverse ? p.x : p.y).data),
        image_strides(inverse ? p.y_strides : p.x_strides),
        result_strides(inverse ? p.x_strides : p.y_strides),
        bias_stride(p.bias ? p.bias.strides[0] : 0),
        summed(static_cast<int>(inverse ? p.geometry.k : 1)),
        multiplier(inverse ? 1 : p.geometry.k) {}
};

__device__ __forceinline__ bool is_inside(int i, int extent) {
  return static_cast<unsigned>(i) < static_cast<unsigned>(extent);
}

// A row of a slice, from column `first` on, `gap` apart; zeros outside. kGroups: in groups of kWide, with
// (K - 1) / 2 columns before those of the piece.
template <class T, int K, int kCount, bool kGroups>
__device__ __forceinline__ void read_row(const T* row, bool inside, int first, int gap, int extent,
                                         int64_t stride, Accumulator<T> (&value)[kCount]) {
  using Acc = Accumulator<T>;
  if constexpr (kGroups) {
    constexpr int kBefore = (K - 1) / 2;
    Acc all[3][kWide];
#pragma unroll
    for (int g = 0; g < 3; ++g) {
      const int column = first + kBefore + (g - 1) * kWide;
      Raw<T, kWide> group;
      group.fill(T(0.0f));
      if (inside && is_inside(column, extent)) group.load(row + column);
      group.unpack(all[g]);
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      value[j] = all[(kWide - kBefore + j) / kWide][(kWide - kBefore + j) % kWide];
    }
  } else {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const int column = first + j * gap;
      T x(0.0f);
      if (inside && is_inside(column, extent)) x = row[column * stride];
      value[j] = static_cast<Acc>(x);
    }
  }
}

// Blocks of a multiprocessor to ask for; 0: as many as the compiler finds good. Where that makes it spill, fewer.
template <class T, int K, int M>
inline constexpr int kBlocks = sizeof(T) == 4 && K == 5 && M == 1 ? 2 : 0;

// K x K taps in a slice, M between pixels of a run; K = 0: any.
template <class T, int K, int M, bool kGroups>
__global__ void __launch_bounds__(kThreads, (kBlocks<T, K, M>))
    conv_depthwise_planes_kernel(const DLK_GRID_CONSTANT Args args) {
  using Acc = Accumulator<T>;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.count) return;
  int number = static_cast<int>(i);
  const auto take = [&number](const FastDiv& by) {
    const int q = by.quick(number), r = number - q * static_cast<int>(by.divisor());
    number = q;
    return r;
  };
  const RunAxis(&axis)[3] = args.axis;
  const Run w = axis[2].piece(take(args.strips), kWide), h = axis[1].piece(take(args.bands), kHigh),
            d = axis[0].piece(take(args.slices), 1);
  const int channel = take(args.by_channel), n = number;
  if (w.count <= 0 || h.count <= 0 || d.count <= 0) return;

  Acc sum[kHigh][kWide] = {};
  const ConvImageStrides& from = args.image_strides;
  const TapWeights& taps = args.weights;
  for (int m = 0; m < args.summed; ++m) {
    const T* weights =
        static_cast<const T*>(taps.data) + (int64_t{channel} * args.summed + m) * taps.channel;
    const T* plane = static_cast<const T*>(args.image) + n * from.n +
                     (int64_t{args.multiplier.quick(channel)} * args.summed + m) * from.c;
    for (int s = 0; s < d.taps; ++s) {
      const int z = d.source + s * axis[0].gap;
      if (!is_inside(z, axis[0].extent)) continue;
      const T* slice = plane + z * from.spatial[0];
      const T* of_slice = weights + (d.tap + s * axis[0].tap_step) * taps.strides[0];
      const auto read = [&]<int kTaps, int kCount>(int y, int x, int gap, Acc(&value)[kCount]) {
        const bool inside = is_inside(y, axis[1].extent);
        const T* row = slice + y * from.spatial[1];
        read_row<T, kTaps, kCount, kGroups>(row, inside, x, gap, axis[2].extent, from.spatial[2],
                                            value);
      };
      if constexpr (K > 0) {
        Acc weight[K][K];
#pragma unroll
        for (int t = 0; t < K * K; ++t) {
          weight[t / K][t % K] = static_cast<Acc>(of_slice[taps.offset(0, t / K, t % K)]);
        }
#pragma unroll
        for (int r = 0; r < (kHigh - 1) * M + K; ++r) {
          Acc value[(kWide - 1) * M + K];
          read.template operator()<K>(h.source + r * axis[1].gap, w.source, axis[2].gap, value);
#pragma unroll
          for (int o = 0; o < kHigh; ++o) {
            const int tap = r - o * M;
            if (tap < 0 || tap >= K) continue;
#pragma unroll
            for (int t = 0; t < K; ++t) {
#pragma unroll
              for (int j = 0; j < kWide; ++j) sum[o][j] += value[j * M + t] * weight[tap][t];
            }
          }
        }
      } else {
        for (int th = 0; th < h.taps; ++th) {
          for (int tw = 0; tw < w.taps; ++tw) {
            const Acc weight = static_cast<Acc>(of_slice[taps.offset(
                0, h.tap + th * axis[1].tap_step, w.tap + tw * axis[2].tap_step)]);
#pragma unroll
            for (int o = 0; o < kHigh; ++o) {
              Acc value[kWide];
              read.template operator()<0>(h.source + (o * axis[1].step + th) * axis[1].gap,
                                          w.source + tw * axis[2].gap, axis[2].step * axis[2].gap,
                                          value);
#pragma unroll
              for (int j = 0; j < kWide; ++j) sum[o][j] += value[j] * weight;
            }
          }
        }
      }
    }
  }

  const Acc bias =
      args.bias ? static_cast<Acc>(static_cast<const T*>(args.bias)[channel * args.bias_stride])
                : Acc(0);
  const ConvImageStrides& to = args.result_strides;
  T* const result = static_cast<T*>(args.result) + n * to.n + channel * to.c +
                    d.result * to.spatial[0] + h.result * to.spatial[1] + w.result * to.spatial[2];
#pragma unroll
  for (int o = 0; o < kHigh; ++o) {
    if (o >= h.count) break;
    T* const row = result + o * axis[1].apart * to.spatial[1];
#pragma unroll
    for (int j = 0; j < kWide; ++j) sum[o][j] += bias;
    if constexpr (kGroups) {
      Raw<T, kWide> rounded;
      rounded.pack(sum[o]);
      rounded.forget();
      rounded.store(row);
    } else {
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        if (j < w.count) row[j * axis[2].apart * to.spatial[2]] = static_cast<T>(sum[o][j]);
      }
    }
  }
}

// Whether rows are read and written in groups of kWide.
bool has_groups(const ConvProblem& p) {
  const ConvGeometry& g = p.geometry;
  const Window& w = g.window[2];
  if (2 * w.pad_begin != w.kernel - 1 || w.dilation != 1 || g.in[2] != g.out[2]) return false;
  const auto aligned = [&](const Tensor& t, const ConvImageStrides& s) {
    return g.in[2] % kWide == 0 && s.spatial[2] == 1 && s.spatial[1] % kWide == 0 &&
           s.spatial[0] % kWide == 0 && s.c % kWide == 0 && s.n % kWide == 0 &&
           is_aligned(t.data, kWide * dtype_size(t.dtype));
  };
  return aligned(p.x, p.x_strides) && aligned(p.y, p.y_strides);
}

template <class T, class F>
void with_taps(const ConvProblem& p, bool inverse, F&& f) {
  if constexpr (sizeof(T) < 8) {
    const Window &h = p.geometry.window[1], &w = p.geometry.window[2];
    const auto step = [&](const Window& window) {
      return inverse ? 1 : window.stride / std::gcd(window.stride, window.dilation);
    };
    const bool every = !inverse || (h.stride == 1 && w.stride == 1);
    const auto is = [&](int64_t taps, int64_t step_) {
      return every && h.kernel == taps && w.kernel == taps && step(h) == step_ && step(w) == step_;
    };
    const bool groups = has_groups(p);
    if (is(3, 1))
      return groups ? f(conv_depthwise_planes_kernel<T, 3, 1, true>)
                    : f(conv_depthwise_planes_kernel<T, 3, 1, false>);
    if (is(5, 1))
      return groups ? f(conv_depthwise_planes_kernel<T, 5, 1, true>)
                    : f(conv_depthwise_planes_kernel<T, 5, 1, false>);
    if (is(7, 1))
      return groups ? f(conv_depthwise_planes_kernel<T, 7, 1, true>)
                    : f(conv_depthwise_planes_kernel<T, 7, 1, false>);
    if (is(3, 2)) return f(conv_depthwise_planes_kernel<T, 3, 2, false>);
    if (is(5, 2)) return f(conv_depthwise_planes_kernel<T, 5, 2, false>);
  }
  f(conv_depthwise_planes_kernel<T, 0, 0, false>);
}

template <bool kInverse>
void run(const ConvProblem& p, const Launch& to) {
  if ((kInverse ? p.x : p.y).numel() == 0) return;
  const Args args(p, kInverse);
  dispatch_floating(p.x.dtype, [&]<class T>() {
    with_taps<T>(p, kInverse, [&](void (*kernel)(const Args)) {
      launch_kernel(kernel, static_cast<unsigned>(ceil_div(args.count, kThreads)), kThreads, 0,
                    to.stream, args);
    });
  });
}

const char* unsuitable(const ConvProblem& p, bool inverse) {
  if (const char* reason = fused_work_declines(p)) return reason;
  if (const char* reason = not_depthwise(p, inverse)) return reason;
  if (channels_last(p)) return "channels come last";
  return Args(p, inverse).count > INT_MAX ? "more pieces than 32 bits count" : nullptr;
}

constexpr Impl<ConvForward> kForward[] = {
    {"depthwise_planes", [](const ConvForward& p) { return unsuitable(p, false); }, nullptr,
     [](const ConvForward& p, const Launch& to) { run<false>(p, to); }},
};
constexpr Impl<ConvBackwardInput> kBackwardInput[] = {
    {"depthwise_planes", [](const ConvBackwardInput& p) { return unsuitable(p, true); }, nullptr,
     [](const ConvBackwardInput& p, const Launch& to) { run<true>(p, to); }},
};

}  // namespace

ImplList<ConvForward> conv_forward_depthwise_planes_impls() { return kForward; }
ImplList<ConvBackwardInput> conv_backward_input_depthwise_planes_impls() { return kBackwardInput; }

}  // namespace dlkern
