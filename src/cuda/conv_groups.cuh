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

// An image, and how boxes of its pixels are copied to shared memory. Strides in bytes; within a box they
// and their sums are below 2^31.
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

  // Of the box's first pixel, wherever that is.
  __device__ __forceinline__ int64_t offset(const int (&origin)[4], int first_group) const {
    int64_t offset = first_group * group_stride;
#pragma unroll
    for (int d = 0; d < 4; ++d) offset += origin[d] * stride[d];
    return offset;
  }
  // From there to a pixel of the box at `origin`; false where that lies outside the image.
  __device__ __forceinline__ bool pixel(int i, const int (&origin)[4], int& offset) const {
    int at[4];
    box.take_apart(i, at);
    bool inside = true;
    offset = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      offset += at[d] * static_cast<int>(stride[d]);
      inside =
          inside && static_cast<unsigned>(at[d] + origin[d]) < static_cast<unsigned>(extent[d]);
    }
    return inside;
  }
};

// Starts copies of the lines of a box; `groups` groups from `first_group` on exist.
template <int kWidth>
__device__ __forceinline__ void stage_pieces(const GroupImage& image, const int (&origin)[4],
                                             int first_group, int groups, int element_bytes,
                                             unsigned char* lines) {
  const char* box = image.data + image.offset(origin, first_group);
  const int bytes = image.channels * element_bytes, count = image.box.count * image.in_line;
#pragma unroll 2
  for (int i = threadIdx.x; i < count; i += kGroupThreads) {
    const int pixel = image.by_line.quick(i), piece = i - pixel * image.in_line;
    const int group = image.by_group.quick(piece), at = (piece - group * image.in_group) * kWidth;
    int offset;
    const bool exists = image.pixel(pixel, origin, offset) && group < groups && at < bytes;
    offset += group * static_cast<int>(image.group_stride) + at;
    cp_async<kWidth>(lines + pixel * image.pitch + piece * kWidth,
                     exists ? box + offset : image.data, exists ? kWidth : 0);
  }
}

// The same through registers, for channels of any stride. Neighbouring threads take neighbouring
// pixels.
template <class T>
__device__ __forceinline__ void stage_elements(const GroupImage& image, const int (&origin)[4],
                                               int first_group, int groups, unsigned char* lines) {
  const char* box = image.data + image.offset(origin, first_group);
  const int count = image.box.count * image.in_line, step = static_cast<int>(image.channel_stride);
#pragma unroll 2
  for (int i = threadIdx.x; i < count; i += kGroupThreads) {
    const int chunk = image.by_line.quick(i), pixel = i - chunk * image.box.count;
    const int group = image.by_group.quick(chunk);
    const int first = (chunk - group * image.in_group) * kPerChunk<T>;
    int offset;
    const bool exists = image.pixel(pixel, origin, offset) && group < groups;
    const int exist = exists ? image.channels - first : 0;
    offset += group * static_cast<int>(image.group_stride) + first * step;
    T v[kPerChunk<T>];
#pragma unroll
    for (int c = 0; c < kPerChunk<T>; ++c) {
      v[c] = c < exist ? *reinterpret_cast<const T*>(box + offset + c * step) : T{};
    }
    Raw<T, kPerChunk<T>> elements;
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
  // Where pixel i is in the tile, and whether it exists in the whole.
  __device__ __forceinline__ bool exists(int i, const int (&first)[4], int (&at)[4]) const {
    tile.take_apart(i, at);
    bool exists = i < tile.count;
#pragma unroll
    for (int d = 0; d < 4; ++d) exists = exists && first[d] + at[d] < pixels[d];
    return exists;
  }
  // The line of the box that a pixel's first tap meets.
  __device__ __forceinline__ int line(const int (&at)[4]) const {
    int line = 0;
#pragma unroll
    for (int d = 0; d < 4; ++d) line += at[d] * line_step[d];
    return line;
  }
};

}  // namespace dlkern::gpu
