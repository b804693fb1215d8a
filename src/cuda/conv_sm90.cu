// Convolution on Hopper, on the host: which problems the kernels of conv_sm90.cuh take, and how they
// are cut and laid out.
//
// An input gradient of stride s is s convolutions in each dimension, one for each residue of the
// position: its pixels meet every s-th tap, and no other is multiplied.
#include "cuda/conv_sm90.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <numeric>
#include <optional>

#include "cuda/conv.h"
#include "cuda/prims/tensor_map.h"
#include "ops/layout.h"

namespace dlkern {
namespace {

using namespace gpu;

// ---- Tensors -----------------------------------------------------------------------------------

// An image as tensor maps see it: spatial dimensions in the order w, h, d.
struct Image {
  void* data;
  int bytes;  // of an element
  int64_t channels, n, extent[3];
  int64_t channel_stride, n_stride, stride[3];

  int64_t pixels() const { return n * extent[0] * extent[1] * extent[2]; }
  // Whether pixels are rows of a matrix, stride[0] apart.
  bool is_matrix() const {
    int64_t expected = stride[0];
    for (int d = 0; d < 3; ++d) {
      if (extent[d] > 1 && stride[d] != expected) return false;
      expected *= extent[d];
    }
    return n == 1 || n_stride == expected;
  }
};

Image image_of(const ConvProblem& p, bool of_x) {
  const ConvGeometry& g = p.geometry;
  const Tensor& t = of_x ? p.x : p.y;
  const ConvImageStrides& s = of_x ? p.x_strides : p.y_strides;
  const int64_t* extent = of_x ? g.in : g.out;
  return {t.data,  static_cast<int>(dtype_size(t.dtype)),     g.groups * (of_x ? g.c : g.k),
          g.batch, {extent[2], extent[1], extent[0]},         s.c,
          s.n,     {s.spatial[2], s.spatial[1], s.spatial[0]}};
}

bool is_copyable(int64_t stride, int64_t extent, int bytes) {
  return extent == 1 ||
         (stride > 0 && stride * bytes % 16 == 0 && stride * bytes < (int64_t{1} << 40));
}
// nullptr where the copy engine takes an image as it lies. Results are stored in pieces of 16 bytes.
const char* unsuitable(const Image& image, bool is_result) {
  if (image.channel_stride != 1) return "channels are not neighbours in memory";
  bool copyable = reinterpret_cast<uintptr_t>(image.data) % 16 == 0 &&
                  is_copyable(image.n_stride, image.n, image.bytes);
  for (int d = 0; d < 3; ++d) {
    copyable = copyable && is_copyable(image.stride[d], image.extent[d], image.bytes);
  }
  if (is_result) copyable = copyable && image.channels * image.bytes % 16 == 0;
  return copyable ? nullptr : "an image's address, channels or strides are not for bulk copies";
}

// ---- Copies in the workspace -------------------------------------------------------------------

// A tensor that is copied to the workspace, or from there, where kernels cannot take it as it lies:
// the last dimension becomes contiguous, others begin at multiples of 16 bytes.
struct Stage {
  Tensor tensor;  // as it lies; absent: nothing to copy
  Tensor copy;    // its data is an offset in the workspace

  Stage() = default;
  Stage(const Tensor& t, size_t& workspace_bytes) : tensor(t), copy(t) {
    const int64_t unit = 16 / static_cast<int64_t>(dtype_size(t.dtype));
    int64_t stride = 1;
    for (int d = t.ndim - 1; d >= 0; --d) {
      copy.strides[d] = stride;
      stride *= d == t.ndim - 1 ? ceil_div(t.shape[d], unit) * unit : t.shape[d];
    }
    copy.data = reinterpret_cast<void*>(workspace_bytes);
    workspace_bytes += (stride * dtype_size(t.dtype) + 255) / 256 * 256;
  }
  Tensor at(const Launch& launch) const {
    Tensor t = copy;
    t.data = static_cast<uint8_t*>(launch.workspace) + reinterpret_cast<size_t>(copy.data);
    return t;
  }
  void fill(const Launch& launch) const { run_copy(tensor, at(launch), launch); }
  void empty(const Launch& launch) const { run_copy(at(launch), tensor, launch); }

 private:
  static void run_copy(const Tensor& x, const Tensor& y, const Launch& launch) {
    const Copy copy{{{x, y}}};
    for (const Impl<Copy>& impl : gpu_impls<Copy>()) {
      if (!impl.supports(copy)) return impl.run(copy, launch);
    }
  }
};

// As [n, d, h, w, c].
Tensor pixels_by_channels(const Tensor& t, const Image& image) {
  Tensor view = t;
  view.ndim = 5;
  view.shape = {image.n, image.extent[2], image.extent[1], image.extent[0], image.channels};
  view.strides = {image.n_stride, image.stride[2], image.stride[1], image.stride[0],
                  image.channel_stride};
  return view;
}
// The image where its copy is.
Image staged(const Image& image, const Tensor& copy) {
  Image view = image;
  view.data = copy.data;
  view.channel_stride = 1;
  view.n_stride = copy.strides[0];
  for (int d = 0; d < 3; ++d) view.stride[d] = copy.strides[3 - d];
  return view;
}

// As [group, row, d, h, w, column], summed over the columns.
Tensor rows_by_columns(const ConvProblem& p, bool transposed) {
  const ConvGeometry& g = p.geometry;
  const ConvWeightStrides& s = p.w_strides;
  Tensor view = p.w;
  view.ndim = 6;
  view.shape = {g.groups,           transposed ? g.c : g.k, g.window[0].kernel,
                g.window[1].kernel, g.window[2].kernel,     transposed ? g.k : g.c};
  view.strides = {s.group,   transposed ? s.c : s.k, s.taps[0], s.taps[1],
                  s.taps[2], transposed ? s.k : s.c};
  return view;
}

// Element strides of the weights as a matrix [rows, taps, cols] of each group, cols being neighbours.
struct Weights {
  void* data;
  int64_t rows, cols, row, tap, group;
};

// ---- One convolution of an image ---------------------------------------------------------------

// Along one dimension: the pixels of the result and the taps that they meet.
struct Axis {
  int64_t lower, step, count;         // of the pixels, in the image
  int64_t taps, first_tap, tap_step;  // of the filter's
  int64_t offset;                     // of neighbouring taps, in the image
};

Axis forward_axis(const Window& w, int64_t out) {
  return {-w.pad_begin, w.stride, out, w.kernel, 0, 1, w.dilation};
}
// Pixels residue, residue + stride, ... of the input gradient. No taps: they are zeros.
Axis gradient_axis(const Window& w, int64_t in, int64_t residue) {
  const int64_t common = std::gcd(w.stride, w.dilation), step = w.stride / common;
  const int64_t count = ceil_div(in - residue, w.stride), at = residue + w.pad_begin;
  for (int64_t first = 0; first < std::min(step, w.kernel); ++first) {
    if ((at - first * w.dilation) % w.stride != 0) continue;
    const int64_t taps = (w.kernel - 1 - first) / step + 1, last = first + (taps - 1) * step;
    return {(at - last * w.dilation) / w.stride, 1, count, taps, last, -step, w.dilation / common};
  }
  return {0, 1, count, 0, 0, 0, 0};
}

struct Axes {
  Axis axis[3];  // w, h, d

  bool has_taps() const { return axis[0].taps && axis[1].taps && axis[2].taps; }
  int64_t pixels(int64_t n) const { return n * axis[0].count * axis[1].count * axis[2].count; }
};

// The rank of a tensor map: 5 where there is a third dimension.
bool has_d(const ConvGeometry& g) {
  return g.in[0] != 1 || g.out[0] != 1 || g.window[0].kernel != 1 || g.window[0].pad_begin != 0;
}

int64_t upper_corner(const Axis& axis, int64_t extent) {
  return axis.lower + (axis.count - 1) * axis.step - (extent - 1);
}
// Within what tensor maps can say; `image` is where pixels and taps are.
bool fits_map(const Axes& axes, const Image& image, bool d) {
  const int64_t corner = d ? 16 : 128, offsets = d ? 32 : 256;
  for (int i = 0; i < (d ? 3 : 2); ++i) {
    const Axis& a = axes.axis[i];
    const int64_t upper = upper_corner(a, image.extent[i]);
    if (a.lower < -corner || a.lower >= corner || upper < -corner || upper >= corner) return false;
    if (a.step > 8 || (a.taps - 1) * a.offset >= offsets) return false;
  }
  return true;
}

CUtensorMap columns_map(const Image& image, const Axes& axes, bool d, CUtensorMapDataType type,
                        uint32_t pixels) {
  Im2colShape shape{.type = type, .rank = d ? 5 : 4};
  const auto stride = [&](int64_t s, int64_t extent) {
    return static_cast<uint64_t>(extent == 1 ? 16 : s * image.bytes);
  };
  shape.extent[0] = image.channels;
  for (int i = 0; i < shape.rank - 2; ++i) {
    shape.extent[1 + i] = image.extent[i];
    shape.stride_bytes[i] = stride(image.stride[i], image.extent[i]);
    shape.lower[i] = static_cast<int>(axes.axis[i].lower);
    shape.upper[i] = static_cast<int>(upper_corner(axes.axis[i], image.extent[i]));
    shape.step[i] = static_cast<uint32_t>(axes.axis[i].step);
  }
  shape.extent[shape.rank - 1] = image.n;
  shape.stride_bytes[shape.rank - 2] = stride(image.n_stride, image.n);
  shape.channels = kSwizzleBytes / image.bytes;
  shape.pixels = pixels;
  return make_im2col_map(image.data, shape);
}

Sm90Pixels pixels_of(const Axes& axes, bool d) {
  Sm90Pixels pixels;
  pixels.has_d = d;
  for (int i = 0; i < 3; ++i) {
    pixels.extent[i] = FastDiv(axes.axis[i].count);
    pixels.lower[i] = static_cast<int>(axes.axis[i].lower);
    pixels.step[i] = static_cast<int>(axes.axis[i].step);
  }
  return pixels;
}
Sm90Taps taps_of(const Axes& axes, const ConvGeometry& g) {
  Sm90Taps taps;
  int64_t stride = 1;
  for (int i = 0; i < 3; ++i) {
    const Axis& a = axes.axis[i];
    taps.count[i] = static_cast<int>(a.taps);
    taps.offset[i] = static_cast<int>(a.offset);
    taps.first += static_cast<int>(a.first_tap * stride);
    taps.step[i] = static_cast<int>(a.tap_step * stride);
    stride *= g.window[2 - i].kernel;
  }
  return taps;
}

// ---- What the directions share -----------------------------------------------------------------

std::optional<Mma> mma_of(const ConvProblem& p) {
  switch (p.x.dtype) {
    case DType::kBFloat16:
      return Mma::kBFloat16;
    case DType::kFloat16:
      return Mma::kFloat16;
    case DType::kFloat32:
      if (p.precision == DLK_PRECISION_TF32) return Mma::kTf32;
      [[fallthrough]];
    default:
      return std::nullopt;
  }
}
CUtensorMapDataType map_type(Mma mma, bool rounds) {
  if (mma != Mma::kTf32) return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return rounds ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
}
Sm90Kernel find_kernel(Mma mma, int config, bool weights_along_k) {
  return mma == Mma::kBFloat16  ? sm90_conv_kernel_bfloat16(config, weights_along_k)
         : mma == Mma::kFloat16 ? sm90_conv_kernel_float16(config, weights_along_k)
                                : sm90_conv_kernel_tf32(config, weights_along_k);
}

const char* unsuitable(const ConvProblem& p) {
  if (compute_capability() != 90) return "needs compute capability 9.0";
  if (!mma_of(p)) return "no tensor-core product of this dtype and precision";
  const ConvGeometry& g = p.geometry;
  if (p.x.numel() == 0 || p.y.numel() == 0 || p.w.numel() == 0) return "nothing to multiply";
  const int64_t pixels = g.batch * std::max(g.in_count(), g.out_count());
  if (pixels > INT_MAX / 16) return "too many pixels";
  if (g.taps() > 1 << 15) return "too many taps";
  const int64_t chunk = kSwizzleBytes / static_cast<int64_t>(dtype_size(p.x.dtype));
  if (g.groups > 1 && (g.c % chunk != 0 || g.k % chunk != 0)) {
    return "a group's channels are no multiple of 128 bytes";
  }
  return nullptr;
}

// Estimated clocks of a multiprocessor: as cost_of in gemm_sm90.cu.
double cost_of(const Sm90Config& c, int64_t rows, int64_t cols, int64_t groups, int64_t stages) {
  const int64_t tiles =
      ceil_div(rows, c.m * c.multicast) * c.multicast * ceil_div(cols, c.n) * groups;
  const double waves = ceil_div(tiles, multiprocessor_count());
  const double multiply = c.m * c.n / 32.0 * (c.n >= 192 ? 1.0 : c.n == 64 ? 1.4 : 1.05);
  const double copy = (c.m + c.n / c.multicast) * kSwizzleBytes / 60.0;
  const double main = stages * std::max(multiply, copy), out = 800 + 4.0 * c.n;
  return c.ping_pong ? waves * std::max(main, (main + out) / 2) + out : waves * (main + out);
}

int image_config(int64_t rows, int64_t cols, int64_t groups, int64_t stages) {
  int best = 0;
  double least = 0;
  for (int i = 0; i < kSm90ConvImageConfigs; ++i) {
    const double cost = cost_of(kSm90ConvConfigs[i], rows, cols, groups, stages);
    if (i == 0 || cost < least) {
      best = i;
      least = cost;
    }
  }
  return best;
}

// ---- Images by weights -------------------------------------------------------------------------

// Forward, or the input gradient, which is the forward of the transposed convolution.
struct ImagePlan {
  const char* reason = nullptr;
  Mma mma{};
  bool inverse = false, along_k = true;
  Image from, to;
  int64_t c = 0, k = 0;  // channels of a group, summed and of the result
  Weights weights{};
  Stage from_stage, to_stage, weights_stage;
  size_t workspace_bytes = 0;
};

// Whether the weights can be read as they lie.
bool in_place(const ConvProblem& p, ImagePlan& plan) {
  const ConvGeometry& g = p.geometry;
  const ConvWeightStrides& s = p.w_strides;
  const int bytes = plan.from.bytes;
  // Taps that count as one dimension.
  int64_t tap = 0, expected = 0;
  for (int d = 2; d >= 0; --d) {
    const int64_t kernel = g.window[d].kernel;
    if (kernel == 1) continue;
    if (tap == 0) tap = expected = s.taps[d];
    if (s.taps[d] != expected) return false;
    expected *= kernel;
  }
  plan.weights = {p.w.data, g.k, g.c, s.k, tap, s.group};
  return (s.c == 1 || g.c == 1) && reinterpret_cast<uintptr_t>(p.w.data) % 16 == 0 &&
         is_copyable(s.k, g.k, bytes) && is_copyable(tap, g.taps(), bytes) &&
         is_copyable(s.group, g.groups, bytes);
}

// Copies pay where multiply-adds without tensor cores take longer.
bool worth_staging(const ConvGeometry& g) {
  return double(g.batch) * g.out_count() * g.groups * g.k * g.c * g.taps() >= 1 << 25;
}

// The convolutions that make up the problem: f(axes, pixels of the result).
template <class F>
void for_each_axes(const ConvProblem& p, bool inverse, F&& f) {
  const ConvGeometry& g = p.geometry;
  Axes axes, result;
  if (!inverse) {
    for (int i = 0; i < 3; ++i) {
      axes.axis[i] = forward_axis(g.window[2 - i], g.out[2 - i]);
      result.axis[i] = {0, 1, g.out[2 - i]};
    }
    return f(axes, result);
  }
  int64_t residues[3];
  for (int i = 0; i < 3; ++i) residues[i] = std::min(g.window[2 - i].stride, g.in[2 - i]);
  for (int64_t number = 0; number < residues[0] * residues[1] * residues[2]; ++number) {
    const int64_t residue[3] = {number % residues[0], number / residues[0] % residues[1],
                                number / (residues[0] * residues[1])};
    for (int i = 0; i < 3; ++i) {
      const Window& w = g.window[2 - i];
      axes.axis[i] = gradient_axis(w, g.in[2 - i], residue[i]);
      result.axis[i] = {residue[i], w.stride, axes.axis[i].count};
    }
    f(axes, result);
  }
}

// staging: images may be copied in the workspace.
ImagePlan plan_images(const ConvProblem& p, bool inverse, bool staging) {
  ImagePlan plan;
  plan.reason = unsuitable(p);
  if (plan.reason) return plan;
  const ConvGeometry& g = p.geometry;
  plan.mma = *mma_of(p);
  plan.inverse = inverse;
  plan.from = image_of(p, !inverse);
  plan.to = image_of(p, inverse);
  plan.c = inverse ? g.k : g.c;
  plan.k = inverse ? g.c : g.k;
  const bool d = has_d(g);
  int64_t kinds = 0;
  for_each_axes(p, inverse, [&](const Axes& axes, const Axes& result) {
    ++kinds;
    if (!fits_map(axes, plan.from, d)) {
      plan.reason = "padding, dilation or stride beyond a tensor map's";
    }
    if (inverse && !fits_map(result, plan.to, d)) plan.reason = "a stride beyond a tensor map's";
  });
  if (kinds > 64) plan.reason = "too large a stride";
  if (plan.reason) return plan;

  const char* of_from = unsuitable(plan.from, false);
  const char* of_to = unsuitable(plan.to, true);
  if (!staging) {
    plan.reason = of_from ? of_from : of_to;
  } else if (!of_from && !of_to) {
    plan.reason = "nothing to copy";
  } else if (!worth_staging(g)) {
    plan.reason = "too small to copy images first";
  }
  if (plan.reason) return plan;
  const Tensor *from = inverse ? &p.y : &p.x, *to = inverse ? &p.x : &p.y;
  if (of_from) plan.from_stage = Stage(pixels_by_channels(*from, plan.from), plan.workspace_bytes);
  if (of_to) plan.to_stage = Stage(pixels_by_channels(*to, plan.to), plan.workspace_bytes);
  // In a gradient, rows of the weights are summed: as they lie only for 16-bit types.
  plan.along_k = !inverse;
  if (!in_place(p, plan) || (inverse && plan.mma == Mma::kTf32)) {
    plan.along_k = true;
    plan.weights_stage = Stage(rows_by_columns(p, inverse), plan.workspace_bytes);
    const Dims& s = plan.weights_stage.copy.strides;
    plan.weights = {nullptr, plan.k, plan.c, s[1], s[4], s[0]};
  }
  return plan;
}

CUtensorMap weights_map(const ImagePlan& plan, int64_t taps, int64_t groups, int rows) {
  const Weights& w = plan.weights;
  const int bytes = plan.from.bytes;
  const auto stride = [&](int64_t s, int64_t extent) {
    return static_cast<uint64_t>(extent == 1 ? 16 : s * bytes);
  };
  const uint32_t depth = kSwizzleBytes / bytes;
  return make_tensor_map(w.data,
                         {map_type(plan.mma, true),
                          bytes,
                          {static_cast<uint64_t>(w.cols), static_cast<uint64_t>(w.rows),
                           static_cast<uint64_t>(taps), static_cast<uint64_t>(groups)},
                          {stride(w.row, w.rows), stride(w.tap, taps), stride(w.group, groups)},
                          {depth, plan.along_k ? static_cast<uint32_t>(rows) : depth}});
}

void set_epilogue(const ConvProblem& p, const ImagePlan& plan, Sm90Args& args) {
  const bool wide = plan.mma == Mma::kTf32;
  args.features = wide ? kWide : kStraight;
  if (plan.mma == Mma::kBFloat16) args.features |= kBFloat16;
  if (p.bias) {
    args.features |= kBias;
    args.beta = 1;
    args.bias = {p.bias.data, p.bias.dtype, 0, p.bias.strides[0]};
    args.item_stride[2][1] = plan.k * p.bias.strides[0];
  }
}

void run_axes(const ConvProblem& p, const ImagePlan& plan, const Axes& axes, const Axes& result,
              const Launch& launch) {
  const ConvGeometry& g = p.geometry;
  const bool d = has_d(g), taps = axes.has_taps();
  const int depth = kSwizzleBytes / plan.from.bytes;
  Sm90ConvArgs args;
  set_epilogue(p, plan, args);
  args.rows = static_cast<int>(axes.pixels(g.batch));
  args.cols = static_cast<int>(plan.k);
  args.columns.pixels = pixels_of(axes, d);
  args.columns.channels = static_cast<int>(plan.c);
  args.columns.no_channel = static_cast<int>(ceil_div(plan.from.channels, 64) * 64);
  args.k_blocks = 1;
  if (taps) {
    args.columns.taps = taps_of(axes, g);
    args.k_blocks = static_cast<int>(axes.axis[0].taps * axes.axis[1].taps * axes.axis[2].taps *
                                     ceil_div(plan.c, depth));
  } else {  // one stage of zeros
    args.columns.has_taps = false;
    args.columns.taps.first = static_cast<int>(g.taps());
  }
  args.part_blocks = args.k_blocks;
  const int config = image_config(args.rows, args.cols, g.groups, args.k_blocks);
  const Sm90Config& c = kSm90ConvConfigs[config];
  set_sm90_tiles(c, 1, g.groups, g.groups, args);
  args.y.step[0][1] = 1;

  const auto type = map_type(plan.mma, true);
  const Image& to = plan.to;
  const uint32_t columns = kSwizzleBytes / to.bytes;
  args.scatters =
      plan.inverse && (g.window[0].stride > 1 || g.window[1].stride > 1 || g.window[2].stride > 1);
  args.scatters = args.scatters || !to.is_matrix();
  CUtensorMap map_y;
  if (args.scatters) {
    args.result = pixels_of(result, d);
    args.result_channels = static_cast<int>(plan.k);
    map_y = columns_map(to, result, d, map_type(plan.mma, false), 16);
  } else {
    const auto stride = [&](int64_t s, int64_t extent) {
      return static_cast<uint64_t>(extent == 1 ? 16 : s * to.bytes);
    };
    map_y = make_tensor_map(to.data,
                            {map_type(plan.mma, false),
                             to.bytes,
                             {static_cast<uint64_t>(plan.k), static_cast<uint64_t>(to.pixels()),
                              static_cast<uint64_t>(g.groups), 1},
                             {stride(to.stride[0], to.pixels()), stride(plan.k, g.groups), 16},
                             {columns, 16}});
  }
  const Sm90Kernel kernel = find_kernel(plan.mma, config, plan.along_k);
  const int clusters = std::min(sm90_clusters_at_once(kernel, c.multicast), args.tiles);
  launch_sm90(kernel, clusters, c.multicast,
              {columns_map(plan.from, axes, d, type, c.m),
               weights_map(plan, g.taps(), g.groups, c.n / c.multicast), map_y},
              args, launch.stream);
}

void run_images(const ConvProblem& p, bool inverse, bool staging, const Launch& launch) {
  ImagePlan plan = plan_images(p, inverse, staging);
  if (plan.from_stage.tensor) {
    plan.from_stage.fill(launch);
    plan.from = staged(plan.from, plan.from_stage.at(launch));
  }
  if (plan.to_stage.tensor) plan.to = staged(plan.to, plan.to_stage.at(launch));
  if (plan.weights_stage.tensor) {
    plan.weights_stage.fill(launch);
    plan.weights.data = plan.weights_stage.at(launch).data;
  }
  for_each_axes(p, inverse, [&](const Axes& axes, const Axes& result) {
    run_axes(p, plan, axes, result, launch);
  });
  if (plan.to_stage.tensor) plan.to_stage.empty(launch);
}

// ---- Gradients of weights ----------------------------------------------------------------------

struct WeightPlan {
  const char* reason = nullptr;
  Mma mma{};
  int config = 0;
  Axes axes{};
  int64_t chunks = 0, cols = 0;  // of 64 channels, in a tap; columns of the product
  int64_t parts = 1, part_blocks = 0, blocks = 0;
  bool direct = false;  // the only part is the gradient
  Stage x_stage, dy_stage;
  size_t workspace_bytes = 0;  // the sums of parts come first
};

// How many parts a sum over so many stages is cut into: by an estimate of the clocks.
int64_t parts_for(const Sm90Config& c, int64_t rows, int64_t cols, int64_t groups, int64_t stages) {
  const int64_t sms = multiprocessor_count();
  const int64_t tiles =
      ceil_div(rows, c.m) * ceil_div(cols, c.n * c.multicast) * c.multicast * groups;
  const double stage = std::max(c.m * c.n / 32.0, (c.m / c.multicast + c.n) * kSwizzleBytes / 60.0);
  int64_t best = 1;
  double least = 0;
  for (int64_t parts = 1; parts <= std::max<int64_t>(stages / 8, 1) && parts <= sms; ++parts) {
    const double waves = ceil_div(tiles * parts, sms);
    const double sums =
        parts == 1 ? 0 : 4000 + 8.0 * (parts + 1) * groups * rows * cols / (sms * 20);
    const double cost = waves * (ceil_div(stages, parts) * stage + 2500) + sums;
    if (parts == 1 || cost < least) {
      best = parts;
      least = cost;
    }
  }
  return best;
}

// Whether the gradient is a matrix of 16-bit elements that leaves like any other result.
bool stores_directly(const ConvProblem& p, const Sm90Spread& spread) {
  const ConvGeometry& g = p.geometry;
  const ConvWeightStrides& s = p.w_strides;
  if (p.accumulate || spread.padded || g.c % 64 != 0 || s.c != 1) return false;
  int64_t expected = g.c;
  for (int d = 2; d >= 0; --d) {
    if (g.window[d].kernel == 1) continue;
    if (s.taps[d] != expected) return false;
    expected *= g.window[d].kernel;
  }
  return reinterpret_cast<uintptr_t>(p.w.data) % 16 == 0 && is_copyable(s.k, g.k, 2) &&
         is_copyable(s.group, g.groups, 2);
}

WeightPlan plan_weights(const ConvProblem& p, bool staging, const Sm90Spread& spread = {}) {
  WeightPlan plan;
  plan.reason = unsuitable(p);
  if (plan.reason) return plan;
  const ConvGeometry& g = p.geometry;
  plan.mma = *mma_of(p);
  if (plan.mma == Mma::kTf32) plan.reason = "tf32 operands along the pixels";
  const Image dy = image_of(p, false);
  for_each_axes(p, false, [&](const Axes& axes, const Axes&) { plan.axes = axes; });
  if (!fits_map(plan.axes, image_of(p, true), has_d(g))) {
    plan.reason = "padding, dilation or stride beyond a tensor map's";
  }
  plan.chunks = ceil_div(g.c, 64);
  plan.cols = g.taps() * plan.chunks * 64;
  if (plan.cols > INT_MAX / 16) plan.reason = "too many columns";
  if (plan.reason) return plan;
  const char* of_x = unsuitable(image_of(p, true), false);
  const char* of_dy = unsuitable(dy, false);
  if (!of_dy && !dy.is_matrix()) of_dy = "the gradient's pixels are no rows of a matrix";
  if (!staging) {
    plan.reason = of_x ? of_x : of_dy;
  } else if (!of_x && !of_dy) {
    plan.reason = "nothing to copy";
  } else if (!worth_staging(g)) {
    plan.reason = "too small to copy images first";
  }
  if (plan.reason) return plan;
  plan.config = kSm90ConvImageConfigs + (g.k > 64 ? 0 : 1);
  plan.blocks = ceil_div(dy.pixels(), 64);
  const int64_t parts =
      parts_for(kSm90ConvConfigs[plan.config], g.k, plan.cols, g.groups, plan.blocks);
  plan.part_blocks = ceil_div(plan.blocks, parts);
  plan.parts = ceil_div(plan.blocks, plan.part_blocks);
  plan.direct = plan.parts == 1 && stores_directly(p, spread);
  if (!plan.direct) {
    plan.workspace_bytes =
        ceil_div(plan.parts * g.groups * g.k * plan.cols, 64) * 64 * sizeof(float);
  }
  if (of_x) plan.x_stage = Stage(pixels_by_channels(p.x, image_of(p, true)), plan.workspace_bytes);
  if (of_dy) plan.dy_stage = Stage(pixels_by_channels(p.y, dy), plan.workspace_bytes);
  return plan;
}

struct SumArgs {
  const float* sums;  // [group, part, k, tap, padded channel]
  void* dw;
  ConvWeightStrides strides;
  FastDiv c, taps, taps_hw, taps_w, k;
  int64_t count, parts, cols, padded, part_size;
  Sm90Spread spread;
  FastDiv spread_padded;
  bool accumulate;
};

// Parts are added in their order.
template <class T>
__global__ void __launch_bounds__(256) conv_weight_sum_kernel(const SumArgs args) {
  int64_t c = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (c >= args.count) return;
  int64_t tap = args.c.divide(c), k = args.taps.divide(tap), group = args.k.divide(k);
  const float* from =
      args.sums + group * args.parts * args.part_size + k * args.cols + tap * args.padded + c;
  const ConvWeightStrides& s = args.strides;
  int64_t at = group * s.group + k * s.k;
  if (args.spread.padded) {
    at += args.spread_padded.divide(c) * args.spread.stride;
    if (c >= args.spread.channels) return;
  }
  float sum = 0;
#pragma unroll 8
  for (int64_t part = 0; part < args.parts; ++part) sum += from[part * args.part_size];
  const int64_t d = args.taps_hw.divide(tap), h = args.taps_w.divide(tap);
  at += c * s.c + d * s.taps[0] + h * s.taps[1] + tap * s.taps[2];
  T* to = static_cast<T*>(args.dw) + at;
  if (args.accumulate) sum += static_cast<float>(*to);
  *to = static_cast<T>(sum);
}

void add_weight_parts(const ConvProblem& p, const WeightPlan& plan, const Sm90Spread& spread,
                      const Launch& launch) {
  const ConvGeometry& g = p.geometry;
  const int64_t w = g.window[2].kernel, hw = w * g.window[1].kernel;
  const SumArgs args{static_cast<const float*>(launch.workspace),
                     p.w.data,
                     p.w_strides,
                     FastDiv(g.c),
                     FastDiv(g.taps()),
                     FastDiv(hw),
                     FastDiv(w),
                     FastDiv(g.k),
                     g.groups * g.k * g.taps() * g.c,
                     plan.parts,
                     plan.cols,
                     plan.chunks * 64,
                     g.k * plan.cols,
                     spread,
                     FastDiv(spread.padded),
                     p.accumulate};
  dispatch_floating(p.w.dtype, [&]<class T>() {
    launch_kernel(conv_weight_sum_kernel<T>, static_cast<unsigned>(ceil_div(args.count, 256)), 256,
                  0, launch.stream, args);
  });
}

void run_weights(const ConvProblem& p, bool staging, const Launch& launch,
                 const Sm90Spread& spread = {}) {
  const WeightPlan plan = plan_weights(p, staging, spread);
  const ConvGeometry& g = p.geometry;
  const Sm90Config& c = kSm90ConvConfigs[plan.config];
  Image x = image_of(p, true), dy = image_of(p, false);
  for (const auto& [stage, image] :
       {std::pair(&plan.x_stage, &x), std::pair(&plan.dy_stage, &dy)}) {
    if (!stage->tensor) continue;
    stage->fill(launch);
    *image = staged(*image, stage->at(launch));
  }
  const bool d = has_d(g);
  Sm90ConvArgs args;
  args.features = kWide;
  args.rows = static_cast<int>(g.k);
  args.cols = static_cast<int>(plan.cols);
  args.k_blocks = static_cast<int>(plan.blocks);
  args.part_blocks = static_cast<int>(plan.part_blocks);
  args.parts = static_cast<int>(plan.parts);
  args.columns.pixels = pixels_of(plan.axes, d);
  args.columns.taps = taps_of(plan.axes, g);
  args.columns.channels = static_cast<int>(g.c);
  args.columns.no_channel = static_cast<int>(ceil_div(x.channels, 64) * 64);
  args.columns.chunks = FastDiv(plan.chunks);
  set_sm90_tiles(c, plan.parts, g.groups, g.groups, args);
  const auto type = map_type(plan.mma, true);
  const auto stride = [](int64_t s, int64_t extent) {
    return static_cast<uint64_t>(extent == 1 ? 16 : s);
  };
  const auto cols = static_cast<uint64_t>(plan.cols), rows = static_cast<uint64_t>(g.k);
  const auto groups = static_cast<uint64_t>(g.groups);
  const CUtensorMap map_dy = make_tensor_map(
      dy.data,
      {type,
       dy.bytes,
       {rows, static_cast<uint64_t>(dy.pixels()), groups, 1},
       {stride(dy.stride[0] * dy.bytes, dy.pixels()), stride(g.k * dy.bytes, g.groups), 16},
       {64, 64}});
  CUtensorMap map_y;
  if (plan.direct) {
    args.features = kStraight | (plan.mma == Mma::kBFloat16 ? kBFloat16 : 0);
    args.y.step[0][1] = 1;
    map_y = make_tensor_map(
        p.w.data, {type,
                   2,
                   {cols, rows, groups, 1},
                   {stride(2 * p.w_strides.k, g.k), stride(2 * p.w_strides.group, g.groups), 16},
                   {64, 16}});
  } else {
    args.y.step[1][1] = 1;  // groups; parts are dimension 2
    const uint64_t line = plan.cols * sizeof(float), part = line * rows;
    map_y =
        make_tensor_map(launch.workspace, {CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                                           4,
                                           {cols, rows, static_cast<uint64_t>(plan.parts), groups},
                                           {line, part, part * plan.parts},
                                           {32, 16}});
  }
  const Sm90Kernel kernel = find_kernel(plan.mma, plan.config, false);
  const int clusters = std::min(sm90_clusters_at_once(kernel, c.multicast), args.tiles);
  launch_sm90(kernel, clusters, c.multicast,
              {map_dy, columns_map(x, plan.axes, d, type, 64), map_y}, args, launch.stream);
  if (!plan.direct) add_weight_parts(p, plan, spread, launch);
  if (p.bias) add_bias_gradient(p, launch);
}

// With images as they lie, and copied in the workspace.
template <class Problem, bool kStaging>
constexpr Impl<Problem> make_impl() {
  constexpr const char* kName = kStaging ? "wgmma_sm90_copied" : "wgmma_sm90";
  if constexpr (std::is_same_v<Problem, ConvBackwardWeight>) {
    return {kName, [](const Problem& p) { return plan_weights(p, kStaging).reason; },
            [](const Problem& p) { return plan_weights(p, kStaging).workspace_bytes; },
            [](const Problem& p, const Launch& launch) { run_weights(p, kStaging, launch); }};
  } else {
    constexpr bool kInverse = std::is_same_v<Problem, ConvBackwardInput>;
    return {
        kName, [](const Problem& p) { return plan_images(p, kInverse, kStaging).reason; },
        [](const Problem& p) { return plan_images(p, kInverse, kStaging).workspace_bytes; },
        [](const Problem& p, const Launch& launch) { run_images(p, kInverse, kStaging, launch); }};
  }
}
template <class Problem>
constexpr Impl<Problem> kImpls[] = {make_impl<Problem, false>(), make_impl<Problem, true>()};

}  // namespace

namespace {

// Whether the other image has to be copied.
bool needs_staging(const ConvProblem& p) { return plan_images(p, false, false).reason; }
bool needs_staging(const ConvProblem& p, const Sm90Spread& spread) {
  return plan_weights(p, false, spread).reason;
}

}  // namespace

const char* sm90_forward_declines(const ConvProblem& p) {
  return plan_images(p, false, needs_staging(p)).reason;
}
size_t sm90_forward_workspace_bytes(const ConvProblem& p) {
  return plan_images(p, false, needs_staging(p)).workspace_bytes;
}
void sm90_forward(const ConvProblem& p, const Launch& launch) {
  run_images(p, false, needs_staging(p), launch);
}
const char* sm90_weights_decline(const ConvProblem& p, const Sm90Spread& spread) {
  return plan_weights(p, needs_staging(p, spread), spread).reason;
}
size_t sm90_weights_workspace_bytes(const ConvProblem& p, const Sm90Spread& spread) {
  return plan_weights(p, needs_staging(p, spread), spread).workspace_bytes;
}
void sm90_weights(const ConvProblem& p, const Sm90Spread& spread, const Launch& launch) {
  run_weights(p, needs_staging(p, spread), launch, spread);
}

ImplList<ConvForward> conv_forward_sm90_impls() { return kImpls<ConvForward>; }
ImplList<ConvBackwardInput> conv_backward_input_sm90_impls() { return kImpls<ConvBackwardInput>; }
ImplList<ConvBackwardWeight> conv_backward_weight_sm90_impls() {
  return kImpls<ConvBackwardWeight>;
}

}  // namespace dlkern
