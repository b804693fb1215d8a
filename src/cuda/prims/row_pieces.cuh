// Rows held in registers, so that each element is read once; what lies beside them, one value for
// each column. Rows begin at any address: pieces that do not lie at multiples of 16 bytes are
// loaded and stored by the aligned 16 bytes around them.
#pragma once

#include <algorithm>

#include "core/float8.h"
#include "core/mixed.h"
#include "cuda/prims/gpu.h"
#include "cuda/prims/row_team.cuh"
#include "cuda/prims/vec.cuh"
#if defined(__CUDACC__)
#include "cuda/prims/ptx.cuh"
#endif

namespace dlkern::gpu {

// ---- A piece -----------------------------------------------------------------------------------

// Held as words: elements of 16 bits that are values of their own would take a register each.
template <class T>
struct Piece {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8);
  uint32_t word[4];

  __device__ __forceinline__ T get(int e) const {
    if constexpr (sizeof(T) == 2) {
      return bit_cast_to<T>(static_cast<uint16_t>(word[e / 2] >> 16 * (e % 2)));
    } else if constexpr (sizeof(T) == 4) {
      return bit_cast_to<T>(word[e]);
    } else {
      return bit_cast_to<T>(word[2 * e] | static_cast<uint64_t>(word[2 * e + 1]) << 32);
    }
  }
  __device__ __forceinline__ void set(int e, T v) {
    if constexpr (sizeof(T) == 2) {
      const uint32_t kept = word[e / 2] & 0xffff0000u >> 16 * (e % 2);
      word[e / 2] = kept | static_cast<uint32_t>(bit_cast_to<uint16_t>(v)) << 16 * (e % 2);
    } else if constexpr (sizeof(T) == 4) {
      word[e] = bit_cast_to<uint32_t>(v);
    } else {
      const auto bits = bit_cast_to<uint64_t>(v);
      word[2 * e] = static_cast<uint32_t>(bits);
      word[2 * e + 1] = static_cast<uint32_t>(bits >> 32);
    }
  }
  // The first element becomes the last.
  __device__ __forceinline__ void rotate() {
    const T first = get(0);
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int w = 0; w < 3; ++w) word[w] = word[w] >> 16 | word[w + 1] << 16;
      word[3] >>= 16;
    } else {
#pragma unroll
      for (int w = 0; w + sizeof(T) / 4 < 4; ++w) word[w] = word[w + sizeof(T) / 4];
    }
    set(16 / sizeof(T) - 1, first);
  }
  // The compiler cannot look through this: what was computed of the elements before is computed
  // again behind it, and not kept or brought forward. Elements of 16 bits on their own take as many
  // registers as float32.
  __device__ __forceinline__ void forget() {
#if defined(__CUDA_ARCH__)
    asm volatile("" : "+r"(word[0]), "+r"(word[1]), "+r"(word[2]), "+r"(word[3]));
#endif
  }
};

// Two float8 of one type.
__device__ __forceinline__ uint16_t pack_float8(float low, float high, bool e5m2) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  return e5m2 ? pack_e5m2(low, high) : pack_e4m3(low, high);
#else
  const auto bits = [e5m2](float v) {
    return static_cast<uint16_t>(e5m2 ? Float8E5M2(v).bits : Float8E4M3(v).bits);
  };
  return static_cast<uint16_t>(bits(low) | bits(high) << 8);
#endif
}

// The first `count` of N numbers, as float8 to p, whose multiple of a power of 2 `align` is known.
template <int N>
__device__ __forceinline__ void store_float8(const float (&v)[N], uint8_t* p, int count, int align,
                                             bool e5m2) {
  static_assert(N == 4 || N == 8);
  uint16_t pairs[N / 2];
#pragma unroll
  for (int k = 0; k < N / 2; ++k) pairs[k] = pack_float8(v[2 * k], v[2 * k + 1], e5m2);
  if (count >= N && align >= N) {
    uint32_t words[N / 4];
#pragma unroll
    for (int k = 0; k < N / 4; ++k) words[k] = pairs[2 * k] | uint32_t{pairs[2 * k + 1]} << 16;
    if constexpr (N == 8) {
      *reinterpret_cast<uint2*>(p) = make_uint2(words[0], words[1]);
    } else {
      *reinterpret_cast<uint32_t*>(p) = words[0];
    }
  } else {
#pragma unroll
    for (int e = 0; e < N; ++e) {
      if (e < count) p[e] = static_cast<uint8_t>(pairs[e / 2] >> 8 * (e % 2));
    }
  }
}

// The 16 bytes at `p`, a multiple of 16, where `wanted`.
template <bool kOnce = false>
__device__ __forceinline__ void load_words(bool wanted, const void* p, uint32_t (&w)[4]) {
#if defined(__CUDA_ARCH__)
  load_16_if<kOnce>(wanted, p, w);
#else
  if (wanted) {
    const uint4 v = *static_cast<const uint4*>(p);
    w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
  }
#endif
}
__device__ __forceinline__ void store_words(void* p, const uint32_t (&w)[4]) {
#if defined(__CUDA_ARCH__)
  store_16(p, make_uint4(w[0], w[1], w[2], w[3]));
#else
  *static_cast<uint4*>(p) = make_uint4(w[0], w[1], w[2], w[3]);
#endif
}

// Bytes between the multiple of 16 before p and p.
__device__ __forceinline__ int shift_of(const void* p) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(p) % 16);
}

// ---- A row -------------------------------------------------------------------------------------

// Where the last of all rows of n neighbours ends.
template <class T, int N>
const T* end_of_rows(const T* data, const StridedIndex<N>& rows, int tensor, int64_t n) {
  for (int d = 0; d < rows.ndim; ++d) {
    data += std::max<int64_t>((rows.shape[d] - 1) * rows.stride[tensor][d], 0);
  }
  return data + n;
}

// A row's elements of this thread. All threads of the block must call load and store; a team without
// a row has one of n = 0.
template <class T, int kItems>
struct RowPieces {
  static constexpr int kElements = kItems * kPiece<T>;
  Piece<T> piece[kItems];

  // Element k of this thread, and its place in the row.
  __device__ __forceinline__ T get(int k) const { return piece[k / kPiece<T>].get(k % kPiece<T>); }
  __device__ __forceinline__ void set(int k, T v) { piece[k / kPiece<T>].set(k % kPiece<T>, v); }
  // The same where k is known at run time only.
  __device__ __forceinline__ void set_at(int k, T v) {
    with_constant<0, kElements>(k, [&]<int kNumber>() { set(kNumber, v); });
  }
  template <bool kBlocks>
  static __device__ __forceinline__ int place(const RowTeam<kBlocks>& team, int k) {
    return (team.rank + k / kPiece<T> * team.size) * kPiece<T> + k % kPiece<T>;
  }
  // f(element, its number k), an Accumulator<T>, in place of each.
  template <class F>
  __device__ __forceinline__ void assign(F&& f) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) assign(i, f);
  }
  // The same of piece i alone.
  template <class F>
  __device__ __forceinline__ void assign(int i, F&& f) {
#pragma unroll
    for (int k = i * kPiece<T>; k < (i + 1) * kPiece<T>; k += sizeof(T) == 2 ? 2 : 1) {
      if constexpr (sizeof(T) == 2) {
        const float low = f(get(k), k), high = f(get(k + 1), k + 1);
        piece[i].word[k % kPiece<T> / 2] = pack_pair<T>(low, high);
      } else {
        set(k, static_cast<T>(f(get(k), k)));
      }
    }
    piece[i].forget();
  }
  // f(f(f(0, element), element), ...) of each piece's elements of a row of n; their sum. kWhole: see
  // load.
  template <bool kWhole = false, bool kBlocks, class F>
  __device__ __forceinline__ Accumulator<T> sum(const RowTeam<kBlocks>& team, int n, F&& f) const {
    Accumulator<T> total = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int first = place(team, i * kPiece<T>);
      Accumulator<T> part = 0;
#pragma unroll
      for (int k = i * kPiece<T>; k < (i + 1) * kPiece<T>; ++k) part = f(part, get(k));
      if (!kWhole && n % kPiece<T> != 0 && first + kPiece<T> > n) {
        part = 0;
#pragma unroll
        for (int k = i * kPiece<T>; k < (i + 1) * kPiece<T>; ++k) {
          if (place(team, k) < n) part = f(part, get(k));
        }
      }
      total += first < n ? part : 0;
    }
    return total;
  }
  // Between two passes over the elements.
  __device__ __forceinline__ void forget() {
#pragma unroll
    for (int i = 0; i < kItems; ++i) piece[i].forget();
  }

  // Elements behind the row's end are `fill`. All loads are on their way before the first is waited
  // for. kOnce: the first-level cache is left to others. kWhole: it is known that rows begin at
  // multiples of 16 bytes and are whole pieces. What lies between the row and `end`, where its tensor
  // ends, may be read along; and so may what is in the same aligned 16 bytes before the row.
  template <bool kOnce = false, bool kWhole = false, bool kBlocks>
  __device__ __forceinline__ void load(const T* row, int n, const RowTeam<kBlocks>& team, int align,
                                       T fill, const T* end) {
#pragma unroll
    for (int k = 0; k < kElements; ++k) set(k, fill);
    if (kWhole || (align == 16 && n % kPiece<T> == 0)) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int first = place(team, i * kPiece<T>);
        load_words<kOnce>(first < n, row + first, piece[i].word);
      }
    } else {
      load_shifted(row, n, team, fill, end);
    }
  }
  template <bool kOnce = false, bool kWhole = false, bool kBlocks>
  __device__ __forceinline__ void load(const T* row, int n, const RowTeam<kBlocks>& team, int align,
                                       T fill) {
    load<kOnce, kWhole>(row, n, team, align, fill, row + n);
  }
  // kLinked: warps of a row hand over what lies on their borders, for two barriers; else those are
  // stored one by one.
  template <bool kWhole = false, bool kLinked = false, bool kBlocks>
  __device__ __forceinline__ void store(T* row, int n, RowTeam<kBlocks> team, int align) const {
    if (kWhole || align == 16) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int first = place(team, i * kPiece<T>);
        if (first + kPiece<T> <= n) store_words(row + first, piece[i].word);
      }
      if (kWhole || n % kPiece<T> == 0) return;
    }
    const int shift = align == 16 ? 0 : shift_of(row);
    const EdgePieces edges(*this, team, kLinked);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      team.forget();
      const int first = place(team, i * kPiece<T>);
      // Of the aligned 16 bytes in which the piece begins, and of those in which it ends, where that
      // are others: whether they are the row's and a thread has all of them.
      const int left = (n - first) * kSize + shift - 16;
      const bool begin = (edges.follows(i) || shift == 0) && left >= 0;
      const bool end = edges.followed() && left >= 16;
      if (align != 16) {
        uint32_t w[4];
        edges.window(*this, i, shift, w);
        if (begin) store_words(reinterpret_cast<char*>(row + first) - shift, w);
      }
      if (first < n && !(begin && (end || shift == 0))) {
        Piece<T> now = piece[i];
        now.forget();
#pragma unroll
        for (int e = 0; e < kPiece<T>; ++e) {
          const bool done = e * kSize < 16 - shift ? begin : end;
          if (first + e < n && !done) row[first + e] = now.get(e);
        }
      }
    }
  }

 private:
  static constexpr int kSize = sizeof(T);

  // Pieces are cut out of the two aligned 16 bytes that hold them, four pieces at a time: more would
  // take too many registers. Where those end behind `end`, elements are loaded one by one.
  template <bool kBlocks>
  __device__ __forceinline__ void load_shifted(const T* row, int n, RowTeam<kBlocks> team, T fill,
                                               const T* end) {
    constexpr int kGroup = kItems < 4 ? kItems : 4;
    const int shift = shift_of(row), bytes = n * kSize;
    const int64_t behind = (end - (row + n)) * kSize;
    const int readable = bytes + static_cast<int>(behind < 16 ? behind : 16);
    // Whether the aligned 16 bytes at `offset` from the row have elements of it, and may be read.
    const auto needed = [=](int offset) { return offset < bytes; };
    const auto inside = [=](int offset) { return offset + 16 <= readable; };
#pragma unroll
    for (int group = 0; group < kItems; group += kGroup) {
      team.forget();
      uint32_t low[kGroup][4] = {}, high[kGroup][4] = {};
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const int at = place(team, (group + i) * kPiece<T>) * kSize - shift;
        const char* from = reinterpret_cast<const char*>(row) + at;
        load_words(needed(at) && inside(at), from, low[i]);
        load_words(needed(at + 16) && inside(at + 16), from + 16, high[i]);
      }
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        Piece<T>& p = piece[group + i];
        if (needed(place(team, (group + i) * kPiece<T>) * kSize - shift)) {
          extract(low[i], high[i], shift, p.word);
        }
        p.forget();
      }
    }
    if (n % kPiece<T> == 0 && (bytes + shift + 15) / 16 * 16 - shift <= readable) return;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      team.forget();
      const int first = place(team, i * kPiece<T>), at = first * kSize - shift;
      const bool whole = inside(at) && (!needed(at + 16) || inside(at + 16));
      if (whole && first + kPiece<T> <= n) continue;
#pragma unroll
      for (int e = 0; e < kPiece<T>; ++e) {
        if (first + e >= n) {
          piece[i].set(e, fill);
        } else if (!whole) {
          piece[i].set(e, row[first + e]);
        }
      }
    }
  }

  // The pieces before a thread's, for the aligned 16 bytes that begin in those. Of the lane before
  // by a shuffle; a warp's first lane has them from shared memory, where teams are of whole warps.
  // All threads of the block must construct it.
  struct EdgePieces {
    static constexpr int kWarps = kMaxTeamThreads / kRowLanes;
    const uint4 (*last)[kWarps];  // of the block's warps, by number
    int lane, warp, rank, size, warps;
    bool linked, crosses;  // warps of the team; its blocks' first and last threads

    template <bool kBlocks>
    __device__ __forceinline__ EdgePieces(const RowPieces& row, const RowTeam<kBlocks>& team,
                                          bool link)
        : lane(threadIdx.x % kWarpSize),
          warp(threadIdx.x / kWarpSize),
          rank(team.rank),
          size(team.size),
          warps(team.size / kWarpSize),
          linked(link && team.size >= kWarpSize) {
      __shared__ uint4 slots[kItems][kWarps];
      last = slots;
      crosses = kBlocks;
      if (!linked) return;
      __syncthreads();  // the previous call's reads are over
      if (lane + 1 == kWarpSize) {
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
          const uint32_t(&w)[4] = row.piece[i].word;
          slots[i][warp] = make_uint4(w[0], w[1], w[2], w[3]);
        }
      }
      __syncthreads();
    }
    // The thread has the piece before its i-th, and another one the piece behind it.
    __device__ __forceinline__ bool follows(int i) const {
      if (lane > 0) return rank > 0;
      return linked && (crosses ? warp > 0 : rank > 0 || i > 0);
    }
    __device__ __forceinline__ bool followed() const {
      if (lane + 1 < kWarpSize) return rank + 1 < size;
      return linked && !(crosses && threadIdx.x + 1 == blockDim.x);
    }
    // The 16 bytes that end `shift` bytes before piece i does. All lanes of a warp must call it.
    __device__ __forceinline__ void window(const RowPieces& row, int i, int shift,
                                           uint32_t (&w)[4]) const {
      const Piece<T>& piece = row.piece[i];
      uint32_t before[4], cut[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) before[k] = shuffle_up(piece.word[k]);
      if (lane == 0 && follows(i)) {
        const uint4 v = rank > 0 ? last[i][warp - 1] : last[i - 1][warp + warps - 1];
        before[0] = v.x, before[1] = v.y, before[2] = v.z, before[3] = v.w;
      }
      extract(before, piece.word, (16 - shift) % 16, cut);
#pragma unroll
      for (int k = 0; k < 4; ++k) w[k] = shift == 0 ? piece.word[k] : cut[k];
    }
  };
};

// ---- Values beside the rows --------------------------------------------------------------------

// One for each column: neighbours of type T or of the one T is summed in, or absent. Read for every
// row, from cache.
template <class T>
struct RowParameter {
  using Acc = Accumulator<T>;
  const void* data = nullptr;
  bool wide = true;    // of type Acc
  bool vector = true;  // lies at a multiple of 16 bytes

  RowParameter() = default;
  explicit RowParameter(const MixedView<T>& view)
      : data(view.data),
        wide(view.wide),
        vector(reinterpret_cast<uintptr_t>(view.data) % 16 == 0) {}

  // Those of the piece that begins at column `first`; `absent` behind the last. kAny: else it is a
  // `vector` of type T or absent.
  template <bool kAny = true>
  __device__ __forceinline__ void load(int first, int n, Acc absent, Acc (&v)[kPiece<T>]) const {
    const auto* wides = static_cast<const Acc*>(data) + first;
    const auto* narrows = static_cast<const T*>(data) + first;
    const bool of_acc = kAny && wide;
    if (!data) {
#pragma unroll
      for (int e = 0; e < kPiece<T>; ++e) v[e] = absent;
      return;
    }
    if ((kAny && !vector) || first + kPiece<T> > n) {
#pragma unroll
      for (int e = 0; e < kPiece<T>; ++e) {
        v[e] = first + e >= n ? absent : of_acc ? wides[e] : static_cast<Acc>(narrows[e]);
      }
    } else if (of_acc) {
#pragma unroll
      for (int e = 0; e < kPiece<T>; e += kPiece<Acc>) take(wides + e, v + e);
    } else {
      take(narrows, v);
    }
  }
  // The same of those that are there, a `vector` of type Acc (kWide) or T, of whole pieces: without
  // branches. Behind the last anything.
  template <bool kWide>
  __device__ __forceinline__ void load_whole(int first, int n, Acc (&v)[kPiece<T>]) const {
    using Element = std::conditional_t<kWide, Acc, T>;
    const auto* from = static_cast<const Element*>(data) + (first < n ? first : 0);
#pragma unroll
    for (int e = 0; e < kPiece<T>; e += kPiece<Element>) take(from + e, v + e);
  }

 private:
  template <class Element>
  static __device__ __forceinline__ void take(const Element* from, Acc* v) {
    const uint4 w = *reinterpret_cast<const uint4*>(from);
    const Piece<Element> piece{{w.x, w.y, w.z, w.w}};
#pragma unroll
    for (int e = 0; e < kPiece<Element>; ++e) v[e] = static_cast<Acc>(piece.get(e));
  }
};

}  // namespace dlkern::gpu
