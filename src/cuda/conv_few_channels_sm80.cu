// Input gradients of a few channels, as of a network's first layer, by mma.sync (compute capability 8.0
// and newer):
//
//   dx[n, h, w, c] = bias[c] + sum_(r, s, k) dy[n, p, q, k] w[k, r, s, c],  h = p stride - pad + r
//
// The products have C <= 8 columns, so that time goes into the reading of dy. Pixels are taken in cells:
// pixel stride j + residue of a dimension meets dy at positions j + o, for the offsets o of its residue.
// A block has 16 x 16 cells, keeps the dy around them in shared memory, 64 channels at a time, and reads
// a fragment of it once for the pixels of all residues that have a tap there; others do not see it.
// Sums in float32. Bound by shared memory.
// Weights come as fragments from the workspace, which a first kernel makes: [64 of k][tap][16 of k][lane].
#include "cuda/conv.h"

#if !defined(__HIPCC__)

#include "core/fast_div.h"
#include "cuda/prims/mma.cuh"

namespace dlkern {
namespace {

using namespace gpu;

constexpr int kCells = 16, kWarps = 4, kThreads = 32 * kWarps;
constexpr int kRowsOfWarp = kCells / kWarps;
constexpr int kDepth = 64, kSteps = kDepth / 16;  // k in shared memory, and in products
constexpr int kPixelBytes = kDepth * 2, kTapBytes = kSteps * 32 * 8;
constexpr int kMostShared = 200 * 1024;

// Along one dimension, h or w.
struct Line {
  int extent, from_extent;  // of dx, of dy
  int stride, pad, taps;
  int first, offsets;  // of dy's positions, from the cell's number on
  FastDiv tiles;

  Line() = default;
  Line(const Window& w, int64_t in, int64_t out)
      : extent(static_cast<int>(in)),
        from_extent(static_cast<int>(out)),
        stride(static_cast<int>(w.stride)),
        pad(static_cast<int>(w.pad_begin)),
        taps(static_cast<int>(w.kernel)),
        tiles(ceil_div(ceil_div(in, w.stride), kCells)) {
    const auto floor_div = [](int a, int b) { return a / b - (a % b < 0); };
    first = -floor_div(taps - 1 - pad, stride);
    offsets = floor_div(stride - 1 + pad, stride) - first + 1;
  }
  DLK_HD int positions() const { return kCells + offsets - 1; }
  // The tap by which a residue meets the offset of this number; there may be none.
  __device__ int tap(int residue, int number) const {
    return residue + pad - stride * (first + number);
  }
};

struct Args {
  const void *dy, *weights, *bias;
  void *dx, *fragments;
  ConvImageStrides dy_strides, dx_strides;
  ConvWeightStrides w_strides;
  int64_t bias_stride;
  int k, c, chunks;
  Line line[2];   // h, w
  FastDiv width;  // of the dy in shared memory

  DLK_HD int taps() const { return line[0].taps * line[1].taps; }
  DLK_HD int pixels() const { return line[0].positions() * line[1].positions(); }
  size_t shared_bytes() const {
    return static_cast<size_t>(pixels()) * kPixelBytes + static_cast<size_t>(taps()) * kTapBytes;
  }
  size_t fragment_bytes() const { return static_cast<size_t>(chunks) * taps() * kTapBytes; }
};

__global__ void __launch_bounds__(256) conv_few_channels_weights_kernel(const Args args) {
  const int i = blockIdx.x * 256 + threadIdx.x, lane = i % 32, step = i / 32 % kSteps;
  const int tap = i / (32 * kSteps) % args.taps(), chunk = i / (32 * kSteps) / args.taps();
  if (chunk >= args.chunks) return;
  const ConvWeightStrides& s = args.w_strides;
  const int c = lane / 4, r = tap / args.line[1].taps, q = tap - r * args.line[1].taps;
  const auto* w =
      static_cast<const uint16_t*>(args.weights) + c * s.c + r * s.taps[1] + q * s.taps[2];
  uint32_t v[2] = {};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int k = chunk * kDepth + step * 16 + lane % 4 * 2 + j / 2 * 8 + j % 2;
    if (c < args.c && k < args.k) v[j / 2] |= uint32_t{w[k * s.k]} << 16 * (j % 2);
  }
  static_cast<uint2*>(args.fragments)[i] = make_uint2(v[0], v[1]);
}

template <class T>
class FewChannels {
 public:
  __device__ FewChannels(const Args& args, uint8_t* shared)
      : args_(args), image_(shared), weights_(shared + args.pixels() * kPixelBytes) {
    int rest = blockIdx.x, n = rest;
    n = args.line[1].tiles.quick(rest);
    cell_[1] = (rest - n * static_cast<int>(args.line[1].tiles.divisor())) * kCells;
    rest = n;
    n = args.line[0].tiles.quick(rest);
    cell_[0] = (rest - n * static_cast<int>(args.line[0].tiles.divisor())) * kCells;
    n_ = n;
  }

  __device__ void run() {
    for (int chunk = 0; chunk < args_.chunks; ++chunk) {
      if (chunk > 0) __syncthreads();
      load(chunk);
      __syncthreads();
      multiply();
    }
    store();
  }

 private:
  // dy around the cells, zeros outside the image and behind the last channel, and the weights.
  __device__ void load(int chunk) {
    const auto* dy = static_cast<const uint16_t*>(args_.dy);
    const ConvImageStrides& s = args_.dy_strides;
    const int lane = threadIdx.x % 8, k = chunk * kDepth + lane * 8;
    for (int pixel = threadIdx.x / 8; pixel < args_.pixels(); pixel += kThreads / 8) {
      const int row = args_.width.quick(pixel);
      const int p = cell_[0] + args_.line[0].first + row;
      const int q =
          cell_[1] + args_.line[1].first + pixel - row * static_cast<int>(args_.width.divisor());
      const bool inside = p >= 0 && p < args_.line[0].from_extent && q >= 0 &&
                          q < args_.line[1].from_extent && k < args_.k;
      const auto* from = inside ? dy + n_ * s.n + p * s.spatial[1] + q * s.spatial[2] + k : dy;
      cp_async<16>(image_ + chunk_at(pixel, lane), from, inside ? 16 : 0);
    }
    const int bytes = args_.taps() * kTapBytes;
    const auto* from = static_cast<const uint8_t*>(args_.fragments) + int64_t{chunk} * bytes;
    for (int at = threadIdx.x * 16; at < bytes; at += kThreads * 16) {
      cp_async<16>(weights_ + at, from + at, 16);
    }
    cp_async_commit();
    cp_async_wait<0>();
  }

  __device__ void multiply() {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * kRowsOfWarp;
    const int width = static_cast<int>(args_.width.divisor());
    for (int i = 0; i < args_.line[0].offsets; ++i) {
      for (int j = 0; j < args_.line[1].offsets; ++j) {
        // Weights of the four residues, or nullptr.
        const uint8_t* weights[4];
#pragma unroll
        for (int residue = 0; residue < 4; ++residue) weights[residue] = taps_at(residue, i, j);
        const int first = (row + i) * width + j + lane % 16;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          uint32_t pixels[kRowsOfWarp][4];
#pragma unroll
          for (int m = 0; m < kRowsOfWarp; ++m) {
            ldmatrix_x4(pixels[m], image_ + chunk_at(first + m * width, 2 * step + lane / 16));
          }
#pragma unroll
          for (int residue = 0; residue < 4; ++residue) {
            if (!weights[residue]) continue;
            const uint2 w =
                *reinterpret_cast<const uint2*>(weights[residue] + (step * 32 + lane) * 8);
#pragma unroll
            for (int m = 0; m < kRowsOfWarp; ++m) {
              Mma<T>::product(sums_[m][residue], pixels[m], w.x, w.y);
            }
          }
        }
      }
    }
  }

  __device__ void store() const {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * kRowsOfWarp;
    const ConvImageStrides& s = args_.dx_strides;
    auto* dx = static_cast<T*>(args_.dx) + n_ * s.n;
    const auto* bias = static_cast<const T*>(args_.bias);
#pragma unroll
    for (int m = 0; m < kRowsOfWarp; ++m) {
#pragma unroll
      for (int residue = 0; residue < 4; ++residue) {
        const int r[2] = {residue / 2, residue % 2};
        const int h = (cell_[0] + row + m) * args_.line[0].stride + r[0];
        if (r[0] >= args_.line[0].stride || r[1] >= args_.line[1].stride) continue;
        if (h >= args_.line[0].extent) continue;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int w = (cell_[1] + lane / 4 + e / 2 * 8) * args_.line[1].stride + r[1];
          const int c = lane % 4 * 2 + e % 2;
          if (w >= args_.line[1].extent || c >= args_.c) continue;
          float sum = sums_[m][residue][e];
          if (bias) sum += static_cast<float>(bias[c * args_.bias_stride]);
          dx[h * s.spatial[1] + w * s.spatial[2] + c * s.c] = static_cast<T>(sum);
        }
      }
    }
  }

  // Chunk of 16 bytes of a pixel.
  static __device__ int chunk_at(int pixel, int chunk) {
    return pixel * kPixelBytes + ((chunk ^ (pixel & 7)) << 4);
  }
  __device__ const uint8_t* taps_at(int residue, int i, int j) const {
    const Line &h = args_.line[0], &w = args_.line[1];
    const int a = residue / 2, b = residue % 2, r = h.tap(a, i), q = w.tap(b, j);
    const bool there = a < h.stride && b < w.stride && r >= 0 && r < h.taps && q >= 0 && q < w.taps;
    return there ? weights_ + (r * w.taps + q) * kTapBytes : nullptr;
  }

  const Args& args_;
  uint8_t *image_, *weights_;  // [pixel][64 channels], [tap][step][lane]
  int n_, cell_[2];            // the first cell
  float sums_[kRowsOfWarp][4][4] = {};
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    conv_few_channels_kernel(DLK_GRID_CONSTANT const Args args) {
  extern __shared__ __align__(128) uint8_t shared[];
  FewChannels<T>(args, shared).run();
}

Args args_of(const ConvProblem& p) {
  const ConvGeometry& g = p.geometry;
  Args args{p.y.data, p.w.data,    p.bias.data, p.x.data,
            nullptr,  p.y_strides, p.x_strides, p.w_strides};
  args.bias_stride = p.bias ? p.bias.strides[0] : 0;
  args.k = static_cast<int>(g.k);
  args.c = static_cast<int>(g.c);
  args.chunks = static_cast<int>(ceil_div(g.k, kDepth));
  for (int d = 0; d < 2; ++d) args.line[d] = Line(g.window[1 + d], g.in[1 + d], g.out[1 + d]);
  args.width = FastDiv(args.line[1].positions());
  return args;
}

const char* supports(const ConvBackwardInput& p) {
  if (const char* reason = fused_work_declines(p)) return reason;
  const ConvGeometry& g = p.geometry;
  if (compute_capability() < 80) return "the GPU's compute capability is below 8.0";
  if (dtype_size(p.x.dtype) != 2) return "not of 16 bits";
  if (g.groups != 1 || g.c > 8) return "groups, or more than 8 channels";
  if (p.x.numel() == 0 || p.y.numel() == 0 || p.w.numel() == 0) return "nothing to multiply";
  const Window& depth = g.window[0];
  if (g.in[0] != 1 || g.out[0] != 1 || depth.kernel != 1 || depth.pad_begin != 0) {
    return "three spatial dimensions";
  }
  if (g.in[1] == 1) return "one spatial dimension";
  for (int d = 1; d < 3; ++d) {
    const Window& w = g.window[d];
    if (w.stride > 2 || w.dilation != 1) return "dilation, or a stride beyond 2";
    if (w.pad_begin >= w.kernel || w.kernel > 64) return "more padding than taps, or many taps";
  }
  const ConvImageStrides& s = p.y_strides;
  if (s.c != 1 || g.k % 8 != 0 || s.n % 8 != 0 || s.spatial[1] % 8 != 0 || s.spatial[2] % 8 != 0 ||
      reinterpret_cast<uintptr_t>(p.y.data) % 16 != 0) {
    return "the gradient's channels are not in pieces of 16 bytes";
  }
  const int64_t most = INT32_MAX / 64;
  if (g.k > most || std::max({g.in[1], g.in[2], g.out[1], g.out[2]}) > most ||
      double(g.batch) * g.in_count() > double(most) * kCells) {
    return "too many pixels";
  }
  return args_of(p).shared_bytes() > kMostShared ? "too many taps" : nullptr;
}

void run(const ConvBackwardInput& p, const Launch& launch) {
  Args args = args_of(p);
  args.fragments = launch.workspace;
  const int64_t tiles =
      p.geometry.batch * args.line[0].tiles.divisor() * args.line[1].tiles.divisor();
  launch_kernel(conv_few_channels_weights_kernel,
                static_cast<unsigned>(ceil_div(args.fragment_bytes() / 8, 256)), 256, 0,
                launch.stream, args);
  launch_kernel(p.x.dtype == DType::kFloat16 ? conv_few_channels_kernel<Half>
                                             : conv_few_channels_kernel<BFloat16>,
                static_cast<unsigned>(tiles), kThreads, args.shared_bytes(), launch.stream, args);
}

constexpr Impl<ConvBackwardInput> kImpls[] = {
    {"mma_sm80_few_channels", supports,
     [](const ConvBackwardInput& p) { return args_of(p).fragment_bytes(); }, run}};

}  // namespace

ImplList<ConvBackwardInput> conv_backward_input_few_channels_impls() { return kImpls; }

}  // namespace dlkern

#else

namespace dlkern {
ImplList<ConvBackwardInput> conv_backward_input_few_channels_impls() { return {}; }
}  // namespace dlkern

#endif
