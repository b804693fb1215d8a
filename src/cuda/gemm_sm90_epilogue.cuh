// The Hopper matrix products: from sums in registers to y.
#pragma once

#include "core/fast_math.h"
#include "cuda/gemm_sm90_tiles.cuh"
#include "cuda/prims/epilogue.cuh"

namespace dlkern::gpu {

// ---- Epilogue ----------------------------------------------------------------------------------

// kChunk columns of 64 rows: of each thread, register 4 j + i holds row + 8 (i / 2) and column
// col + 8 j + i % 2.
template <int kCount>
struct Fragment {
  float v[kCount];
  int row, col;          // of register 0, in y
  int row_end, col_end;  // beyond them nothing is read or written

  __device__ static constexpr int row_of(int i) { return i / 2 % 2 * 8; }
  __device__ static constexpr int col_of(int i) { return i / 4 * 8 + i % 2; }
  __device__ bool inside(int i) const {
    return row + row_of(i) < row_end && col + col_of(i) < col_end;
  }
  // f(register, offset in t) for each element inside.
  template <class F>
  __device__ void for_each(const Matrix& t, F&& f) {
    const int64_t first = row * t.row + col * t.col;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (inside(i)) f(v[i], first + row_of(i) * t.row + col_of(i) * t.col);
    }
  }
};

template <int kCount>
__device__ void load_fragment(const Fragment<kCount>& as, const Matrix& t, int64_t at,
                              float (&v)[kCount]) {
  with_type<false>(t, [&]<class E>(const E* data) {
    const E* p = data + at + as.row * t.row + as.col * t.col;
    // Neighbours in one access, where all of them are aligned for that.
    struct alignas(2 * sizeof(E)) Pair {
      E v[2];
    };
    const bool pairs =
        t.col == 1 && t.row % 2 == 0 && reinterpret_cast<uintptr_t>(data + at) % sizeof(Pair) == 0;
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const E* place = p + as.row_of(i) * t.row + as.col_of(i) * t.col;
      v[i] = v[i + 1] = 0;
      if (pairs && as.inside(i + 1)) {
        const Pair pair = *reinterpret_cast<const Pair*>(place);
        v[i] = static_cast<float>(pair.v[0]);
        v[i + 1] = static_cast<float>(pair.v[1]);
      } else {
        if (as.inside(i)) v[i] = static_cast<float>(place[0]);
        if (as.inside(i + 1)) v[i + 1] = static_cast<float>(place[t.col]);
      }
    }
  });
}

// First elements of an item's matrices. Made where it is used: there is no room to keep it.
struct ItemOffsets {
  int64_t v[Gemm::kTensors];

  __device__ ItemOffsets(const Sm90Args& args, int item) : v{} {
    if (args.batch.numel > 1) args.batch.offsets(item, v);
  }
};

// What follows alpha, scales and a bias, up to the rounding to y.
template <int kCount>
__device__ void apply_epilogue(const Sm90Args& args, uint32_t features, Fragment<kCount>& f,
                               const ItemOffsets& at) {
  const Epilogue& e = args.e;
  float t[kCount];
  if (features & kAddend) {
    load_fragment(f, e.c, at.v[2], t);
#pragma unroll
    for (int i = 0; i < kCount; ++i) f.v[i] = fmaf(args.beta, t[i], f.v[i]);
  }
  if (features & kPre) {
    f.for_each(e.pre, [&](float v, int64_t offset) { store_as(e.pre, at.v[4] + offset, v); });
  }
  if (features & kSaved) {
    load_fragment(f, e.saved, at.v[6], t);
    dispatch_activation(e.activation, [&]<dlk_activation kKind>() {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        f.v[i] = activation_backward<kKind, FastMath>(f.v[i], t[i], args.scalars);
      }
    });
  }
  if (features & kActivation) {
    dispatch_activation(e.activation, [&]<dlk_activation kKind>() {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        f.v[i] = activation_forward<kKind, FastMath>(f.v[i], args.scalars);
    });
  }
  if (features & kResidual) {
    load_fragment(f, e.residual, at.v[5], t);
#pragma unroll
    for (int i = 0; i < kCount; ++i) f.v[i] += t[i];
  }
  if (features & kAmax) {
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (f.inside(i)) largest = max(largest, amax_bits(f.v[i]));
    }
    for (int mask = 16; mask > 0; mask /= 2) largest = max(largest, shuffle_xor(largest, mask));
    if (threadIdx.x % 32 == 0) raise_amax(e.amax, largest);
  }
  if (features & kScaleY) {
    const float scale = *e.scale_y;
#pragma unroll
    for (int i = 0; i < kCount; ++i) f.v[i] *= scale;
  }
}

// Two elements of 16 bits; which type they are is known at run time.
__device__ __forceinline__ uint32_t pack_pair(bool bfloat, float low, float high) {
  uint32_t pair;
  if (bfloat) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

// Place of 16 bytes in a swizzled slab.
__device__ __forceinline__ uint8_t* slab_at(uint8_t* slab, int row, int col16) {
  return slab + row * kSwizzleBytes + ((col16 ^ (row & 7)) << 4);
}

// A chunk into a slab, at column `first` there. Transposed, a slab's rows are y's columns.
template <int kChunk, bool kTransposed>
__device__ __forceinline__ void chunk_to_slab16(const float (&v)[kChunk / 2], bool bfloat,
                                                uint8_t* slab, int first) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int half = lane / 8 % 2;  // this lane has the address of a row of this matrix
  const int col = first + (kChunk == 16 ? lane / 16 * 8 : 0);
  uint8_t* place = kTransposed ? slab_at(slab, col + lane % 8, warp * 2 + half)
                               : slab_at(slab, warp * 16 + half * 8 + lane % 8, col / 8);
  uint32_t r[kChunk / 4];
#pragma unroll
  for (int i = 0; i < kChunk / 4; ++i) r[i] = pack_pair(bfloat, v[2 * i], v[2 * i + 1]);
  if constexpr (kChunk == 16) {
    stmatrix_x4<kTransposed>(place, r[0], r[1], r[2], r[3]);
  } else {
    stmatrix_x2<kTransposed>(place, r[0], r[1]);
  }
}

// The same for 4 bytes. Transposed: two slabs of `columns` rows and 32 columns, one after the other.
template <int kChunk, bool kTransposed>
__device__ __forceinline__ void chunk_to_slab32(const float (&v)[kChunk / 2], uint8_t* slab,
                                                int first, int columns) {
  using F = Fragment<kChunk / 2>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
  for (int i = 0; i < kChunk / 2; i += 2) {
    const int row = warp * 16 + lane / 4 + F::row_of(i), col = first + lane % 4 * 2 + F::col_of(i);
    if constexpr (kTransposed) {
      uint8_t* box = slab + row / 32 * (columns * kSwizzleBytes);
#pragma unroll
      for (int next = 0; next < 2; ++next) {
        uint8_t* place = slab_at(box, col + next, row % 32 / 4) + row % 4 * 4;
        *reinterpret_cast<float*>(place) = v[i + next];
      }
    } else {
      uint8_t* place = slab_at(slab, row, col / 4) + col % 4 * 4;
      *reinterpret_cast<float2*>(place) = make_float2(v[i], v[i + 1]);
    }
  }
}

// f(registers of the chunk), by a number known at run time only: registers have no addresses.
template <int kChunk, int kFirst, int kLast, class Sum, int kCount, class F>
__device__ __forceinline__ void visit_chunk(Sum (&sums)[kCount], int chunk, F&& f) {
  if constexpr (kLast - kFirst == 1) {
    f(sums + kFirst * (kChunk / 2));
  } else {
    constexpr int kMiddle = (kFirst + kLast) / 2;
    if (chunk < kMiddle) {
      visit_chunk<kChunk, kFirst, kMiddle>(sums, chunk, f);
    } else {
      visit_chunk<kChunk, kMiddle, kLast>(sums, chunk, f);
    }
  }
}

// A sum as the epilogue has it: int32 ones converted, or their bits where those are wanted.
__device__ __forceinline__ float from_sum(float sum, bool) { return sum; }
__device__ __forceinline__ float from_sum(int32_t sum, bool bits) {
  float converted;  // volatile: or all sums would be converted, and kept, before the first is used
  asm volatile("cvt.rn.f32.s32 %0, %1;" : "=f"(converted) : "r"(sum));
  return bits ? __int_as_float(sum) : converted;
}
__device__ __forceinline__ void to_sum(float v, float& sum) { sum = v; }
__device__ __forceinline__ void to_sum(float v, int32_t& sum) { sum = __float_as_int(v); }

// The usual activations within 2^-13, which y of 16 bits does not show: as few instructions as can be,
// for there are up to 128 sums in each thread. NaN stays NaN, and what is small in a tail stays right
// nearly down to the smallest normal number.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// So far out that the result is 0: infinity times 0 would be NaN.
__device__ __forceinline__ float above(float low, float x) { return x < low ? low : x; }

template <int kCount>
__device__ __forceinline__ void quick_activation(dlk_activation kind, float (&v)[kCount]) {
  if (kind == DLK_ACTIVATION_RELU) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = v[i] <= 0 ? 0.0f : v[i];
  } else if (kind == DLK_ACTIVATION_SILU) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float x = above(-110.0f, v[i]);
      v[i] = x * reciprocal_approx(1.0f + exp2_approx(x * -1.44269504f));
    }
  } else if (kind == DLK_ACTIVATION_GELU_TANH) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {  // x sigmoid(2 u), 2 u log2(e) = x (2.302 + 0.1029 x^2)
      const float x = above(-110.0f, v[i]);
      const float t = x * fmaf(x * x, -0.102943240f, -2.30220819f);
      v[i] = x * reciprocal_approx(1.0f + exp2_approx(t));
    }
  } else {  // gelu, its tail as in core/fast_math.h with fewer terms
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float x = above(-14.0f, v[i]), a = fminf(fabsf(x), 14.0f);
      const float t = reciprocal_approx(fmaf(a, 0.4f, 1.0f));
      float p = fmaf(t, -0.0829570666f, 0.139608204f);
      p = fmaf(p, t, 0.124403648f);
      p = fmaf(p, t, 0.159173980f);
      p = fmaf(p, t, 0.159728557f);
      const float tail = p * t * exp2_approx(a * a * -0.721347520f);
      v[i] = x * (x < 0 ? tail : 1.0f - tail);
    }
  }
}

// One consumer's way out: 64 rows at a time, chunk by chunk.
template <class T>
class Sm90Output {
  using Sum = MmaSum<T::kMma>;
  static constexpr int kChunks = T::C.n / T::kChunk;

 public:
  __device__ Sm90Output(const Sm90Args& args, const CUtensorMap& map_y, const Sm90Shared<T>& shared,
                        int consumer)
      : args_(args), map_y_(map_y), consumer_(consumer) {
    features_ = args.features;
    slabs_ = shared.slabs + consumer * T::kSlabs * T::kSlab;
    columns_ = shared.columns + consumer * T::kVectors * T::C.n;
    first_row_ = T::C.ping_pong ? 0 : consumer * T::kConsumerRows;
    lane_ = threadIdx.x % 32;
    warp_ = threadIdx.x / 32 % 4;
  }

  // Before the sums are there. c, where it is one row for all, is on its way from here on.
  __device__ void begin(const Sm90Tile& t) {
    int index[2];
    item_index(args_, t.item, index);
    map_item(args_.y, index, at_y_);
    at_y_[2] += t.part;
    if (features_ & kBias) fetch_bias(t);
    if constexpr (T::kVectors == 2) {
      if (features_ & (kRowScales | kColScales)) fetch_scales(t);
    }
  }

  // Once the sums are there: what was fetched for the columns goes where all threads find it.
  __device__ void sums_ready() {
    if (!(features_ & (kBias | kColScales))) return;
    sync();  // the previous tile's has been used
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int col = i * 128 + threadIdx.x % 128;
      if (T::C.n < 128 && col >= T::C.n) continue;
      columns_[col] = as_float(args_.e.c.dtype, bias_[i]);
      if constexpr (T::kVectors == 2) columns_[T::C.n + col] = col_scale_[i];
    }
    sync();
  }

  // The sums of a chunk.
  __device__ __forceinline__ bool take(const Sum (&sums)[T::C.n / 2], int chunk,
                                       float (&v)[T::kChunk / 2]) const {
    visit_chunk<T::kChunk, 0, kChunks>(sums, chunk, [&](const Sum* from) {
#pragma unroll
      for (int i = 0; i < T::kChunk / 2; ++i) v[i] = from_sum(from[i], is_raw());
    });
    return true;
  }

  // 64 rows from `row` (in the tile) on. fetch(chunk, v) gives the sums of a chunk; false: that slab
  // is another block's. A loop, though registers must then be chosen at run time: straight code for
  // all chunks takes longer to come from memory than to run.
  template <class Fetch>
  __device__ __forceinline__ void rows(const Sm90Tile& t, int row, Fetch&& fetch) {
    const bool slabs = !T::C.full || (args_.store != StoreKind::kElements && is_whole(t, row));
#pragma unroll 1
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      float v[T::kChunk / 2];
      if (!fetch(chunk, v)) continue;
      if (!is_raw()) {
        scale(row, chunk * T::kChunk, v);
        if (features_ & kQuick) quick_activation(args_.e.activation, v);
      }
      if constexpr (T::C.full) {
        if ((features_ & ~kLight) || !slabs) finish_chunk(t, row, chunk, v, !slabs);
      }
      if (slabs) store_chunk(t, row, chunk * T::kChunk, v);
    }
  }

  __device__ bool is_raw() const { return features_ & kRaw; }

  __device__ void end() {
    if (is_leader()) tma_store_wait_read<0>();
  }

 private:
  // A box may not reach into the rows of another group.
  __device__ bool is_whole(const Sm90Tile& t, int row) const {
    return args_.groups.along == Groups::Along::kNone || t.m + row + 64 <= t.m_end;
  }
  __device__ void sync() const { named_barrier_sync(1 + consumer_, 128); }
  __device__ bool is_leader() const { return threadIdx.x % 128 == 0; }

  // Alpha, scales and bias of the chunk whose first column in the tile is `first`.
  __device__ __forceinline__ void scale(int row, int first, float (&v)[T::kChunk / 2]) const {
    using F = Fragment<T::kChunk / 2>;
    const float* column = columns_ + first + lane_ % 4 * 2;
    if (T::kVectors == 2 && (features_ & (kRowScales | kColScales))) {
      const auto multiply_columns = [&] {
#pragma unroll
        for (int i = 0; i < T::kChunk / 2; ++i) v[i] *= column[T::C.n + F::col_of(i)];
      };
      // a's factor first, so that a row's bits do not depend on how the product is turned.
      const bool columns = features_ & kColScales, first = args_.transposed;
      if (columns && first) multiply_columns();
      const int i64 = row / 64 % T::kMmas;
#pragma unroll
      for (int i = 0; i < T::kChunk / 2; ++i) v[i] *= row_scale_[i64][F::row_of(i) / 8];
      if (columns && !first) multiply_columns();
    } else {
      const float alpha = args_.alpha;
#pragma unroll
      for (int i = 0; i < T::kChunk / 2; ++i) v[i] *= alpha;
    }
    if (features_ & kBias) {
      const float beta = args_.beta;
#pragma unroll
      for (int i = 0; i < T::kChunk / 2; ++i) v[i] = fmaf(beta, column[F::col_of(i)], v[i]);
    }
  }

  // What is left of the epilogue of one chunk; `elements`: and to memory.
  __device__ __forceinline__ void finish_chunk(const Sm90Tile& t, int row, int chunk,
                                               float (&v)[T::kChunk / 2], bool elements) {
    Fragment<T::kChunk / 2> f;
#pragma unroll
    for (int i = 0; i < T::kChunk / 2; ++i) f.v[i] = v[i];
    f.row = t.m + row + warp_ * 16 + lane_ / 4;
    f.col = t.n + chunk * T::kChunk + lane_ % 4 * 2;
    f.row_end = t.m_end;
    f.col_end = t.n_end;
    const ItemOffsets at(args_, t.item);
    if (!is_raw()) apply_epilogue(args_, features_, f, at);
#pragma unroll
    for (int i = 0; i < T::kChunk / 2; ++i) v[i] = f.v[i];
    if (elements) store_elements(f, at.v[3]);
  }

  // The chunk at column `col` of the tile into a slab, which is stored with its last chunk.
  __device__ __forceinline__ void store_chunk(const Sm90Tile& t, int row, int col,
                                              const float (&v)[T::kChunk / 2]) {
    const bool wide = args_.store == StoreKind::kSlab32;
    const bool transposed = T::C.cluster_k || (T::kTransposable && args_.transposed);
    const int columns = wide ? T::kSlabColumns32 : T::kSlabColumns16;  // powers of 2
    const int first = col & (columns - 1);
    uint8_t* slab = slabs_ + (T::kSlabs > 1 ? slab_ * T::kSlab : 0);
    if (first == 0) {
      if (is_leader()) tma_store_wait_read<T::kSlabs - 1>();
      sync();
    }
    if (wide) {
      if (transposed) {
        chunk_to_slab32<T::kChunk, true>(v, slab, first, columns);
      } else {
        chunk_to_slab32<T::kChunk, false>(v, slab, first, columns);
      }
    } else {
      const bool bfloat = args_.e.y.dtype == DType::kBFloat16;
      if (transposed) {
        chunk_to_slab16<T::kChunk, true>(v, bfloat, slab, first);
      } else {
        chunk_to_slab16<T::kChunk, false>(v, bfloat, slab, first);
      }
    }
    if (first + T::kChunk < columns) return;
    fence_async_shared();
    sync();
    if (is_leader()) {
      const int r = t.m + row, c = t.n + col - first;
      if (transposed) {
        store_box(slab, r, c);
        if (wide) store_box(slab + columns * kSwizzleBytes, r + 32, c);
      } else {
        store_box(slab, c, r);
      }
      tma_store_commit();
    }
    slab_ ^= 1;
  }

  // As it is stored: to convert it here would be to wait for it.
  __device__ void fetch_bias(const Sm90Tile& t) {
    const Matrix& c = args_.e.c;
    const int64_t first = ItemOffsets(args_, t.item).v[2];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int col = t.n + i * 128 + threadIdx.x % 128;
      bias_[i] = 0;
      if (col >= t.n_end) continue;
      const int64_t at = first + col * c.col;
      bias_[i] =
          c.dtype == DType::kFloat32 ? c.as<const uint32_t>()[at] : c.as<const uint16_t>()[at];
    }
  }
  static __device__ float as_float(DType dtype, uint32_t bits) {
    if (dtype == DType::kFloat32) return __uint_as_float(bits);
    const auto low = static_cast<uint16_t>(bits);
    return dtype == DType::kFloat16 ? static_cast<float>(bit_cast_to<Half>(low))
                                    : static_cast<float>(bit_cast_to<BFloat16>(low));
  }

  __device__ void fetch_scales(const Sm90Tile& t) {
#pragma unroll
    for (int i = 0; i < T::kMmas; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = t.m + first_row_ + 64 * i + warp_ * 16 + lane_ / 4 + 8 * half;
        const bool scaled = (features_ & kRowScales) && r < args_.rows;
        row_scale_[i][half] = scaled ? args_.alpha * args_.scale_row.at(r, 0) : args_.alpha;
      }
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int col = t.n + i * 128 + threadIdx.x % 128;
      const bool scaled = (features_ & kColScales) && col < args_.cols;
      col_scale_[i] = scaled ? args_.scale_col.at(col, 0) : 1.0f;
    }
  }

  __device__ void store_elements(Fragment<T::kChunk / 2>& f, int64_t at) {
    const Matrix& y = args_.e.y;
    f.for_each(y, [&](float v, int64_t offset) {
      if (features_ & kRaw) {
        y.as<int>()[at + offset] = __float_as_int(v);
      } else {
        store_as(y, at + offset, v);
      }
    });
  }

  __device__ void store_box(const uint8_t* from, int inner, int outer) {
    const int at[4] = {inner, outer, at_y_[2], at_y_[3]};
    tma_store(&map_y_, from, at);
  }

  const Sm90Args& args_;
  const CUtensorMap& map_y_;
  uint8_t* slabs_;
  float* columns_;
  int consumer_, first_row_, lane_, warp_;
  uint32_t features_;
  int slab_ = 0;
  // What this thread fetches for the columns, and for its own rows.
  static constexpr int kColumns = (T::C.n + 127) / 128;
  uint32_t bias_[kColumns] = {};
  float col_scale_[kColumns], row_scale_[T::kMmas][2];
  int at_y_[4];
};

}  // namespace dlkern::gpu
