// Kernels over lists of flat tensors: which block works on which part of which tensor.
//
// A table with the addresses of the tensors travels in the kernel's arguments, so that nothing is
// allocated or copied and a captured launch keeps it. It holds some hundred items; a longer list
// takes several launches. All items are cut into chunks of one size, one for each block.
//
//     ListLauncher<2> launcher(chunk, [&](const TensorTable<2>& table) {
//       launch_kernel(my_kernel, table.chunks(), kThreads, 0, stream, table);
//     });
//     for (...) launcher.add({x, y}, numel);
//     launcher.flush();
//
//     __global__ void my_kernel(const DLK_GRID_CONSTANT TensorTable<2> table) {
//       const Chunk chunk = table.find(blockIdx.x);
//       const float* x = table.at<float>(chunk, 0); ...
#pragma once

#include <array>

#include "core/index.h"
#include "cuda/prims/gpu.h"

namespace dlkern::gpu {

// Kernel arguments are limited to 4 KB, on NVIDIA since CUDA 12.1 to 32 KB; half of that costs less
// per launch and holds most models in one.
#if defined(__HIPCC__)
inline constexpr int kTableBytes = 3584;
#else
inline constexpr int kTableBytes = 16384;
#endif

struct Chunk {
  int item;
  int64_t begin, end;  // elements
};

// Items of N tensors with equal numbers of elements.
template <int N>
struct TensorTable {
  static constexpr int kCapacity = (kTableBytes - 32) / (8 * N + 12);

  void* data[kCapacity][N];
  int64_t numel[kCapacity];
  int32_t last_chunk[kCapacity];  // one past the item's last one, in the order of the list
  int count;
  int64_t chunk;        // elements
  int64_t first_chunk;  // of this table, in the whole list

  __host__ __device__ int chunks() const { return count ? last_chunk[count - 1] : 0; }

  // The item is the first whose last chunk is behind: all threads take the same steps.
  __device__ __forceinline__ Chunk find(int block) const {
    int low = 0, high = count - 1;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (last_chunk[middle] > block) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    const int64_t begin = (block - (low ? last_chunk[low - 1] : 0)) * chunk;
    const int64_t end = begin + chunk < numel[low] ? begin + chunk : numel[low];
    return {low, begin, end};
  }
  template <class T>
  __device__ __forceinline__ T* at(const Chunk& c, int n) const {
    return static_cast<T*>(data[c.item][n]);
  }
};

// Fills tables and launches full ones.
template <int N, class Launch>
class ListLauncher {
 public:
  ListLauncher(int64_t chunk, Launch launch) : launch_(launch) {
    table_.count = 0;
    table_.chunk = chunk;
    table_.first_chunk = 0;
  }
  void add(const std::array<void*, N>& data, int64_t numel) {
    if (numel == 0) return;
    if (table_.count == TensorTable<N>::kCapacity) flush();
    const int i = table_.count;
    for (int n = 0; n < N; ++n) table_.data[i][n] = data[n];
    table_.numel[i] = numel;
    table_.last_chunk[i] = table_.chunks() + static_cast<int32_t>(ceil_div(numel, table_.chunk));
    ++table_.count;
  }
  void flush() {
    if (table_.count == 0) return;
    launch_(table_);
    table_.first_chunk += table_.chunks();
    table_.count = 0;
  }

 private:
  TensorTable<N> table_;  // left uninitialised but for what is used
  Launch launch_;
};
template <int N, class Launch>
ListLauncher<N, Launch> make_list_launcher(int64_t chunk, Launch launch) {
  return {chunk, launch};
}

}  // namespace dlkern::gpu
