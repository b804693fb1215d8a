// Rows held in registers, so that each element is read once; what lies beside them, one value for
// each column. Rows begin at any address: pieces that do not lie at multiples of 16 bytes are
// loaded and stored by the aligned 16 bytes around them.
#pragma once

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

// ---- A row -------------------------------------------------------------------------------------

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
  // multiples of 16 bytes and are whole pieces.
  template <bool kOnce = false, bool kWhole = false, bool kBlocks>
  __device__ __forceinline__ void load(const T* row, int n, RowTeam<kBlocks> team, int align,
                                       T fill) {
#pragma unroll
    for (int k = 0; k < kElements; ++k) set(k, fill);
    if (kWhole || (align == 16 && n % kPiece<T> == 0)) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int first = place(team, i * kPiece<T>);
        load_words<kOnce>(first < n, row + first, piece[i].word);
      }
    } else {
      load_shifted(row, n, team);
    }
  }
  template <bool kWhole = false, bool kBlocks>
  __device__ __forceinline__ void store(T* row, int n, RowTeam<kBlocks> team, int align) const {
    if (kWhole || align == 16) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int first = place(team, i * kPiece<T>);
        if (first + kPiece<T> <= n) store_words(row + first, piece[i].word);
      }
      if (kWhole || n % kPiece<T> == 0) return;
    }
    const int shift = align == 16 ? 0 : shift_of(row), lane = threadIdx.x % kWarpSize;
    // There is a lane for the piece before this one, and for the one behind it.
    const bool follows = lane > 0 && team.rank > 0;
    const bool followed = lane + 1 < kWarpSize && team.rank + 1 < team.size;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      team.forget();
      const int first = place(team, i * kPiece<T>);
      // Of the aligned 16 bytes in which the piece begins, and of those in which it ends, where that
      // are others: whether they are the row's and a thread has all of them.
      const int left = (n - first) * kSize + shift - 16;
      const bool begin = (follows || shift == 0) && left >= 0, end = followed && left >= 16;
      if (align != 16) store_shifted(row + first, shift, i, begin);
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

  // Bytes between the multiple of 16 before the row and its first element: those before each piece.
  static __device__ __forceinline__ int shift_of(const T* row) {
    return static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16);
  }

  // Pieces are cut out of the two aligned 16 bytes that hold them, where those are of the row, four
  // pieces at a time: more would take too many registers.
  template <bool kBlocks>
  __device__ __forceinline__ void load_shifted(const T* row, int n, RowTeam<kBlocks> team) {
    constexpr int kGroup = kItems < 4 ? kItems : 4;
    const int shift = shift_of(row);
    const auto whole = [=](int first) {
      return first * kSize >= shift && first * kSize - shift + 32 <= n * kSize;
    };
#pragma unroll
    for (int group = 0; group < kItems; group += kGroup) {
      team.forget();
      uint32_t low[kGroup][4] = {}, high[kGroup][4] = {};
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const int first = place(team, (group + i) * kPiece<T>);
        const char* at = reinterpret_cast<const char*>(row + first) - shift;
        load_words(whole(first), at, low[i]);
        load_words(whole(first), at + 16, high[i]);
      }
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        Piece<T>& p = piece[group + i];
        if (whole(place(team, (group + i) * kPiece<T>))) extract(low[i], high[i], shift, p.word);
        p.forget();
      }
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      team.forget();
      const int first = place(team, i * kPiece<T>);
      if (first < n && !whole(first)) {
#pragma unroll
        for (int e = 0; e < kPiece<T>; ++e) {
          if (first + e < n) piece[i].set(e, row[first + e]);
        }
      }
    }
  }
  // The aligned 16 bytes in which piece i, at `p`, begins: they begin in that of the lane before.
  // All lanes of a warp must call it.
  __device__ __forceinline__ void store_shifted(T* p, int shift, int i, bool wanted) const {
    uint32_t before[4], w[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) before[k] = shuffle_up(piece[i].word[k]);
    extract(before, piece[i].word, (16 - shift) % 16, w);
#pragma unroll
    for (int k = 0; k < 4; ++k) w[k] = shift == 0 ? piece[i].word[k] : w[k];
    if (wanted) store_words(reinterpret_cast<char*>(p) - shift, w);
  }
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

  // Those of the piece that begins at column `first`; `absent` behind the last.
  __device__ __forceinline__ void load(int first, int n, Acc absent, Acc (&v)[kPiece<T>]) const {
    const auto* wides = static_cast<const Acc*>(data) + first;
    const auto* narrows = static_cast<const T*>(data) + first;
    if (!data) {
#pragma unroll
      for (int e = 0; e < kPiece<T>; ++e) v[e] = absent;
      return;
    }
    if (!vector || first + kPiece<T> > n) {
#pragma unroll
      for (int e = 0; e < kPiece<T>; ++e) {
        v[e] = first + e >= n ? absent : wide ? wides[e] : static_cast<Acc>(narrows[e]);
      }
    } else if (wide) {
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
