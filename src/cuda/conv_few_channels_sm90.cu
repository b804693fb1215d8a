// Convolutions of a few channels, as in a network's first layer, on Hopper.
//
// 128 bytes of channels of one tap would be mostly zeros. The taps that a row of the filter has lie
// beside each other in the image, though, with all their channels: a window of kernel * C elements,
// which moves by stride * C from pixel to pixel. So the image is taken for one whose pixels along w are
// these windows and whose channels are a window's elements; the filter's row is then a single tap. For
// the copy engine windows must begin at multiples of 16 bytes: the image is written to the workspace
// once, with zeros for its padding along w, and channels filled up with zeros.
#include <numeric>

#include "cuda/conv.h"
#include "cuda/conv_sm90.h"
#include "cuda/prims/vec.cuh"

namespace dlkern {
namespace {

using namespace gpu;

// ---- Rows of pixels, with zeros around them ----------------------------------------------------

// [n, d, h, line, padded] from [n, d, h, extent, channels] of any strides: position i of a line is
// pixel i - before.
struct Lines {
  const void* from;
  ConvImageStrides strides;
  int64_t channels, extent, before, count;  // count: of positions
  FastDiv line, h, d;

  Lines(const void* data, const ConvImageStrides& s, int64_t channels_, int64_t n,
        const int64_t (&extents)[3], int64_t before_, int64_t line_)
      : from(data),
        strides(s),
        channels(channels_),
        extent(extents[2]),
        before(before_),
        count(n * extents[0] * extents[1] * line_),
        line(line_),
        h(extents[1]),
        d(extents[0]) {}
};

template <int kPadded>
__global__ void __launch_bounds__(256) conv_lines_kernel(const Lines args, uint16_t* to) {
  int64_t w = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (w >= args.count) return;
  to += w * kPadded;
  int64_t h = args.line.divide(w), d = args.h.divide(h), n = args.d.divide(d);
  w -= args.before;
  const ConvImageStrides& s = args.strides;
  const uint16_t* from = static_cast<const uint16_t*>(args.from) + n * s.n + d * s.spatial[0] +
                         h * s.spatial[1] + w * s.spatial[2];
  Vec<uint16_t, kPadded> pixel;
#pragma unroll
  for (int c = 0; c < kPadded; ++c) {
    pixel.v[c] = w >= 0 && w < args.extent && c < args.channels ? from[c * s.c] : uint16_t{0};
  }
  store_vec(to, pixel);
}

void write_lines(const Lines& lines, int64_t padded, void* to, const Launch& launch) {
  const auto kernel = padded == 1   ? conv_lines_kernel<1>
                      : padded == 2 ? conv_lines_kernel<2>
                      : padded == 4 ? conv_lines_kernel<4>
                                    : conv_lines_kernel<8>;
  launch_kernel(kernel, static_cast<unsigned>(ceil_div(lines.count, 256)), 256, 0, launch.stream,
                lines, static_cast<uint16_t*>(to));
}

// ---- The convolution of windows ----------------------------------------------------------------

struct Windows {
  const char* reason = nullptr;
  ConvProblem problem;  // tensors of the workspace are offsets in it
  int64_t padded = 0;   // channels of a pixel
  int64_t line = 0;     // pixels from row to row
  int64_t taps = 0;     // along w, filled up to multiples of 16 bytes
  size_t bytes = 0;     // of the workspace, before that of the problem
};

Windows windows_of(const ConvProblem& p, bool of_weights) {
  Windows w{.problem = p};
  const ConvGeometry& g = p.geometry;
  const Window& along = g.window[2];
  if (dtype_size(p.x.dtype) != 2) return w.reason = "not of 16 bits", w;
  if (g.groups != 1 || g.c > 8 || along.kernel < 2 || along.dilation != 1) {
    return w.reason = "many channels, groups, one tap or dilation along w", w;
  }
  const int64_t unit = 8 / std::gcd(along.stride, int64_t{8});  // strides of 16 bytes
  for (w.padded = unit; w.padded < g.c;) w.padded *= 2;
  const int64_t length = along.kernel * w.padded;
  if (ceil_div(length, 64) >= along.kernel) return w.reason = "too few taps along w", w;
  const int64_t in_piece = 8 / w.padded;  // pixels of 16 bytes
  w.line = ceil_div((g.out[2] - 1) * along.stride + along.kernel, in_piece) * in_piece;
  w.taps = ceil_div(along.kernel, in_piece) * in_piece;

  const auto reserve = [&](int64_t elements) {
    void* at = reinterpret_cast<void*>(w.bytes);
    w.bytes += (elements * 2 + 255) / 256 * 256;
    return at;
  };
  ConvProblem& q = w.problem;
  if (of_weights) q.bias = {};  // may be of x's channels
  const int64_t row = w.line * w.padded, plane = row * g.in[1], image = plane * g.in[0];
  q.x.data = reserve(image * g.batch);
  q.x_strides = {image, 1, {plane, row, along.stride * w.padded}};
  q.geometry.c = length;
  q.geometry.in[2] = g.out[2];
  q.geometry.window[2] = Window{};
  if (!of_weights) {
    const int64_t of_row = w.taps * w.padded, of_plane = of_row * g.window[1].kernel;
    const int64_t of_k = of_plane * g.window[0].kernel;
    q.w.data = reserve(of_k * g.k);
    q.w_strides = {of_k * g.k, of_k, 1, {of_plane, of_row, of_row}};
  }
  return w;
}
// A gradient's channels are those of a window.
Sm90Spread spread_of(const ConvProblem& p, const Windows& w) {
  return {w.padded, p.geometry.c, p.w_strides.taps[2]};
}

// With the workspace's addresses in place of offsets, and the image there.
ConvProblem prepare(const ConvProblem& p, const Windows& w, bool of_weights, const Launch& launch) {
  ConvProblem q = w.problem;
  const ConvGeometry& g = p.geometry;
  auto* workspace = static_cast<uint8_t*>(launch.workspace);
  const auto place = [&](void* offset) { return workspace + reinterpret_cast<size_t>(offset); };
  q.x.data = place(q.x.data);
  write_lines(Lines(p.x.data, p.x_strides, g.c, g.batch, g.in, g.window[2].pad_begin, w.line),
              w.padded, q.x.data, launch);
  if (!of_weights) {
    q.w.data = place(q.w.data);
    const ConvWeightStrides& s = p.w_strides;
    const ConvImageStrides strides{s.k, s.c, {s.taps[0], s.taps[1], s.taps[2]}};
    const int64_t taps[3] = {g.window[0].kernel, g.window[1].kernel, g.window[2].kernel};
    write_lines(Lines(p.w.data, strides, g.c, g.k, taps, 0, w.taps), w.padded, q.w.data, launch);
  }
  return q;
}
Launch after(const Windows& w, Launch launch) {
  launch.workspace = static_cast<uint8_t*>(launch.workspace) + w.bytes;
  launch.workspace_bytes -= w.bytes;
  return launch;
}

constexpr Impl<ConvForward> kForward[] = {
    {"wgmma_sm90_windows",
     [](const ConvForward& p) {
       const Windows w = windows_of(p, false);
       return w.reason ? w.reason : sm90_forward_declines(w.problem);
     },
     [](const ConvForward& p) {
       const Windows w = windows_of(p, false);
       return w.bytes + sm90_forward_workspace_bytes(w.problem);
     },
     [](const ConvForward& p, const Launch& launch) {
       const Windows w = windows_of(p, false);
       sm90_forward(prepare(p, w, false, launch), after(w, launch));
     }}};
constexpr Impl<ConvBackwardWeight> kBackwardWeight[] = {
    {"wgmma_sm90_windows",
     [](const ConvBackwardWeight& p) {
       const Windows w = windows_of(p, true);
       return w.reason ? w.reason : sm90_weights_decline(w.problem, spread_of(p, w));
     },
     [](const ConvBackwardWeight& p) {
       const Windows w = windows_of(p, true);
       return w.bytes + sm90_weights_workspace_bytes(w.problem, spread_of(p, w));
     },
     [](const ConvBackwardWeight& p, const Launch& launch) {
       const Windows w = windows_of(p, true);
       sm90_weights(prepare(p, w, true, launch), spread_of(p, w), after(w, launch));
       if (p.bias) add_bias_gradient(p, launch);
     }}};

}  // namespace

ImplList<ConvForward> conv_forward_few_channels_sm90_impls() { return kForward; }
ImplList<ConvBackwardWeight> conv_backward_weight_few_channels_sm90_impls() {
  return kBackwardWeight;
}

}  // namespace dlkern
