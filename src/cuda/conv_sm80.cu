// Convolutions by mma.sync (conv_sm80.cuh) on the host: a problem as a product of matrices that are never
// built, and the implementations.
#include "cuda/conv.h"

#if !defined(__HIPCC__)

#include "cuda/conv_axes.h"
#include "cuda/conv_sm80.h"
#include "cuda/prims/tile_loader.cuh"

namespace dlkern {

namespace gpu {

#define DLKERN_EXTERN_CONV_MMA(T)                                                              \
  extern template void launch_conv_mma<T>(const ConvMmaArgs&, ConvLines, bool, const Launch&); \
  extern template void add_conv_parts<T>(const void*, const ConvResult&, int, int, const Launch&);
DLKERN_EXTERN_CONV_MMA(Half)
DLKERN_EXTERN_CONV_MMA(BFloat16)
DLKERN_EXTERN_CONV_MMA(float)
DLKERN_EXTERN_CONV_MMA(double)
#undef DLKERN_EXTERN_CONV_MMA

}  // namespace gpu

namespace {

using namespace gpu;

// ---- Matrices -------------------------------------------------------------------------------

// What is beyond the kernels' 32-bit offsets and coordinates, or half of it: two places are added.
constexpr int64_t kTooFar = 1 << 30;

struct Dimension {
  int64_t extent = 1, stride = 0;  // in elements
  int64_t first = 0, step = 0;     // coordinates
};

// A matrix's index before it is a PlaceIndex: along w, h, d, and channels (or images) inside or outside
// of these.
struct Dimensions {
  Dimension spatial[3], channels;
  bool inside = false;
  int64_t start = 0;

  bool has_coordinates() const {
    for (const Dimension& d : spatial) {
      if (d.first != 0 || (d.step != 0 && d.extent > 1)) return true;
    }
    return false;
  }
};

// `fits` becomes false where a place may be too far.
PlaceIndex make_index(const Dimensions& x, bool& fits) {
  Dimension all[4];
  for (int d = 0; d < 3; ++d) all[d + x.inside] = x.spatial[d];
  all[x.inside ? 0 : 3] = x.channels;
  PlaceIndex index;
  index.channels_inside = x.inside;
  if (x.has_coordinates()) {
    for (int d = 0; d < 3; ++d) {
      const Dimension& s = x.spatial[d];
      fits = fits &&
             std::max(std::abs(s.first), std::abs(s.first + (s.extent - 1) * s.step)) < kTooFar;
      index.first[d] = static_cast<int>(s.first);
      index.step[d] = static_cast<int>(s.step);
    }
  } else {  // neighbours merge, where they can
    Dimension merged[4];
    int count = 0;
    for (const Dimension& d : all) {
      if (d.extent == 1) continue;
      if (count && merged[count - 1].stride * merged[count - 1].extent == d.stride) {
        merged[count - 1].extent *= d.extent;
      } else {
        merged[count++] = d;
      }
    }
    std::copy_n(merged, 4, all);
    index.channels_inside = true;
  }
  int64_t count = 1, reach = std::abs(x.start);
  for (int d = 0; d < 4; ++d) {
    const int64_t extent = all[d].extent, stride = extent > 1 ? all[d].stride : 0;
    fits = fits && extent < kTooFar && std::abs(stride) < kTooFar;
    if (!fits) return index;
    count *= extent;
    reach += std::max<int64_t>(extent - 1, 0) * std::abs(stride);
    fits = count < kTooFar && reach < kTooFar;
    if (d < 3) index.extent[d] = FastDiv(extent);
    index.stride[d] = static_cast<int>(stride);
  }
  index.count = static_cast<int>(count);
  index.start = static_cast<int>(x.start);
  return index;
}

Dimensions channels_alone(int64_t count, int64_t stride) {
  Dimensions x;
  x.channels = {count, stride};
  x.inside = true;
  return x;
}

// The pixels of a batch of images. without_taps: all are in the image.
Dimensions pixels_of(const Axes& axes, int64_t batch, const ConvImageStrides& s,
                     bool without_taps) {
  Dimensions x;
  for (int i = 0; i < 3; ++i) {
    const Axis& a = axes.axis[i];
    const int64_t stride = s.spatial[2 - i];
    x.spatial[i] = {a.count, stride * a.step};
    x.start += stride * a.lower;
    if (without_taps) continue;
    x.spatial[i].first = a.lower;
    x.spatial[i].step = a.step;
  }
  x.channels = {batch, s.n};
  return x;
}

// The taps of an image that is read, and its channels.
Dimensions image_taps(const Axes& axes, int64_t channels, const ConvImageStrides& s, bool inside) {
  Dimensions x;
  for (int i = 0; i < 3; ++i) {
    const Axis& a = axes.axis[i];
    x.spatial[i] = {a.taps, s.spatial[2 - i] * a.offset, 0, a.offset};
  }
  x.channels = {channels, s.c};
  x.inside = inside;
  return x;
}

// The same of the weights.
Dimensions weight_taps(const Axes& axes, int64_t channels, int64_t stride,
                       const ConvWeightStrides& s, bool inside) {
  Dimensions x;
  for (int i = 0; i < 3; ++i) {
    const Axis& a = axes.axis[i];
    x.spatial[i] = {a.taps, s.taps[2 - i] * a.tap_step};
    x.start += s.taps[2 - i] * a.first_tap;
  }
  x.channels = {channels, stride};
  x.inside = inside;
  return x;
}

ConvOperand make_operand(const Tensor& t, int64_t group, const Dimensions& rows,
                         const Dimensions& depth, bool& fits) {
  const auto size = static_cast<int64_t>(dtype_size(t.dtype));
  ConvOperand x;
  x.data = static_cast<const char*>(t.data);
  x.group = group * size;
  x.rows = make_index(rows, fits);
  x.depth = make_index(depth, fits);
  return x;
}

// Neighbouring channels, as many as addresses allow.
int unit_of(const ConvOperand& x, bool along_k, int size) {
  const PlaceIndex &line = along_k ? x.depth : x.rows, &lines = along_k ? x.rows : x.depth;
  if (!line.channels_inside || line.stride[0] != 1) return size;
  auto strides = static_cast<uint64_t>(line.extent[0].divisor() | line.start | lines.start);
  for (int d = 0; d < 4; ++d) strides |= (d ? line.stride[d] : 0) | lines.stride[d];
  return std::max(copy_width(x.data, strides * size | static_cast<uint64_t>(x.group)), size);
}

void set_units(ConvMmaArgs& args, const ConvLines& lines, DType dtype) {
  const int size = static_cast<int>(dtype_size(dtype));
  args.a.unit = unit_of(args.a, lines.a_along_k, size);
  args.b.unit = unit_of(args.b, lines.b_along_k, size);
}

void set_runs(ConvResult& r) {
  r.y.col = r.cols.stride[0];
  const int64_t extent = r.cols.extent[0].divisor();
  r.runs = extent % 4 == 0 || extent == r.cols.count;
}

struct Product {
  ConvMmaArgs args;
  ConvLines lines{};
  bool fits = true;
};

// Forward, or one residue of the input gradient.
Product image_product(const ConvProblem& p, bool inverse, const Axes& axes, const Axes& result) {
  const ConvGeometry& g = p.geometry;
  const ConvWeightStrides& w = p.w_strides;
  const ConvImageStrides &from = inverse ? p.y_strides : p.x_strides,
                         &to = inverse ? p.x_strides : p.y_strides;
  const Tensor &image = inverse ? p.y : p.x, &out = inverse ? p.x : p.y;
  const int64_t summed = inverse ? g.k : g.c, channels = inverse ? g.c : g.k;
  const int64_t w_summed = inverse ? w.k : w.c, w_channels = inverse ? w.c : w.k;
  const bool last = channels_last(p);

  Product x;
  ConvOperand of_image = make_operand(image, summed * from.c, pixels_of(axes, g.batch, from, false),
                                      image_taps(axes, summed, from, last), x.fits);
  for (int i = 0; i < 3; ++i) {
    of_image.bounds[i] = static_cast<int>((inverse ? g.out : g.in)[2 - i]);
  }
  const ConvOperand of_weights = make_operand(p.w, w.group, channels_alone(channels, w_channels),
                                              weight_taps(axes, summed, w_summed, w, last), x.fits);
  x.args.a = last ? of_image : of_weights;
  x.args.b = last ? of_weights : of_image;
  x.args.groups = static_cast<int>(g.groups);
  x.args.part_depth = x.args.a.depth.count;
  x.lines = {true, last && std::abs(w_summed) <= std::abs(w_channels)};
  set_units(x.args, x.lines, p.x.dtype);

  ConvResult& r = x.args.result;
  const Dimensions pixels = pixels_of(result, g.batch, to, true);
  r.rows = make_index(last ? pixels : channels_alone(channels, to.c), x.fits);
  r.cols = make_index(last ? channels_alone(channels, to.c) : pixels, x.fits);
  r.y = {out.data, out.dtype, 0, 0};
  r.group = channels * to.c;
  if (p.bias) {
    const int64_t stride = p.bias.strides[0];
    r.c = {p.bias.data, p.bias.dtype, last ? 0 : stride, last ? stride : 0};
    r.c_group = channels * stride;
  }
  set_runs(r);
  return x;
}

Product weight_product(const ConvProblem& p) {
  const ConvGeometry& g = p.geometry;
  const ConvWeightStrides& w = p.w_strides;
  const bool last = channels_last(p);
  const Axes axes = forward_axes(g);
  Axes pixels;
  for (int i = 0; i < 3; ++i) pixels.axis[i] = {0, 1, g.out[2 - i]};

  Product x;
  x.args.a = make_operand(p.y, g.k * p.y_strides.c, channels_alone(g.k, p.y_strides.c),
                          pixels_of(pixels, g.batch, p.y_strides, true), x.fits);
  x.args.b = make_operand(p.x, g.c * p.x_strides.c, image_taps(axes, g.c, p.x_strides, last),
                          pixels_of(axes, g.batch, p.x_strides, false), x.fits);
  for (int i = 0; i < 3; ++i) x.args.b.bounds[i] = static_cast<int>(g.in[2 - i]);
  x.args.groups = static_cast<int>(g.groups);
  x.lines = {!last, !last};
  set_units(x.args, x.lines, p.x.dtype);

  ConvResult& r = x.args.result;
  r.rows = make_index(channels_alone(g.k, w.k), x.fits);
  r.cols = make_index(weight_taps(axes, g.c, w.c, w, last), x.fits);
  r.y = {p.w.data, p.w.dtype, 0, 0};
  r.group = w.group;
  r.accumulates = p.accumulate;
  set_runs(r);
  if (p.accumulate) r.c = r.y;
  return x;
}

// ---- Tiles and parts ------------------------------------------------------------------------

int64_t tiles_of(const ConvMmaArgs& args, const ConvTileShape& tile) {
  return ceil_div(args.a.rows.count, tile.m) * ceil_div(args.b.rows.count, tile.n) * args.groups;
}

// Large tiles where they are well filled and there are enough for the device.
bool takes_large(const ConvMmaArgs& args, bool wide, DType dtype, int64_t parts) {
  const ConvTileShape tile = conv_tile_shape(true, wide);
  return dtype != DType::kFloat64 && args.a.rows.count > tile.m / 2 &&
         args.b.rows.count > tile.n / 2 && tiles_of(args, tile) * parts >= multiprocessor_count();
}

// Cuts the sum into parts, as many as fill the device: by an estimate of the time, in steps of a tile's
// depth. As if all copies were wide: bits do not depend on addresses.
void set_parts(ConvMmaArgs& args, DType dtype) {
  const int depth = args.a.depth.count;
  const ConvTileShape tile = conv_tile_shape(takes_large(args, true, dtype, INT_MAX), true);
  const int64_t tiles = tiles_of(args, tile), slots = multiprocessor_count() * tile.blocks;
  const int64_t steps = ceil_div(depth, kConvPartUnit);
  const double size = double(args.groups) * args.a.rows.count * args.b.rows.count;
  int64_t best = 1;
  double least = 0;
  for (int64_t parts = 1; parts <= std::min(std::max<int64_t>(steps / 8, 1), slots); ++parts) {
    const double waves = ceil_div(tiles * parts, slots);
    const double sums = parts == 1 ? 0 : 8 + 8 * size * parts / 2e6;
    const double cost = waves * (ceil_div(steps, parts) + 8) + sums;
    if (parts == 1 || cost < least) {
      best = parts;
      least = cost;
    }
  }
  const int64_t length = ceil_div(steps, best);
  args.part_depth = static_cast<int>(length * kConvPartUnit);
  args.parts = static_cast<int>(std::max<int64_t>(ceil_div(steps, length), 1));
}

// ---- Implementations ------------------------------------------------------------------------

// `few`: channels of a group; threads that share nothing are better for four.
const char* unsuitable(const ConvProblem& p, int64_t few) {
  if (const char* reason = fused_work_declines(p)) return reason;
  if (compute_capability() < 80) return "the GPU's compute capability is below 8.0";
  if (p.x.dtype == DType::kFloat32 && p.precision != DLK_PRECISION_TF32) {
    return "float32 products are wanted in full precision";
  }
  const ConvGeometry& g = p.geometry;
  if (p.x.numel() == 0 || p.y.numel() == 0 || p.w.numel() == 0) return "nothing to multiply";
  if (g.groups > 1 && few <= 4) return "a group has few channels";
  return nullptr;
}

const char* too_large(const Product& x) {
  constexpr const char* kWhy = "an operand or the result has 2^30 elements or more, or padding";
  if (!x.fits) return kWhy;
  return tiles_of(x.args, conv_tile_shape(false, true)) * x.args.parts > INT_MAX ? kWhy : nullptr;
}

template <bool kInverse>
const char* images_decline(const ConvProblem& p) {
  const ConvGeometry& g = p.geometry;
  if (const char* why = unsuitable(p, kInverse ? g.k : g.c)) return why;
  int64_t residues = 1;
  for (int d = 0; d < 3 && kInverse; ++d) {
    residues *= std::min(g.window[d].stride, g.in[d]);
    if (residues > 64) return "too large a stride";
  }
  const char* why = nullptr;
  for_each_axes(p, kInverse, [&](const Axes& axes, const Axes& result) {
    if (!why) why = too_large(image_product(p, kInverse, axes, result));
  });
  return why;
}

template <bool kInverse>
void run_images(const ConvProblem& p, const Launch& launch) {
  for_each_axes(p, kInverse, [&](const Axes& axes, const Axes& result) {
    const Product x = image_product(p, kInverse, axes, result);
    const bool large = takes_large(x.args, x.args.is_wide(), p.x.dtype, 1);
    dispatch_floating(p.x.dtype,
                      [&]<class T>() { launch_conv_mma<T>(x.args, x.lines, large, launch); });
  });
}

Product weight_parts(const ConvProblem& p) {
  Product x = weight_product(p);
  if (x.fits) set_parts(x.args, p.x.dtype);
  return x;
}

const char* weights_decline(const ConvBackwardWeight& p) {
  if (const char* why = unsuitable(p, std::max(p.geometry.c, p.geometry.k))) return why;
  const Product x = weight_parts(p);
  return int64_t{x.args.a.rows.count} * x.args.b.rows.count < kTooFar ? too_large(x)
                                                                      : "too many weights";
}

size_t weights_workspace_bytes(const ConvBackwardWeight& p) {
  const Product x = weight_parts(p);
  if (x.args.parts == 1) return 0;
  const size_t sum = p.x.dtype == DType::kFloat64 ? sizeof(double) : sizeof(float);
  return sum * x.args.parts * x.args.groups * x.args.a.rows.count * x.args.b.rows.count;
}

// The result as it lies in the workspace.
ConvResult sums_of_parts(const ConvMmaArgs& args, DType dtype, void* workspace) {
  const int64_t rows = args.a.rows.count, cols = args.b.rows.count;
  bool fits = true;
  ConvResult r;
  r.rows = make_index(channels_alone(rows, cols), fits);
  r.cols = make_index(channels_alone(cols, 1), fits);
  r.y = {workspace, dtype == DType::kFloat64 ? dtype : DType::kFloat32, 0, 0};
  r.group = rows * cols;
  r.part = r.group * args.groups;
  set_runs(r);
  return r;
}

void run_weights(const ConvBackwardWeight& p, const Launch& launch) {
  const DType dtype = p.x.dtype;
  Product x = weight_parts(p);
  ConvMmaArgs& args = x.args;
  const ConvResult result = args.result;
  if (args.parts > 1) args.result = sums_of_parts(args, dtype, launch.workspace);
  dispatch_floating(dtype, [&]<class T>() {
    launch_conv_mma<T>(args, x.lines, takes_large(args, args.is_wide(), dtype, args.parts), launch);
    if (args.parts > 1) {
      add_conv_parts<T>(launch.workspace, result, args.groups, args.parts, launch);
    }
  });
  if (p.bias) add_bias_gradient(p, launch);
}

constexpr Impl<ConvForward> kForward[] = {
    {"mma_sm80", [](const ConvForward& p) { return images_decline<false>(p); }, nullptr,
     [](const ConvForward& p, const Launch& launch) { run_images<false>(p, launch); }}};
constexpr Impl<ConvBackwardInput> kBackwardInput[] = {
    {"mma_sm80", [](const ConvBackwardInput& p) { return images_decline<true>(p); }, nullptr,
     [](const ConvBackwardInput& p, const Launch& launch) { run_images<true>(p, launch); }}};
constexpr Impl<ConvBackwardWeight> kBackwardWeight[] = {
    {"mma_sm80", weights_decline, weights_workspace_bytes, run_weights}};

}  // namespace

ImplList<ConvForward> conv_forward_sm80_impls() { return kForward; }
ImplList<ConvBackwardInput> conv_backward_input_sm80_impls() { return kBackwardInput; }
ImplList<ConvBackwardWeight> conv_backward_weight_sm80_impls() { return kBackwardWeight; }

}  // namespace dlkern

#else

namespace dlkern {
ImplList<ConvForward> conv_forward_sm80_impls() { return {}; }
ImplList<ConvBackwardInput> conv_backward_input_sm80_impls() { return {}; }
ImplList<ConvBackwardWeight> conv_backward_weight_sm80_impls() { return {}; }
}  // namespace dlkern

#endif
