// Convolutions of many small groups: what the kernels of conv_groups_*.cu share (compute capability
// 8.0 and newer).
//
// A block takes a few neighbouring groups (a slice) and a tile of pixels. The pixels that the tile's
// taps reach, a box of them, go to shared memory once: each is a line there of chunks of 16 bytes,
// and each group's channels begin a chunk, with zeros behind the last ones. So a chunk never holds
// channels of two groups, and what a product meets is the group's own or zero. What a tap of a pixel
// adds to the address is the same for all pixels of the tile: a table has it for each entry of the
// sum, an entry being one chunk of one tap.
#pragma once

#include "core/fast_div.h"
#include "cuda/conv_axes.h"
#include "cuda/prims/mma.cuh"
#include "cuda/prims/vec.cuh"

namespace dlkern::gpu {

inline constexpr int kGroupThreads = 256, kGroupWarps = kGroupThreads / 32;
inline constexpr int kChunkBytes = 16;
template <class T>
inline constexpr int kPerChunk = kChunkBytes / static_cast<int>(sizeof(T));

// Dimensions of pixels are counted w, h, d, n; one index counts those of a box in this order.
struct BoxIndex {
  int extent[4];
  int count;
  FastDiv by[3];

  __device__ __forceinline__ void take_apart(int i, int (&at)[4]) const {
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      const int next = by[d].quick(i);
      at[d] = i - next * extent[d];
      i = next;
    }
    at[3] = i;
  }
};

// An image, and how boxes of its pixels are copied to shared memory. Strides in bytes.
struct GroupImage {
  const char* data;
  int64_t stride[4], channel_stride, group_stride;
  int extent[4];
  int channels;  // of a group
  // Bytes that are copied at a time, where channels are neighbours and addresses multiples of it: 16,
  // 8 or 4. 0: element by element.
  int width;
  BoxIndex box;
  int pitch;     // from line to line
  int in_line;   // pieces of a line: of `width` bytes, or chunks
  int in_group;  // the same of a group
  FastDiv by_line, by_group;

  // The address of a pixel of the box at `origin`, nullptr where it lies outside the image.
  __device__ __forceinline__ const char* pixel(int i, const int (&origin)[4]) const {
    int at[4];
    box.take_apart(i, at);
    const char* p = data;
    bool inside = true;
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      at[d] += origin[d];
      inside = inside && static_cast<unsigned>(at[d]) < static_cast<unsigned>(extent[d]);
      p += at[d] * stride[d];
    }
    return inside ? p : nullptr;
  }
};

// Starts copies of the lines of a box; `groups` groups from `first_group` on exist.
template <int kWidth>
__device__ __forceinline__ void stage_pieces(const GroupImage& image, const int (&origin)[4],
                                             int first_group, int groups, int element_bytes,
                                             unsigned char* lines) {
  const char* nothing = image.data;
  const int bytes = image.channels * element_bytes, count = image.box.count * image.in_line;
#pragma unroll 2
  for (int i = threadIdx.x; i < count; i += kGroupThreads) {
    const int pixel = image.by_line.quick(i), piece = i - pixel * image.in_line;
    const int group = image.by_group.quick(piece), at = (piece - group * image.in_group) * kWidth;
    const char* from = image.pixel(pixel, origin);
    const bool exists = from && group < groups && at < bytes;
    cp_async<kWidth>(lines + pixel * image.pitch + piece * kWidth,
                     exists ? from + (first_group + group) * image.group_stride + at : nothing,
                     exists ? kWidth : 0);
  }
}

// The same through registers, for channels of any stride. Neighbouring threads take neighbouring
// pixels.
template <class T>
__device__ __forceinline__ void stage_elements(const GroupImage& image, const int (&origin)[4],
                                               int first_group, int groups, unsigned char* lines) {
  const int count = image.box.count * image.in_line;
  for (int i = threadIdx.x; i < count; i += kGroupThreads) {
    const int chunk = image.by_line.quick(i), pixel = i - chunk * image.box.count;
    const int group = image.by_group.quick(chunk);
    const int first = (chunk - group * image.in_group) * kPerChunk<T>;
    const char* from = image.pixel(pixel, origin);
    const int exist = from && group < groups ? image.channels - first : 0;
    if (exist > 0) {
      from += (first_group + group) * image.group_stride + first * image.channel_stride;
    }
    Raw<T, kPerChunk<T>> elements;
    T v[kPerChunk<T>];
#pragma unroll
    for (int c = 0; c < kPerChunk<T>; ++c) {
      v[c] = c < exist ? *reinterpret_cast<const T*>(from + c * image.channel_stride) : T{};
    }
#pragma unroll
    for (int c = 0; c < kPerChunk<T>; ++c) elements.set(c, v[c]);
    elements.store(reinterpret_cast<T*>(lines + pixel * image.pitch + chunk * kChunkBytes));
  }
}

template <class T>
__device__ __forceinline__ void stage_lines(const GroupImage& image, const int (&origin)[4],
                                            int first_group, int groups, unsigned char* lines) {
  constexpr int kSize = sizeof(T);
  if (image.width == 16) {
    stage_pieces<16>(image, origin, first_group, groups, kSize, lines);
  } else if (image.width == 8) {
    stage_pieces<8>(image, origin, first_group, groups, kSize, lines);
  } else if (image.width == 4) {
    stage_pieces<4>(image, origin, first_group, groups, kSize, lines);
  } else {
    stage_elements<T>(image, origin, first_group, groups, lines);
  }
}

// The entries of a group's sum: taps outside chunks. Taps are counted w, h, d.
struct GroupEntries {
  int count;
  FastDiv by_chunks, by_taps[2];
  int offset[3];  // between neighbouring taps, in pixels of the box

  __device__ __forceinline__ void take_apart(int entry, int (&tap)[3], int& chunk) const {
    int i = by_chunks.quick(entry);
    chunk = entry - i * static_cast<int>(by_chunks.divisor());
#pragma unroll
    for (int d = 0; d < 2; ++d) {
      const int next = by_taps[d].quick(i);
      tap[d] = i - next * static_cast<int>(by_taps[d].divisor());
      i = next;
    }
    tap[2] = i;
  }
  // What the entry adds to the address of a pixel's line.
  __device__ __forceinline__ int address(int entry, int pitch) const {
    int tap[3], chunk;
    take_apart(entry, tap, chunk);
    return (tap[0] * offset[0] + tap[1] * offset[1] + tap[2] * offset[2]) * pitch +
           chunk * kChunkBytes;
  }
};

// The tiles into which the pixels of a result (or of its gradient) are cut.
struct GroupTiles {
  BoxIndex tile;          // the pixels of one
  BoxIndex tiles;         // how many there are
  int pixels[4];          // of the whole
  int lower[4], step[4];  // pixel p of the whole meets its first tap at p * step + lower
  int line_step[4];       // the same within the box, in lines

  __device__ __forceinline__ void first_pixel(int i, int (&at)[4]) const {
    tiles.take_apart(i, at);
#pragma unroll
    for (int d = 0; d < 4; ++d) at[d] *= tile.extent[d];
  }
  __device__ __forceinline__ void box_origin(const int (&first)[4], int (&origin)[4]) const {
#pragma unroll
    for (int d = 0; d < 4; ++d) origin[d] = first[d] * step[d] + lower[d];
  }
  // Whether pixel i of the tile exists; where it is in the whole, and the first line that it meets.
  __device__ __forceinline__ bool locate(int i, const int (&first)[4], int (&at)[4],
                                         int& line) const {
    tile.take_apart(i, at);
    bool exists = i < tile.count;
    line = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      line += at[d] * line_step[d];
      at[d] += first[d];
      exists = exists && at[d] < pixels[d];
    }
    return exists;
  }
};

}  // namespace dlkern::gpu
