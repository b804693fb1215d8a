// What the tests of the kernels' building blocks share: named cases, arrays on the device, inputs
// whose products and sums are exact, and the comparison.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "core/status.h"
#include "cuda/prims/gpu.h"

namespace dlkern::test {

// run() throws where something is wrong.
struct Case {
  const char* name;
  void (*run)();
};
// In the *_sm90.cu files, which a program for Hopper alone has.
std::span<const Case> sm90_cases();
std::span<const Case> sm90_copy_cases();

// An array on the device; every byte is 0xff at first (NaN, or -1).
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : size_(size) {
    gpu::check(cudaMalloc(&data_, size * sizeof(T)), "memory of a test");
    gpu::check(cudaMemset(data_, 0xff, size * sizeof(T)), "memory of a test");
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    gpu::check(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice),
               "input of a test");
  }
  ~DeviceArray() { (void)cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;

  T* data() const { return data_; }
  // After all kernels before.
  std::vector<T> read() const {
    std::vector<T> values(size_);
    gpu::check(cudaDeviceSynchronize(), "kernel");
    gpu::check(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
               "result of a test");
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t size_;
};

// The i-th of a sequence without a pattern: multiples of 1/2 from -2 to 2, and of integer types from
// -4 to 4. Their products, and sums of some hundreds of them, are exact in every type that sums.
template <class T>
T small(size_t i) {
  uint64_t hash = (i + 1) * 0x9e3779b97f4a7c15u;
  hash = (hash ^ hash >> 29) * 0xbf58476d1ce4e5b9u;
  const int value = static_cast<int>((hash >> 33) % 9) - 4;
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(value);
  } else {
    return static_cast<T>(0.5f * static_cast<float>(value));
  }
}
template <class T>
std::vector<T> small_values(size_t size, size_t seed = 0) {
  std::vector<T> values(size);
  for (size_t i = 0; i < size; ++i) values[i] = small<T>(i + 1000 * seed);
  return values;
}

// 16 bits each, no two of 2^16 neighbours alike, the first of them not 0.
inline std::vector<uint16_t> distinct_values(size_t size) {
  std::vector<uint16_t> values(size);
  for (size_t i = 0; i < size; ++i) values[i] = static_cast<uint16_t>(40503 * (i + 1));
  return values;
}

template <class T>
double as_double(T v) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<double>(v);
  } else {
    return static_cast<float>(v);
  }
}

// Blocks in clusters of `cluster`; shared memory is what the kernel declares.
template <class... Params, class... Args>
void launch(void (*kernel)(Params...), int blocks, int threads, int cluster, const Args&... args) {
  std::tuple<Params...> values(args...);
  std::apply(
      [&](auto&... value) {
        void* pointers[] = {static_cast<void*>(&value)...};
        gpu::launch_raw(reinterpret_cast<const void*>(kernel), blocks, threads, 0, nullptr,
                        pointers, cluster);
      },
      values);
}

// Place of a byte of a line of 128 bytes, lines being swizzled over 8; its own inverse within a line.
constexpr int swizzled(int line, int byte) { return line * 128 + (byte ^ (line % 8 << 4)); }

// got[i] == expected(i) for all i, NaN as well. `what` names the array.
template <class T, class Expected>
void expect_equal(const std::string& what, const std::vector<T>& got, Expected&& expected) {
  for (size_t i = 0; i < got.size(); ++i) {
    const double value = as_double(got[i]), wanted = static_cast<double>(expected(i));
    if (value != wanted && !(value != value && wanted != wanted)) {
      fail(DLK_INTERNAL, what, "[", i, "] is ", value, ", expected ", wanted);
    }
  }
}

}  // namespace dlkern::test
