// Copies of an operand's tiles from memory to shared memory (prims/mma.cuh) while a kernel works on
// earlier ones (compute capability 8.0 and newer).
#pragma once

#include "cuda/prims/mma.cuh"

namespace dlkern::gpu {

// An operand X[r, k] (r is m of a, n of b) of any strides, in bytes.
struct TileSource {
  const char* data;
  int64_t row, depth;
  // Bytes that are copied at a time, where those along the tile's lines are neighbours and
  // addresses are multiples of it: 16, 8 or 4. 0: one element at a time, through registers.
  int width;
  bool e5m2;  // Float8
};

// The widest copies of which all addresses are multiples: they are the operand's, plus multiples of
// strides whose bits `strides` has together, in bytes.
inline int copy_width(const void* data, uint64_t strides) {
  for (const int width : {16, 8, 4}) {
    if ((reinterpret_cast<uintptr_t>(data) | strides) % width == 0) return width;
  }
  return 0;
}

// One thread's share of the copies. The rows beyond the operand's and the k beyond its depth become
// zeros. What load() starts is closed by cp_async_commit().
template <class T, int kRows, int kThreads, bool kAlongK>
class TileLoader {
 public:
  using Shared = SharedTile<T, kRows, kAlongK>;

  // rows: that exist from r0 on. offset: in bytes, of the batch item.
  __device__ __forceinline__ TileLoader(const TileSource& source, int64_t offset, int64_t r0,
                                        int64_t rows)
      : source_(source),
        line_(threadIdx.x / Shared::kChunks),
        chunk_(threadIdx.x % Shared::kChunks),
        rows_(rows < kRows ? static_cast<int>(rows) : kRows) {
    from_ = source.data + offset + r0 * source.row + line_ * line_stride() +
            chunk_ * kPerChunk * unit_stride();
  }

  // The tile `offset` bytes along k, where `depth` elements are left.
  __device__ __forceinline__ void load(unsigned char* tile, int64_t offset, int64_t depth) const {
    const int steps = depth < kTileDepth<T> ? static_cast<int>(depth) : kTileDepth<T>;
    const int lines = kAlongK ? rows_ : steps, in_line = kAlongK ? steps : rows_;
    const int left = in_line - chunk_ * kPerChunk;
    const int in_chunk = left < 0 ? 0 : left < kPerChunk ? left : kPerChunk;
    const char* from = from_ + offset;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int line = line_ + i * kLines;
      copy(tile + Shared::chunk(line, chunk_), from + i * (kLines * line_stride()),
           line < lines ? in_chunk : 0);
    }
  }

 private:
  static constexpr int kSize = sizeof(T), kPerChunk = 16 / kSize;
  static constexpr int kLines = kThreads / Shared::kChunks;  // that the threads copy at a time
  static constexpr int kCount = kRows * kTileDepthBytes / 16 / kThreads;
  static_assert(kThreads % Shared::kChunks == 0 && kRows * kTileDepthBytes / 16 % kThreads == 0);

  __device__ __forceinline__ int64_t line_stride() const {
    return kAlongK ? source_.row : source_.depth;
  }
  __device__ __forceinline__ int64_t unit_stride() const {
    return kAlongK ? source_.depth : source_.row;
  }

  // A chunk of which `count` elements exist.
  __device__ __forceinline__ void copy(unsigned char* to, const char* from, int count) const {
    if (source_.width == 16) return copy_pieces<16>(to, from, count * kSize);
    if (source_.width == 8) return copy_pieces<8>(to, from, count * kSize);
    if (source_.width == 4) return copy_pieces<4>(to, from, count * kSize);
    alignas(16) T elements[kPerChunk];
#pragma unroll
    for (int i = 0; i < kPerChunk; ++i) {
      elements[i] = i < count ? *reinterpret_cast<const T*>(from + i * unit_stride()) : T{};
    }
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(elements);
  }

  template <int kWidth>
  __device__ __forceinline__ void copy_pieces(unsigned char* to, const char* from,
                                              int bytes) const {
#pragma unroll
    for (int at = 0; at < 16; at += kWidth) {
      const int left = bytes - at;
      cp_async<kWidth>(to + at, from + at, left < 0 ? 0 : left < kWidth ? left : kWidth);
    }
  }

  const TileSource& source_;
  int line_, chunk_, rows_;
  const char* from_;
};

}  // namespace dlkern::gpu
