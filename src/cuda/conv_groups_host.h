// What the hosts of convolutions of many small groups share: how images are read, and how the pixels
// of a result are cut into tiles.
#pragma once

#include <climits>

#include "cuda/conv_groups.cuh"

namespace dlkern::conv_groups {

using namespace gpu;

// Shared memory of a block: two fit a multiprocessor of most GPUs, one fits all.
inline constexpr int64_t kSharedBytes = 98 * 1024;

inline FastDiv fast(int64_t n) { return FastDiv(std::max<int64_t>(n, 1)); }

inline BoxIndex box_of(const int64_t (&extent)[4]) {
  BoxIndex box{};
  box.count = 1;
  for (int d = 0; d < 4; ++d) {
    box.extent[d] = static_cast<int>(extent[d]);
    box.count *= box.extent[d];
    if (d < 3) box.by[d] = fast(extent[d]);
  }
  return box;
}

// Why no kernel of these takes the problem.
inline const char* unsuitable(const ConvProblem& p) {
  const ConvGeometry& g = p.geometry;
  if (const char* reason = fused_work_declines(p)) return reason;
  if (compute_capability() < 80) return "the GPU's compute capability is below 8.0";
  if (g.groups == 1) return "there is one group";
  if (g.c == 1 && g.k == 1) return "one channel in a group";
  if (g.c > 32 || g.k > 32) return "more than 32 channels in a group";
  if (p.x.numel() == 0 || p.y.numel() == 0 || p.w.numel() == 0) return "nothing to multiply";
  if (g.taps() > 1024) return "too many taps";
  if (g.batch > INT_MAX / 2) return "too many images";
  if (g.groups > INT_MAX / 2) return "too many groups";
  return fits(g);
}

inline bool multiplies_by_tensor_cores(const ConvProblem& p) {
  if (p.x.dtype == DType::kFloat32) return p.precision == DLK_PRECISION_TF32;
  return p.x.dtype != DType::kFloat64;
}

// Bytes that can be copied at a time, 0 where channels are no neighbours.
inline int copy_width(const Tensor& t, const ConvImageStrides& s, int64_t batch,
                      const int64_t (&extent)[3], int64_t channels) {
  if (s.c != 1) return 0;
  const int64_t bytes = static_cast<int64_t>(dtype_size(t.dtype));
  const auto all_multiples = [&](int64_t width) {
    bool all = reinterpret_cast<uintptr_t>(t.data) % width == 0 && channels * bytes % width == 0;
    all = all && (batch == 1 || s.n * bytes % width == 0);
    for (int d = 0; d < 3; ++d) {
      all = all && (extent[d] == 1 || s.spatial[d] * bytes % width == 0);
    }
    return all;
  };
  for (int width : {16, 8, 4}) {
    if (all_multiples(width)) return width;
  }
  return 0;
}

// x or y as it is copied; its box and lines are set by set_lines.
inline GroupImage image_of(const ConvProblem& p, bool of_x) {
  const ConvGeometry& g = p.geometry;
  const Tensor& t = of_x ? p.x : p.y;
  const ConvImageStrides& s = of_x ? p.x_strides : p.y_strides;
  const auto& extent = of_x ? g.in : g.out;
  const int64_t channels = of_x ? g.c : g.k, bytes = static_cast<int64_t>(dtype_size(t.dtype));
  GroupImage image{};
  image.data = static_cast<const char*>(t.data);
  for (int d = 0; d < 3; ++d) {
    image.stride[d] = s.spatial[2 - d] * bytes;
    image.extent[d] = static_cast<int>(extent[2 - d]);
  }
  image.stride[3] = s.n * bytes;
  image.extent[3] = static_cast<int>(g.batch);
  image.channel_stride = s.c * bytes;
  image.group_stride = channels * s.c * bytes;
  image.channels = static_cast<int>(channels);
  image.width = copy_width(t, s, g.batch, extent, channels);
  return image;
}

// Whether offsets within a box of an image count in 32 bits.
inline bool is_near(const GroupImage& image, const int64_t (&box)[4], int64_t in_slice) {
  int64_t reach = std::abs(image.group_stride) * in_slice;
  for (int d = 0; d < 4; ++d) reach += (box[d] - 1) * std::abs(image.stride[d]);
  return reach < INT_MAX;
}

inline int64_t chunks_of(int64_t channels, DType dtype) {
  return ceil_div(channels * static_cast<int64_t>(dtype_size(dtype)), kChunkBytes);
}

// `chunks` of a group; pitch in bytes.
inline void set_lines(GroupImage& image, const int64_t (&box)[4], int64_t in_slice, int64_t chunks,
                      int64_t pitch) {
  image.box = box_of(box);
  image.pitch = static_cast<int>(pitch);
  image.in_group = static_cast<int>(image.width ? chunks * kChunkBytes / image.width : chunks);
  image.in_line = static_cast<int>(in_slice * image.in_group);
  image.by_line = fast(image.width ? image.in_line : image.box.count);
  image.by_group = fast(image.in_group);
}

// ---- Tiles -------------------------------------------------------------------------------------

// Pixels of the result along w, h, d and n.
struct Extents {
  int64_t count[4], step[4], span[4];  // span: from the first to the last tap of a pixel

  Extents(const Axes& axes, int64_t batch) {
    for (int d = 0; d < 3; ++d) {
      const Axis& a = axes.axis[d];
      count[d] = a.count, step[d] = a.step;
      span[d] = (std::max<int64_t>(a.taps, 1) - 1) * a.offset + 1;
    }
    count[3] = batch, step[3] = span[3] = 1;
  }
  int64_t box(int d, int64_t extent) const { return (extent - 1) * step[d] + span[d]; }
};

// The extents of a tile of at most `most` pixels for which fits(pixels of the tile, of its box); all
// zero where there is none. The fewest lines are read and the fewest pixels are idle.
struct TileExtents {
  int64_t tile[4] = {}, box[4] = {};
};
template <class Fits>
TileExtents choose_tile(const Extents& e, int64_t most, Fits&& fits) {
  TileExtents best;
  double least = 0;
  const int64_t fewest = ceil_div(e.count[0], most);
  for (int64_t parts = fewest; parts < fewest + 8 && parts <= e.count[0]; ++parts) {
    TileExtents t;
    const auto volume = [](const int64_t(&v)[4]) { return v[0] * v[1] * v[2] * v[3]; };
    t.tile[0] = ceil_div(e.count[0], parts);
    for (int d = 1; d < 4; ++d) t.tile[d] = 1;
    for (int d = 0; d < 4; ++d) t.box[d] = e.box(d, t.tile[d]);
    if (!fits(volume(t.tile), volume(t.box))) continue;
    for (int d = 1; d < 4; ++d) {  // as many as fit, and then as even as possible
      const auto set = [&](int64_t extent) {
        t.tile[d] = extent;
        t.box[d] = e.box(d, extent);
      };
      int64_t extent = std::min(e.count[d], most / volume(t.tile));
      for (set(extent); extent > 1 && !fits(volume(t.tile), volume(t.box)); set(--extent)) {
      }
      set(ceil_div(e.count[d], ceil_div(e.count[d], extent)));
    }
    double tiles = 1;
    for (int d = 0; d < 4; ++d) tiles *= static_cast<double>(ceil_div(e.count[d], t.tile[d]));
    const double cost = tiles * static_cast<double>(volume(t.box) + most);
    if (least == 0 || cost < least) {
      least = cost;
      best = t;
    }
  }
  return best;
}

inline GroupTiles tiles_of(const Axes& axes, const Extents& e, const TileExtents& t) {
  GroupTiles tiles{};
  int64_t count[4], line_step = 1;
  for (int d = 0; d < 4; ++d) {
    count[d] = ceil_div(e.count[d], t.tile[d]);
    tiles.pixels[d] = static_cast<int>(e.count[d]);
    tiles.lower[d] = d < 3 ? static_cast<int>(axes.axis[d].lower) : 0;
    tiles.step[d] = static_cast<int>(e.step[d]);
    tiles.line_step[d] = static_cast<int>(line_step * e.step[d]);
    line_step *= t.box[d];
  }
  tiles.tile = box_of(t.tile);
  tiles.tiles = box_of(count);
  return tiles;
}
inline int64_t tile_count(const Extents& e, const TileExtents& t) {
  int64_t count = 1;
  for (int d = 0; d < 4; ++d) count *= ceil_div(e.count[d], t.tile[d]);
  return count;
}

inline GroupEntries entries_of(const Axes& axes, const TileExtents& t, int64_t chunks) {
  GroupEntries entries{};
  int64_t lines = 1, count = axes.has_taps() ? chunks : 0;
  for (int d = 0; d < 3; ++d) {
    const Axis& a = axes.axis[d];
    entries.offset[d] = static_cast<int>(a.offset * lines);
    if (d < 2) entries.by_taps[d] = fast(a.taps);
    count *= a.taps;
    lines *= t.box[d];
  }
  entries.count = static_cast<int>(count);
  entries.by_chunks = fast(chunks);
  return entries;
}

}  // namespace dlkern::conv_groups
