// wgmma: D[64, N] (+)= A[64, K] B[K, N] by a warpgroup, both operands in shared memory.
//
// Operands lie as bulk tensor copies with a 128-byte swizzle leave them, in rows of 128 bytes:
//   along k:     a row for each m (or n), 128 bytes of k; 8 rows are one swizzle atom of 1024 bytes.
//   along rows:  (16-bit types) chunks of 64 rows m (or n), in each a row of 128 bytes for each k.
// One instruction takes 32 bytes of k.
//
// D is spread over the warpgroup: of warp w, lane l, register 4 j + i holds row
// 16 w + l / 4 + 8 (i / 2), column 8 j + 2 (l % 4) + i % 2.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/prims/mma_kind.h"
#include "cuda/prims/ptx_sm90.cuh"

namespace dlkern::gpu {

template <Mma kMma>
using MmaSum = std::conditional_t<kMma == Mma::kInt8, int32_t, float>;

inline constexpr int kMmaBytes = 32;  // of k, in one instruction

// What an instruction needs to know of an operand in shared memory. `rows` is that of the chunk
// (64 for operands along rows).
template <bool kAlongK>
__device__ __forceinline__ uint64_t operand_descriptor(const void* tile, int k_rows) {
  // In units of 16 bytes: from one swizzle atom to the next along the other dimension (groups of 8
  // rows, or of 8 k), and between chunks of 64 rows for operands along rows.
  const uint64_t stride = 1024 >> 4;
  const uint64_t leading = kAlongK ? 1 : static_cast<uint64_t>(k_rows * kSwizzleBytes >> 4);
  constexpr uint64_t kSwizzle128 = 1;
  return ((shared_address(tile) & 0x3ffff) >> 4) | leading << 16 | stride << 32 | kSwizzle128 << 62;
}
// From one instruction's operand to the next one's along k, in a descriptor.
template <bool kAlongK>
inline constexpr uint64_t kDescriptorStep = kAlongK ? kMmaBytes >> 4
                                                    : (kMmaBytes / 2) * kSwizzleBytes >> 4;

// An operand whose elements are all the same: 8 rows of 16 bytes, unswizzled, that stand for all.
inline constexpr int kOnesBytes = 128;
__device__ __forceinline__ uint64_t constant_descriptor(const void* tile) {
  return (shared_address(tile) & 0x3ffff) >> 4;
}

// Wgmma<kMma, N, a along rows, b along rows>::run(d, a, b, add): d = a b, or d += a b.
template <Mma kMma, int N, bool kTransA, bool kTransB>
struct Wgmma;

// Registers of D in the text of an instruction, and as its operands.
#define DLK_D4_TEXT "%0, %1, %2, %3"
#define DLK_D8_TEXT DLK_D4_TEXT ", %4, %5, %6, %7"
#define DLK_D16_TEXT DLK_D8_TEXT ", %8, %9, %10, %11, %12, %13, %14, %15"
#define DLK_D32_TEXT \
  DLK_D16_TEXT ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define DLK_D64_TEXT                                                                 \
  DLK_D32_TEXT                                                                       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define DLK_D96_TEXT                                                                 \
  DLK_D64_TEXT                                                                       \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define DLK_D128_TEXT                                                                        \
  DLK_D96_TEXT                                                                               \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, " \
  "%111"                                                                                     \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "   \
  "%126, %127"
#define DLK_D4(type, i) type(d[i]), type(d[i + 1]), type(d[i + 2]), type(d[i + 3])
#define DLK_D8(type, i) DLK_D4(type, i), DLK_D4(type, i + 4)
#define DLK_D16(type, i) DLK_D8(type, i), DLK_D8(type, i + 8)
#define DLK_D32(type, i) DLK_D16(type, i), DLK_D16(type, i + 16)
#define DLK_D64(type, i) DLK_D32(type, i), DLK_D32(type, i + 32)
#define DLK_D96(type, i) DLK_D64(type, i), DLK_D32(type, i + 64)
#define DLK_D128(type, i) DLK_D64(type, i), DLK_D64(type, i + 64)

// One specialisation: `types` as in the instruction's name; a, b and add are operands number
// count, count + 1 and count + 2 after the registers.
#define DLK_WGMMA(kind, n, count, a, b, p, ta, tb, types, type, sum)                              \
  template <bool kTransA, bool kTransB>                                                           \
  struct Wgmma<kind, n, kTransA, kTransB> {                                                       \
    __device__ __forceinline__ static void run(sum (&d)[count], uint64_t desc_a, uint64_t desc_b, \
                                               bool add) {                                        \
      if constexpr (is_16_bit(kind)) {                                                            \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p                                        \
                     ", 0;\n"                                                                     \
                     "wgmma.mma_async.sync.aligned.m64n" #n types " {" DLK_D##count##_TEXT        \
                     "}, " a ", " b ", p, 1, 1, " ta ", " tb ";\n}"                               \
                     : DLK_D##count(type, 0)                                                      \
                     : "l"(desc_a), "l"(desc_b), "r"(int{add}), "n"(int{kTransA}),                \
                       "n"(int{kTransB}));                                                        \
      } else if constexpr (kind != Mma::kInt8) {                                                  \
        static_assert(!kTransA && !kTransB);                                                      \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p                                        \
                     ", 0;\n"                                                                     \
                     "wgmma.mma_async.sync.aligned.m64n" #n types " {" DLK_D##count##_TEXT        \
                     "}, " a ", " b ", p, 1, 1;\n}"                                               \
                     : DLK_D##count(type, 0)                                                      \
                     : "l"(desc_a), "l"(desc_b), "r"(int{add}));                                  \
      } else {                                                                                    \
        static_assert(!kTransA && !kTransB);                                                      \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p                                        \
                     ", 0;\n"                                                                     \
                     "wgmma.mma_async.sync.aligned.m64n" #n types " {" DLK_D##count##_TEXT        \
                     "}, " a ", " b ", p;\n}"                                                     \
                     : DLK_D##count(type, 0)                                                      \
                     : "l"(desc_a), "l"(desc_b), "r"(int{add}));                                  \
      }                                                                                           \
    }                                                                                             \
  };
#define DLK_WGMMA_SIZES(kind, types, type, sum)                                  \
  DLK_WGMMA(kind, 8, 4, "%4", "%5", "%6", "%7", "%8", types, type, sum)          \
  DLK_WGMMA(kind, 16, 8, "%8", "%9", "%10", "%11", "%12", types, type, sum)      \
  DLK_WGMMA(kind, 32, 16, "%16", "%17", "%18", "%19", "%20", types, type, sum)   \
  DLK_WGMMA(kind, 64, 32, "%32", "%33", "%34", "%35", "%36", types, type, sum)   \
  DLK_WGMMA(kind, 128, 64, "%64", "%65", "%66", "%67", "%68", types, type, sum)  \
  DLK_WGMMA(kind, 192, 96, "%96", "%97", "%98", "%99", "%100", types, type, sum) \
  DLK_WGMMA(kind, 256, 128, "%128", "%129", "%130", "%131", "%132", types, type, sum)

DLK_WGMMA_SIZES(Mma::kBFloat16, "k16.f32.bf16.bf16", "+f", float)
DLK_WGMMA_SIZES(Mma::kFloat16, "k16.f32.f16.f16", "+f", float)
DLK_WGMMA_SIZES(Mma::kTf32, "k8.f32.tf32.tf32", "+f", float)
DLK_WGMMA_SIZES(Mma::kE4M3, "k32.f32.e4m3.e4m3", "+f", float)
DLK_WGMMA_SIZES(Mma::kE4M3E5M2, "k32.f32.e4m3.e5m2", "+f", float)
DLK_WGMMA_SIZES(Mma::kE5M2E4M3, "k32.f32.e5m2.e4m3", "+f", float)
DLK_WGMMA_SIZES(Mma::kE5M2, "k32.f32.e5m2.e5m2", "+f", float)
DLK_WGMMA_SIZES(Mma::kInt8, "k32.s32.s8.s8", "+r", int32_t)

#undef DLK_WGMMA_SIZES
#undef DLK_WGMMA
#undef DLK_D4
#undef DLK_D8
#undef DLK_D16
#undef DLK_D32
#undef DLK_D64
#undef DLK_D96
#undef DLK_D128
#undef DLK_D4_TEXT
#undef DLK_D8_TEXT
#undef DLK_D16_TEXT
#undef DLK_D32_TEXT
#undef DLK_D64_TEXT
#undef DLK_D96_TEXT
#undef DLK_D128_TEXT

}  // namespace dlkern::gpu
