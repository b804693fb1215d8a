// Hopper's own instructions, one to a function: bulk tensor copies (TMA), transaction barriers,
// warpgroup ordering, clusters, register budgets. wgmma itself is in wgmma.cuh.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <cstring>

#include "cuda/prims/ptx.cuh"

namespace dlkern::gpu {

// ---- Barriers that count arrivals and bytes ----------------------------------------------------

using Barrier = uint64_t;  // in shared memory

__device__ __forceinline__ void barrier_init(Barrier* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals));
}
// Makes initialised barriers visible to the copy engine and to the other blocks of the cluster.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
// Arrives, and expects so many bytes of bulk copies before the phase may end.
__device__ __forceinline__ void barrier_arrive_expect(Barrier* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
// Arrives at the same barrier of another block of the cluster.
__device__ __forceinline__ void barrier_arrive_at(Barrier* barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}
__device__ __forceinline__ bool barrier_try_wait(Barrier* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}
// Until the phase of this parity is over.
__device__ __forceinline__ void barrier_wait(Barrier* barrier, uint32_t parity) {
  while (!barrier_try_wait(barrier, parity)) {
  }
}

// Barrier number `id` (1 to 15) among so many threads of the block.
__device__ __forceinline__ void named_barrier_sync(uint32_t id, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- Bulk tensor copies ------------------------------------------------------------------------

__device__ __forceinline__ void tma_prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// A box of a tensor of 4 dimensions to shared memory; its bytes count at the barrier.
__device__ __forceinline__ void tma_load(void* to, const CUtensorMap* map, Barrier* barrier,
                                         const int (&at)[4]) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
      : "memory");
}
// The same to the same place in each block of the cluster whose bit is set in `blocks`.
__device__ __forceinline__ void tma_load_multicast(void* to, const CUtensorMap* map,
                                                   Barrier* barrier, const int (&at)[4],
                                                   uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]),
      "h"(blocks)
      : "memory");
}
// Columns of a convolution's input (make_im2col_map), for the filter tap (t, r, s): the input pixels
// of `pixels` output pixels that follow each other in the order n, d, h, w, from the output pixel
// (n, z, p, q) on. For rank 4:
//
//     at     = {c, q stride_w - padding_w, p stride_h - padding_h, n}
//     offset = {s dilation_w, r dilation_h}
//
// c is the first channel. at[] is where the first tap is, so lies between the map's corners; the
// engine goes on from there in steps, to the next line at the upper corner, to the next item after
// the last line, and reads at + offset. Offsets are never negative: a backward pass, whose taps run
// the other way, counts them from its last one. Rank 3 lacks h, rank 5 has d: at = {c, w, h, d, n},
// offset = {w, h, d}.
template <int kRank, int kSpatial>
__device__ __forceinline__ void tma_load_im2col(void* to, const CUtensorMap* map, Barrier* barrier,
                                                const int (&at)[kRank],
                                                const uint16_t (&offset)[kSpatial]) {
  static_assert(kRank >= 3 && kRank <= 5 && kSpatial == kRank - 2);
  if constexpr (kRank == 3) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5}], [%2], {%6};" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "h"(offset[0])
        : "memory");
  } else if constexpr (kRank == 4) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]),
        "h"(offset[0]), "h"(offset[1])
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], {%8, %9, %10};" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]),
        "r"(at[4]), "h"(offset[0]), "h"(offset[1]), "h"(offset[2])
        : "memory");
  }
}
// Rank 4, to the same place in each block of the cluster whose bit is set in `blocks`.
__device__ __forceinline__ void tma_load_im2col_multicast(void* to, const CUtensorMap* map,
                                                          Barrier* barrier, const int (&at)[4],
                                                          const uint16_t (&offset)[2],
                                                          uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8}, %9;" ::"r"(
          shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]),
      "h"(offset[0]), "h"(offset[1]), "h"(blocks)
      : "memory");
}
// A box from shared memory to a tensor; what lies outside the tensor is not written.
__device__ __forceinline__ void tma_store(const CUtensorMap* map, const void* from,
                                          const int (&at)[4]) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          map),
      "r"(shared_address(from)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
      : "memory");
}
// Pixels that follow each other in the order n, d, h, w, from `at` on, to where tma_load_im2col with no
// offset reads them; those behind the last item's and channels beyond C are not written.
template <int kRank>
__device__ __forceinline__ void tma_store_im2col(const CUtensorMap* map, const void* from,
                                                 const int (&at)[kRank]) {
  static_assert(kRank == 4 || kRank == 5);
  if constexpr (kRank == 4) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group"
        " [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
        "r"(shared_address(from)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.im2col_no_offs.bulk_group"
        " [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(map),
        "r"(shared_address(from)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
        : "memory");
  }
}
__device__ __forceinline__ void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until all but the last kLeft groups of this thread's stores have read their shared memory.
template <int kLeft>
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLeft) : "memory");
}
// Ordinary writes to shared memory before it are seen by bulk copies and wgmma after it.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- Matrices of 8 x 8 elements of 16 bits -----------------------------------------------------

template <bool kTransposed>
__device__ __forceinline__ void stmatrix_x4(void* row, uint32_t r0, uint32_t r1, uint32_t r2,
                                            uint32_t r3) {
  if constexpr (kTransposed) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     shared_address(row)),
                 "r"(r0), "r"(r1), "r"(r2), "r"(r3)
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     shared_address(row)),
                 "r"(r0), "r"(r1), "r"(r2), "r"(r3)
                 : "memory");
  }
}

// ---- Clusters ----------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ uint32_t cluster_size() {
  uint32_t size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}
// All threads of the cluster have come here, and see what the others wrote before.
__device__ __forceinline__ void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}
// All threads of the cluster have come here: no wait for their writes, which takes much longer.
__device__ __forceinline__ void cluster_meet() {
  asm volatile(
      "barrier.cluster.arrive.relaxed.aligned;\n"
      "barrier.cluster.wait.aligned;" ::
          : "memory");
}
// The two halves of cluster_meet.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// v to the same place in the shared memory of a block of the cluster.
__device__ __forceinline__ void write_to_block(uint32_t* p, uint32_t rank, uint32_t v) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "st.shared::cluster.b32 [remote], %2;\n"
      "}" ::"r"(shared_address(p)),
      "r"(rank), "r"(v)
      : "memory");
}
template <class T>
__device__ __forceinline__ void write_to_block(T* p, uint32_t rank, const T& v) {
  constexpr int kWords = sizeof(T) / sizeof(uint32_t);
  static_assert(sizeof(T) == kWords * sizeof(uint32_t));
  uint32_t words[kWords];
  memcpy(words, &v, sizeof(v));
#pragma unroll
  for (int k = 0; k < kWords; ++k)
    write_to_block(reinterpret_cast<uint32_t*>(p) + k, rank, words[k]);
}

// What lies at the same place in the shared memory of another block of the cluster.
template <class T>
__device__ __forceinline__ T read_from_block(const T* p, uint32_t rank) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  T v;
  if constexpr (sizeof(T) == 16) {
    const auto* halves = reinterpret_cast<const uint64_t*>(p);
    const uint64_t bits[2] = {read_from_block(halves, rank), read_from_block(halves + 1, rank)};
    memcpy(&v, bits, sizeof(v));
  } else if constexpr (sizeof(T) == 4) {
    uint32_t bits;
    asm volatile(
        "{\n"
        ".reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %1, %2;\n"
        "ld.shared::cluster.b32 %0, [remote];\n"
        "}"
        : "=r"(bits)
        : "r"(shared_address(p)), "r"(rank)
        : "memory");
    memcpy(&v, &bits, sizeof(v));
  } else {
    uint64_t bits;
    asm volatile(
        "{\n"
        ".reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %1, %2;\n"
        "ld.shared::cluster.b64 %0, [remote];\n"
        "}"
        : "=l"(bits)
        : "r"(shared_address(p)), "r"(rank)
        : "memory");
    memcpy(&v, &bits, sizeof(v));
  }
  return v;
}
// 16 bytes of it.
__device__ __forceinline__ float4 load_from_block(const float4* p, uint32_t rank) {
  float4 v;
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n"
      "}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(shared_address(p)), "r"(rank)
      : "memory");
  return v;
}

// ---- Warpgroups --------------------------------------------------------------------------------

// What is the same in all lanes of a warp, such that the compiler knows it: addresses made of it need
// no detour to the registers that these instructions take them from.
__device__ __forceinline__ int warp_uniform(int v) { return __shfl_sync(0xffffffff, v, 0); }
// True in one lane of a whole warp, always the same one. Unlike after a comparison of lanes the
// compiler knows that there is only one.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}
template <int kRegisters>
__device__ __forceinline__ void register_limit_lower() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void register_limit_raise() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
// Two numbers rounded to 8-bit floats that saturate, the first in the low byte.
__device__ __forceinline__ uint16_t pack_float8_e4m3(float low, float high) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ uint16_t pack_float8_e5m2(float low, float high) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}
// Registers and shared memory written before it may be read by wgmma after it.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until all but the last kLeft committed groups are done.
template <int kLeft>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

}  // namespace dlkern::gpu
