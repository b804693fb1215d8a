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

// Pixels of a box in steps of as many, without a division at each: where they are, and how far from the
// first one.
class BoxWalk {
 public:
  __device__ __forceinline__ BoxWalk(const BoxIndex& box, const int64_t (&stride)[4], int first,
                                     int step)
      : box_(box) {
    box.take_apart(first, at_);
    box.take_apart(step, step_);
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      stride_[d] = static_cast<uint32_t>(stride[d]);
      offset_ += at_[d] * stride_[d];
      step_offset_ += step_[d] * stride_[d];
    }
  }
  // A step, or one pixel more. Whether that leads past the last pixel: then to the first ones again.
  __device__ __forceinline__ bool advance(bool more) {
    offset_ += step_offset_ + (more ? stride_[0] : 0);
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      at_[d] += step_[d] + (more ? 1 : 0);
      more = at_[d] >= box_.extent[d];
      if (!more) continue;
      at_[d] -= box_.extent[d];
      offset_ -= box_.extent[d] * stride_[d];
      if (d < 3) offset_ += stride_[(d + 1) % 4];
    }
    return more;
  }
  __device__ __forceinline__ const int (&at() const)[4] { return at_; }
  __device__ __forceinline__ int offset() const { return static_cast<int>(offset_); }

 private:
  const BoxIndex& box_;
  int at_[4], step_[4];
  uint32_t stride_[4], offset_ = 0, step_offset_ = 0;  // what is too far for them is not walked to
};

// Threads of a block take its pieces of pixels, a pixel's beside each other: where the thread's are.
struct PieceWalk {
  int pixel, piece;
  BoxWalk walk;

  // by: pieces of a pixel.
  __device__ __forceinline__ PieceWalk(const BoxIndex& box, const int64_t (&stride)[4],
                                       const FastDiv& by)
      : pixel(by.quick(threadIdx.x)),
        piece(threadIdx.x - pixel * static_cast<int>(by.divisor())),
        walk(box, stride, pixel, by.quick(kGroupThreads)),
        pieces_(static_cast<int>(by.divisor())),
        step_pixel_(by.quick(kGroupThreads)),
        step_piece_(kGroupThreads - step_pixel_ * pieces_) {}
  __device__ __forceinline__ void advance() {
    piece += step_piece_;
    const bool more = piece >= pieces_;
    if (more) piece -= pieces_;
    pixel += step_pixel_ + (more ? 1 : 0);
    walk.advance(more);
  }

 private:
  int pieces_, step_pixel_, step_piece_;
};

// The same with neighbouring pixels beside each other, one piece of all of them after the other.
struct PixelWalk {
  int piece, pixel;
  BoxWalk walk;

  // by: the box's pixels.
  __device__ __forceinline__ PixelWalk(const BoxIndex& box, const int64_t (&stride)[4],
                                       const FastDiv& by)
      : piece(by.quick(threadIdx.x)),
        pixel(threadIdx.x - piece * box.count),
        walk(box, stride, pixel, kGroupThreads - by.quick(kGroupThreads) * box.count),
        pixels_(box.count),
        step_piece_(by.quick(kGroupThreads)),
        step_pixel_(kGroupThreads - step_piece_ * pixels_) {}
  __device__ __forceinline__ void advance() {
    pixel += step_pixel_;
    piece += step_piece_;
    if (!walk.advance(false)) return;
    pixel -= pixels_;
    ++piece;
  }

 private:
  int pixels_, step_piece_, step_pixel_;
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
  // Whether a pixel of the box at `origin` is one of the image.
  __device__ __forceinline__ bool is_inside(const int (&at)[4], const int (&origin)[4]) const {
    bool inside = true;
#pragma unroll
    for (int d = 0; d < 4; ++d) {
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
  const int bytes = image.channels * element_bytes, pixels = image.box.count;
#pragma unroll 2
  for (PieceWalk i(image.box, image.stride, image.by_line); i.pixel < pixels; i.advance()) {
    const int group = image.by_group.quick(i.piece);
    const int at = (i.piece - group * image.in_group) * kWidth;
    const bool exists = image.is_inside(i.walk.at(), origin) && group < groups && at < bytes;
    const int offset = i.walk.offset() + group * static_cast<int>(image.group_stride) + at;
    cp_async<kWidth>(lines + i.pixel * image.pitch + i.piece * kWidth,
                     exists ? box + offset : image.data, exists ? kWidth : 0);
  }
}

// The same through registers, for channels of any stride. Neighbouring threads take neighbouring
// pixels.
template <class T>
__device__ __forceinline__ void stage_elements(const GroupImage& image, const int (&origin)[4],
                                               int first_group, int groups, unsigned char* lines) {
  const char* box = image.data + image.offset(origin, first_group);
  const int step = static_cast<int>(image.channel_stride);
#pragma unroll 2
  for (PixelWalk i(image.box, image.stride, image.by_line); i.piece < image.in_line; i.advance()) {
    const int group = image.by_group.quick(i.piece);
    const int first = (i.piece - group * image.in_group) * kPerChunk<T>;
    const bool exists = image.is_inside(i.walk.at(), origin) && group < groups;
    const int exist = exists ? image.channels - first : 0;
    const int offset =
        i.walk.offset() + group * static_cast<int>(image.group_stride) + first * step;
    T v[kPerChunk<T>];
#pragma unroll
    for (int c = 0; c < kPerChunk<T>; ++c) {
      v[c] = c < exist ? *reinterpret_cast<const T*>(box + offset + c * step) : T{};
    }
    Raw<T, kPerChunk<T>> elements;
#pragma unroll
    for (int c = 0; c < kPerChunk<T>; ++c) elements.set(c, v[c]);
    elements.store(reinterpret_cast<T*>(lines + i.pixel * image.pitch + i.piece * kChunkBytes));
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
    return i < tile.count && exists(at, first);
  }
  __device__ __forceinline__ bool exists(const int (&at)[4], const int (&first)[4]) const {
    bool exists = true;
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
