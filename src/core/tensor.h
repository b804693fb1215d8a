// Tensor: a DLTensor with its metadata checked and normalised once.
#pragma once

#include <dlpack/dlpack.h>

#include <array>
#include <cstdint>
#include <string>

#include "core/dtype.h"

namespace dlkern {

inline constexpr int kMaxDims = 8;
using Dims = std::array<int64_t, kMaxDims>;

struct Device {
  bool is_gpu = false;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};
std::string to_string(const Device& device);

// A view of somebody else's memory. Strides count elements and are normalised: a dimension of
// size 1 has the stride that a contiguous tensor would have there, so that odd strides of size-1
// dimensions never change how an op runs. An absent optional tensor is false in a condition.
struct Tensor {
  const char* name = "";  // the argument's name, for messages
  void* data = nullptr;   // byte_offset is already added
  DType dtype = DType::kUnknown;
  int ndim = 0;
  Dims shape{};
  Dims strides{};
  Device device;
  bool present = false;

  explicit operator bool() const { return present; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int64_t numel() const;
  bool is_contiguous() const;  // row-major, no gaps
};

// Builds the view; throws INVALID_ARGUMENT naming the argument where the metadata make no sense
// (NULL, more than kMaxDims dimensions, negative extent, misaligned data, unknown device).
Tensor make_tensor(const char* name, const DLTensor* t);

// t with the strides of a contiguous tensor of its shape: for other memory, or for an index that
// walks row-major positions along with memory.
inline Tensor row_major(Tensor t) {
  int64_t stride = 1;
  for (int d = t.ndim - 1; d >= 0; stride *= t.shape[d--]) t.strides[d] = stride;
  return t;
}

// "[2, 3]"
std::string shape_string(const int64_t* shape, int ndim);
inline std::string shape_string(const Tensor& t) { return shape_string(t.shape.data(), t.ndim); }

bool same_shape(const Tensor& a, const Tensor& b);

// t with dimensions of extent 1 put in front, up to a rank of ndim.
Tensor with_rank(const Tensor& t, int ndim);

// Whether t broadcasts to the shape of `to`.
bool broadcasts(const Tensor& t, const Tensor& to);

// Distinct indices that share one address (a broadcast view): never valid for an output.
bool has_internal_overlap(const Tensor& t);

// The bytes from a tensor's lowest element to its highest, half open; of a tensor with elements. Only
// along the dimensions whose strides are no multiples of `period` bytes; 0: along all.
struct ByteRange {
  intptr_t low, high;
};
ByteRange byte_range(const Tensor& t, intptr_t period = 0);

// Whether two tensors may share bytes. Views of one array that interleave (x[0::2] and x[1::2], the
// halves of its columns) are recognised as disjoint.
bool may_overlap(const Tensor& a, const Tensor& b);

}  // namespace dlkern
