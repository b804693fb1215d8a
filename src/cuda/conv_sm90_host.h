// What the hosts of Hopper's convolutions share: tensors as the copy engine sees them, copies in the
// workspace, and where pixels and taps are.
#pragma once

#include <algorithm>
#include <climits>
#include <optional>

#include "cuda/conv_axes.h"
#include "cuda/conv_layout.h"
#include "cuda/conv_sm90.h"
#include "cuda/gemm_pack.h"
#include "cuda/prims/tensor_map.h"

namespace dlkern::conv_sm90 {

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

inline Image image_of(const ConvProblem& p, bool of_x) {
  const ConvGeometry& g = p.geometry;
  const Tensor& t = of_x ? p.x : p.y;
  const ConvImageStrides& s = of_x ? p.x_strides : p.y_strides;
  const int64_t* extent = of_x ? g.in : g.out;
  return {t.data,  static_cast<int>(dtype_size(t.dtype)),     g.groups * (of_x ? g.c : g.k),
          g.batch, {extent[2], extent[1], extent[0]},         s.c,
          s.n,     {s.spatial[2], s.spatial[1], s.spatial[0]}};
}

// A tensor of another image's shape.
inline Image image_of(const Tensor& t, const Image& like, const ConvImageStrides& s) {
  Image image = like;
  image.data = t.data;
  image.channel_stride = s.c;
  image.n_stride = s.n;
  for (int d = 0; d < 3; ++d) image.stride[d] = s.spatial[2 - d];
  return image;
}

inline bool is_copyable(int64_t stride, int64_t extent, int bytes) {
  return extent == 1 ||
         (stride > 0 && stride * bytes % 16 == 0 && stride * bytes < (int64_t{1} << 40));
}
// A tensor map's stride, which is not looked at where nothing lies along it.
inline uint64_t map_stride(int64_t stride_bytes, int64_t extent) {
  return static_cast<uint64_t>(extent == 1 ? 16 : stride_bytes);
}
// nullptr where the copy engine takes an image as it lies. Results are stored in pieces of 16 bytes.
inline const char* unsuitable(const Image& image, bool is_result) {
  if (image.channel_stride != 1) return "channels are not neighbours in memory";
  bool copyable = reinterpret_cast<uintptr_t>(image.data) % 16 == 0 &&
                  is_copyable(image.n_stride, image.n, image.bytes);
  for (int d = 0; d < 3; ++d) {
    copyable = copyable && is_copyable(image.stride[d], image.extent[d], image.bytes);
  }
  if (is_result) copyable = copyable && image.channels * image.bytes % 16 == 0;
  return copyable ? nullptr : "an image's address, channels or strides are not for bulk copies";
}

// Pixels that can be stored at once, up to 8 of 16 bits, where those of a channel are neighbours; else 0.
inline int pixels_at_once(const Image& image) {
  int64_t pixels = 1;
  for (int d = 0; d < 3; ++d) {
    if (image.extent[d] > 1 && image.stride[d] != pixels) return 0;
    pixels *= image.extent[d];
  }
  if (image.bytes != 2) return 0;
  int unit = 8;
  const auto fits = [&](int64_t stride, int64_t extent) {
    return extent == 1 || stride % unit == 0;
  };
  while (unit > 1 &&
         !(pixels % unit == 0 && reinterpret_cast<uintptr_t>(image.data) % (2 * unit) == 0 &&
           fits(image.channel_stride, image.channels) && fits(image.n_stride, image.n))) {
    unit /= 2;
  }
  return unit;
}

// ---- Copies in the workspace -------------------------------------------------------------------

// A tensor that is copied to the workspace, or from there, where kernels cannot take it as it lies:
// the last dimension becomes contiguous, others begin at multiples of 16 bytes.
struct Stage {
  Tensor tensor;  // as it lies; absent: nothing to copy
  Tensor copy;    // its data is an offset in the workspace

  Stage() = default;
  Stage(const Tensor& t, size_t& workspace_bytes) : Stage(t, t.dtype, workspace_bytes) {}
  Stage(const Tensor& t, DType dtype, size_t& workspace_bytes) : tensor(t), copy(t) {
    copy.dtype = dtype;
    const int64_t unit = 16 / static_cast<int64_t>(dtype_size(dtype));
    int64_t stride = 1;
    for (int d = t.ndim - 1; d >= 0; --d) {
      copy.strides[d] = stride;
      stride *= d == t.ndim - 1 ? ceil_div(t.shape[d], unit) * unit : t.shape[d];
    }
    copy.data = reinterpret_cast<void*>(workspace_bytes);
    workspace_bytes += (stride * dtype_size(dtype) + 255) / 256 * 256;
  }
  Tensor at(const Launch& launch) const {
    Tensor t = copy;
    t.data = static_cast<uint8_t*>(launch.workspace) + reinterpret_cast<size_t>(copy.data);
    return t;
  }
  void fill(const Launch& launch) const { run_copy(tensor, at(launch), launch); }
  void empty(const Launch& launch) const {
    const Piece piece{at(launch), tensor};
    copy_layouts({&piece, 1}, launch);
  }

 private:
  static void run_copy(const Tensor& x, const Tensor& y, const Launch& launch) {
    x.dtype == y.dtype ? run_first(Copy{{{x, y}}}, launch) : run_first(Cast{x, y}, launch);
  }
  template <class Problem>
  static void run_first(const Problem& problem, const Launch& launch) {
    for (const Impl<Problem>& impl : gpu_impls<Problem>()) {
      if (!impl.supports(problem)) return impl.run(problem, launch);
    }
    fail(DLK_INTERNAL, "no copy for a convolution");
  }
};

// Fills those that are wanted, in one launch where that goes.
inline void fill(const Stage* const (&stages)[2], const Launch& launch) {
  Piece pieces[2];
  size_t count = 0;
  for (const Stage* stage : stages) {
    if (stage->tensor) pieces[count++] = {stage->tensor, stage->at(launch)};
  }
  copy_layouts({pieces, count}, launch);
}

// As [n, d, h, w, c].
inline Tensor pixels_by_channels(const Tensor& t, const Image& image) {
  Tensor view = t;
  view.ndim = 5;
  view.shape = {image.n, image.extent[2], image.extent[1], image.extent[0], image.channels};
  view.strides = {image.n_stride, image.stride[2], image.stride[1], image.stride[0],
                  image.channel_stride};
  return view;
}
// The image where its copy is.
inline Image staged(const Image& image, const Tensor& copy) {
  Image view = image;
  view.data = copy.data;
  view.channel_stride = 1;
  view.n_stride = copy.strides[0];
  for (int d = 0; d < 3; ++d) view.stride[d] = copy.strides[3 - d];
  return view;
}

// As [group, row, d, h, w, column], summed over the columns.
inline Tensor rows_by_columns(const ConvProblem& p, bool transposed) {
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

// ---- bfloat16 planes in the workspace ----------------------------------------------------------

// float32 in full precision, or as exact as tf32 and more.
inline int planes_of(const ConvProblem& p) { return p.precision == DLK_PRECISION_TF32 ? 2 : 3; }
inline int64_t padded_channels(int64_t channels) { return ceil_div(channels, 64) * 64; }

// A float32 tensor as [lines, plane, group, channel], a group's channels being filled up to 64.
struct PlaneStage {
  Pack pack;
  size_t at = 0;  // in the workspace

  // `lines`: strides in the tensor, and among the lines.
  PlaneStage() = default;
  PlaneStage(const void* data, StridedIndex<2> lines, int planes, int64_t groups, int64_t channels,
             int64_t group_stride, int64_t channel_stride, size_t& workspace_bytes)
      : at(workspace_bytes) {
    const int64_t padded = padded_channels(channels), line = planes * groups * padded;
    pack.from = data;
    pack.k.push(channels, {channel_stride});
    for (int d = 0; d + 1 < lines.ndim; ++d) {
      pack.items.push(lines.shape[d], {lines.stride[0][d], lines.stride[1][d] * line});
    }
    if (lines.ndim > 0) {
      const int last = lines.ndim - 1;
      pack.rows = lines.shape[last];
      pack.row = lines.stride[0][last];
    }
    pack.items.push(groups, {group_stride, padded});
    pack.element_bytes = sizeof(float);
    pack.planes = planes;
    pack.to_row = line;
    pack.to_plane = groups * padded;
    workspace_bytes += (pack.bytes() + 255) / 256 * 256;
  }
  void* data(const Launch& launch) const { return static_cast<uint8_t*>(launch.workspace) + at; }
};

// Writes planes. *flag is set where a tensor has none: then nothing of them may be used.
inline void fill(const PlaneStage& first, const PlaneStage& second, int* flag,
                 const Launch& launch) {
  Pack packs[2] = {first.pack, second.pack};
  packs[0].to = first.data(launch);
  packs[1].to = second.data(launch);
  packs[0].flag = packs[1].flag = flag;
  check(cudaMemsetAsync(flag, 0, sizeof(int), static_cast<Stream>(launch.stream)), "flag");
  run_packs(packs, launch.stream);
}

inline PlaneStage image_planes(const Image& image, int planes, int64_t groups,
                               size_t& workspace_bytes) {
  StridedIndex<2> pixels;
  const int64_t row = image.extent[0], plane = row * image.extent[1];
  pixels.push(image.n, {image.n_stride, plane * image.extent[2]});
  pixels.push(image.extent[2], {image.stride[2], plane});
  pixels.push(image.extent[1], {image.stride[1], row});
  pixels.push(image.extent[0], {image.stride[0], 1});
  const int64_t channels = image.channels / groups;
  return {image.data,
          pixels,
          planes,
          groups,
          channels,
          channels * image.channel_stride,
          image.channel_stride,
          workspace_bytes};
}
// The image where its planes are.
inline Image staged(const Image& image, const PlaneStage& stage, const Launch& launch) {
  Image view = image;
  view.data = stage.data(launch);
  view.bytes = sizeof(uint16_t);
  view.channels = stage.pack.to_row;
  view.channel_stride = 1;
  int64_t stride = stage.pack.to_row;
  for (int d = 0; d < 3; ++d) {
    view.stride[d] = stride;
    stride *= image.extent[d];
  }
  view.n_stride = stride;
  return view;
}

// Element strides of the weights as a matrix [rows, taps, cols] of each group, cols being neighbours.
struct Weights {
  void* data;
  int64_t rows, cols, row, tap, group;
};

// ---- One convolution of an image ---------------------------------------------------------------

// The rank of a tensor map: 5 where there is a third dimension.
inline bool has_d(const ConvGeometry& g) {
  return g.in[0] != 1 || g.out[0] != 1 || g.window[0].kernel != 1 || g.window[0].pad_begin != 0;
}

inline int64_t upper_corner(const Axis& axis, int64_t extent) {
  return axis.lower + (axis.count - 1) * axis.step - (extent - 1);
}
// Within what tensor maps can say; `image` is where pixels and taps are.
inline bool fits_map(const Axes& axes, const Image& image, bool d) {
  const int64_t corner = d ? 16 : 128, offsets = d ? 32 : 256;
  for (int i = 0; i < (d ? 3 : 2); ++i) {
    const Axis& a = axes.axis[i];
    const int64_t upper = upper_corner(a, image.extent[i]);
    if (a.lower < -corner || a.lower >= corner || upper < -corner || upper >= corner) return false;
    if (a.step > 8 || (a.taps - 1) * a.offset >= offsets) return false;
  }
  return true;
}

inline CUtensorMap columns_map(const Image& image, const Axes& axes, bool d,
                               CUtensorMapDataType type, uint32_t pixels) {
  Im2colShape shape{.type = type, .rank = d ? 5 : 4};
  shape.extent[0] = image.channels;
  for (int i = 0; i < shape.rank - 2; ++i) {
    shape.extent[1 + i] = image.extent[i];
    shape.stride_bytes[i] = map_stride(image.stride[i] * image.bytes, image.extent[i]);
    shape.lower[i] = static_cast<int>(axes.axis[i].lower);
    shape.upper[i] = static_cast<int>(upper_corner(axes.axis[i], image.extent[i]));
    shape.step[i] = static_cast<uint32_t>(axes.axis[i].step);
  }
  shape.extent[shape.rank - 1] = image.n;
  shape.stride_bytes[shape.rank - 2] = map_stride(image.n_stride * image.bytes, image.n);
  shape.channels = kSwizzleBytes / image.bytes;
  shape.pixels = pixels;
  return make_im2col_map(image.data, shape);
}

inline Sm90Pixels pixels_of(const Axes& axes, bool d) {
  Sm90Pixels pixels;
  pixels.has_d = d;
  for (int i = 0; i < 3; ++i) {
    pixels.extent[i] = FastDiv(axes.axis[i].count);
    pixels.lower[i] = static_cast<int>(axes.axis[i].lower);
    pixels.step[i] = static_cast<int>(axes.axis[i].step);
  }
  return pixels;
}
inline Sm90Taps taps_of(const Axes& axes, const ConvGeometry& g) {
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

// The taps and stages of images by weights, `chunks` stages for each tap; one of zeros where no tap
// meets the pixels.
inline void set_taps(const Axes& axes, const ConvGeometry& g, int64_t chunks, Sm90ConvArgs& args) {
  args.k_blocks = 1;
  args.columns.has_taps = axes.has_taps();
  if (axes.has_taps()) {
    args.columns.taps = taps_of(axes, g);
    args.k_blocks =
        static_cast<int>(axes.axis[0].taps * axes.axis[1].taps * axes.axis[2].taps * chunks);
  } else {
    args.columns.taps.first = static_cast<int>(g.taps());
  }
  args.part_blocks = args.k_blocks;
}

inline std::optional<Mma> mma_of(const ConvProblem& p) {
  const bool tf32 = p.precision == DLK_PRECISION_TF32;
  if (p.x.dtype == DType::kFloat32 && !tf32) return std::nullopt;
  return sm90_mma(p.x.dtype, p.w.dtype, tf32);
}
inline CUtensorMapDataType map_type(Mma mma, bool rounds) {
  if (element_bytes(mma) == 1) return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  if (mma != Mma::kTf32) return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return rounds ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
}
inline Sm90Kernel find_kernel(Mma mma, int config, bool weights_along_k) {
  return mma == Mma::kBFloat16  ? sm90_conv_kernel_bfloat16(config, weights_along_k)
         : mma == Mma::kFloat16 ? sm90_conv_kernel_float16(config, weights_along_k)
                                : sm90_conv_kernel_tf32(config, weights_along_k);
}

inline const char* unsuitable_extents(const ConvProblem& p) {
  if (compute_capability() != 90) return "needs compute capability 9.0";
  const ConvGeometry& g = p.geometry;
  if (p.x.numel() == 0 || p.y.numel() == 0 || p.w.numel() == 0) return "nothing to multiply";
  const int64_t pixels = g.batch * std::max(g.in_count(), g.out_count());
  if (pixels > INT_MAX / 16) return "too many pixels";
  return g.taps() > 1 << 15 ? "too many taps" : nullptr;
}
inline const char* unsuitable(const ConvProblem& p) {
  if (const char* reason = unsuitable_extents(p)) return reason;
  if (!mma_of(p)) return "no tensor-core product of this dtype and precision";
  const ConvGeometry& g = p.geometry;
  const int64_t chunk = kSwizzleBytes / static_cast<int64_t>(dtype_size(p.x.dtype));
  if (g.groups > 1 && (g.c % chunk != 0 || g.k % chunk != 0)) {
    return "a group's channels are no multiple of 128 bytes";
  }
  return nullptr;
}

// The stride of the taps counted as one dimension, 0 where there is one tap; nullopt where they have
// no common stride.
inline std::optional<int64_t> tap_stride(const ConvProblem& p) {
  int64_t tap = 0, expected = 0;
  for (int d = 2; d >= 0; --d) {
    const int64_t kernel = p.geometry.window[d].kernel;
    if (kernel == 1) continue;
    if (tap == 0) tap = expected = p.w_strides.taps[d];
    if (p.w_strides.taps[d] != expected) return std::nullopt;
    expected *= kernel;
  }
  return tap;
}

// The weights where they can be read as they lie.
inline std::optional<Weights> weights_in_place(const ConvProblem& p) {
  const ConvGeometry& g = p.geometry;
  const ConvWeightStrides& s = p.w_strides;
  const int bytes = static_cast<int>(dtype_size(p.w.dtype));
  const std::optional<int64_t> tap = tap_stride(p);
  const bool fits = tap && (s.c == 1 || g.c == 1) &&
                    reinterpret_cast<uintptr_t>(p.w.data) % 16 == 0 &&
                    is_copyable(s.k, g.k, bytes) && is_copyable(*tap, g.taps(), bytes) &&
                    is_copyable(s.group, g.groups, bytes);
  if (!fits) return std::nullopt;
  return Weights{p.w.data, g.k, g.c, s.k, *tap, s.group};
}

// Boxes of `rows` rows along k, or of 128 bytes of rows.
inline CUtensorMap weights_map(const Weights& w, Mma mma, bool along_k, const ConvGeometry& g,
                               int rows) {
  const int bytes = element_bytes(mma);
  const uint32_t depth = kSwizzleBytes / bytes;
  return make_tensor_map(w.data,
                         {map_type(mma, true),
                          bytes,
                          {static_cast<uint64_t>(w.cols), static_cast<uint64_t>(w.rows),
                           static_cast<uint64_t>(g.taps()), static_cast<uint64_t>(g.groups)},
                          {map_stride(w.row * bytes, w.rows), map_stride(w.tap * bytes, g.taps()),
                           map_stride(w.group * bytes, g.groups)},
                          {depth, along_k ? static_cast<uint32_t>(rows) : depth}});
}

// Estimated clocks of a multiprocessor: as cost_of in gemm_sm90.cu. out_each: of what follows the sums,
// for each of a tile's columns.
inline double cost_of(const Sm90Config& c, int64_t rows, int64_t cols, int64_t groups,
                      int64_t stages, double out_each = 4) {
  const int64_t tiles =
      ceil_div(rows, c.m * c.multicast) * c.multicast * ceil_div(cols, c.n) * groups;
  const double waves = ceil_div(tiles, multiprocessor_count());
  const int products = c.planes * (c.planes + 1) / 2;
  const double efficiency = c.n >= 192 ? 1.0 : c.n == 64 ? (products == 1 ? 1.4 : 1.1) : 1.05;
  const double multiply = products * c.m * c.n / 32.0 * efficiency;
  const double copy = c.planes * (c.m + c.n / c.multicast) * kSwizzleBytes / 60.0;
  const double main = stages * std::max(multiply, copy), out = 800 + out_each * c.n;
  return c.ping_pong ? waves * std::max(main, (main + out) / 2) + out : waves * (main + out);
}

inline double multiplications(const ConvGeometry& g) {
  return double(g.batch) * g.out_count() * g.groups * g.k * g.c * g.taps();
}

// Why float32 is not computed by planes. Splitting pays where multiply-adds without tensor cores take
// longer, also of what channels are filled up with.
inline const char* planes_decline(const ConvProblem& p) {
  if (const char* reason = fused_work_declines(p)) return reason;
  if (const char* reason = unsuitable_extents(p)) return reason;
  if (p.x.dtype != DType::kFloat32) return "not float32";
  const ConvGeometry& g = p.geometry;
  const double filled = double(padded_channels(g.c)) * padded_channels(g.k) / (double(g.c) * g.k);
  if (filled > (planes_of(p) == 2 ? 8 : 4)) return "too few channels";
  return multiplications(g) < 1 << 26 ? "too small to be split into bfloat16 planes" : nullptr;
}

// Why images are not copied where they may be (`staging`), or are not taken where they may not;
// `first` and `second`: why they are not taken as they lie. Copies pay where multiply-adds without
// tensor cores take longer.
inline const char* staging_declines(bool staging, const char* first, const char* second,
                                    const ConvGeometry& g) {
  if (!staging) return first ? first : second;
  if (!first && !second) return "nothing to copy";
  return multiplications(g) < 1 << 25 ? "too small to copy images first" : nullptr;
}

}  // namespace dlkern::conv_sm90
