#include "core/tensor.h"

#include <cstdlib>
#include <numeric>

namespace dlkern {

DType dtype_of(DLDataType t) {
  if (t.lanes != 1) return DType::kUnknown;
  switch (t.code) {
    case kDLFloat:
      return t.bits == 64   ? DType::kFloat64
             : t.bits == 32 ? DType::kFloat32
             : t.bits == 16 ? DType::kFloat16
                            : DType::kUnknown;
    case kDLBfloat:
      return t.bits == 16 ? DType::kBFloat16 : DType::kUnknown;
    case kDLFloat8_e4m3fn:
      return DType::kFloat8E4M3;
    case kDLFloat8_e5m2:
      return DType::kFloat8E5M2;
    case kDLInt:
      return t.bits == 64   ? DType::kInt64
             : t.bits == 32 ? DType::kInt32
             : t.bits == 8  ? DType::kInt8
                            : DType::kUnknown;
    case kDLUInt:
      return t.bits == 64 ? DType::kUInt64 : t.bits == 8 ? DType::kUInt8 : DType::kUnknown;
    case kDLBool:
      return t.bits == 8 ? DType::kBool : DType::kUnknown;
    default:
      return DType::kUnknown;
  }
}

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return "float64";
    case DType::kFloat32:
      return "float32";
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat8E4M3:
      return "float8_e4m3fn";
    case DType::kFloat8E5M2:
      return "float8_e5m2";
    case DType::kInt8:
      return "int8";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kUInt8:
      return "uint8";
    case DType::kUInt64:
      return "uint64";
    case DType::kBool:
      return "bool";
    case DType::kUnknown:
      break;
  }
  return "unknown";
}

std::string dtype_name(DLDataType t) {
  const DType known = dtype_of(t);
  if (known != DType::kUnknown) return dtype_name(known);
  const char* base = "dtype code";
  switch (t.code) {
    case kDLInt:
      base = "int";
      break;
    case kDLUInt:
      base = "uint";
      break;
    case kDLFloat:
      base = "float";
      break;
    case kDLBfloat:
      base = "bfloat";
      break;
    case kDLComplex:
      base = "complex";
      break;
    case kDLBool:
      base = "bool";
      break;
    default:
      return cat("DLPack dtype (code ", int{t.code}, ", ", int{t.bits}, " bits, ", t.lanes,
                 " lanes)");
  }
  return t.lanes == 1 ? cat(base, int{t.bits}) : cat(base, int{t.bits}, "x", t.lanes);
}

size_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64:
    case DType::kUInt64:
      return 8;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kBool:
      return 1;
    case DType::kUnknown:
      break;
  }
  return 1;
}

std::string to_string(const Device& device) {
  if (!device.is_gpu) return "cpu";
  return cat("cuda:", device.index);
}

int64_t Tensor::numel() const {
  int64_t n = 1;
  for (int d = 0; d < ndim; ++d) n *= shape[d];
  return n;
}

bool Tensor::is_contiguous() const {
  int64_t expected = 1;
  for (int d = ndim - 1; d >= 0; --d) {
    if (shape[d] == 0) return true;
    if (shape[d] != 1 && strides[d] != expected) return false;
    expected *= shape[d];
  }
  return true;
}

static Device device_of(const char* name, DLDevice device) {
  switch (device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
    case kDLROCMHost:
      return {false, 0};
#if defined(DLKERN_WITH_HIP)
    case kDLROCM:
      return {true, device.device_id};
#else
    case kDLCUDA:
    case kDLCUDAManaged:
#if !defined(DLKERN_WITH_CUDA)
      fail(DLK_NOT_SUPPORTED, name, " is on cuda:", device.device_id,
           ", but this build of dlkern has only the CPU backend; reinstall it with "
           "DLKERN_GPU=cuda pip install --force-reinstall . (in its sources)");
#endif
      return {true, device.device_id};
#endif
    default:
      fail(DLK_NOT_SUPPORTED, name, " is on a device of DLPack type ",
           static_cast<int>(device.device_type), ", which this build of dlkern does not serve");
  }
}

// The bytes of this many elements of any type can be counted in int64_t, with room for rounding up.
static constexpr int64_t kMaxElements = int64_t{1} << 59;

Tensor make_tensor(const char* name, const DLTensor* t) {
  if (!t) fail(DLK_INVALID_ARGUMENT, name, " is NULL, expected a tensor");
  Tensor r;
  r.name = name;
  r.present = true;
  if (t->ndim < 0 || t->ndim > kMaxDims) {
    fail(DLK_INVALID_ARGUMENT, name, " has ", t->ndim, " dimensions, expected at most ", kMaxDims);
  }
  r.ndim = t->ndim;
  r.device = device_of(name, t->device);
  r.dtype = dtype_of(t->dtype);
  if (r.dtype == DType::kUnknown) {
    fail(DLK_UNSUPPORTED_DTYPE, name, ".dtype is ", dtype_name(t->dtype),
         ", which no dlkern op takes");
  }
  if (r.ndim > 0 && !t->shape) fail(DLK_INVALID_ARGUMENT, name, ".shape is NULL");
  bool empty = false;
  for (int d = 0; d < r.ndim; ++d) {
    r.shape[d] = t->shape[d];
    if (r.shape[d] < 0) {
      fail(DLK_INVALID_ARGUMENT, name, ".shape is ", shape_string(t->shape, r.ndim),
           ", expected no negative extent");
    }
    empty |= r.shape[d] == 0;
  }
  int64_t contiguous = 1;
  for (int d = r.ndim - 1; d >= 0; --d) {
    // A size-1 dimension is never stepped over, whatever its stride says.
    r.strides[d] = t->strides && r.shape[d] != 1 ? t->strides[d] : contiguous;
    // (Where there are no elements, strides do not matter and extents may be anything.)
    if (!empty && __builtin_mul_overflow(contiguous, r.shape[d], &contiguous))
      contiguous = INT64_MAX;
  }
  if (contiguous > kMaxElements) {
    fail(DLK_INVALID_ARGUMENT, name, ".shape is ", shape_string(t->shape, r.ndim),
         ", expected at most 2^59 elements");
  }
  if (!empty) {
    if (!t->data) fail(DLK_INVALID_ARGUMENT, name, ".data is NULL, expected an address");
    r.data = static_cast<char*>(t->data) + t->byte_offset;
    if (reinterpret_cast<uintptr_t>(r.data) % dtype_size(r.dtype) != 0) {
      fail(DLK_INVALID_ARGUMENT, name, " is not aligned to its item size of ", dtype_size(r.dtype),
           " bytes");
    }
  }
  return r;
}

std::string shape_string(const int64_t* shape, int ndim) {
  std::string s = "[";
  for (int d = 0; d < ndim; ++d) s += (d ? ", " : "") + std::to_string(shape[d]);
  return s + "]";
}

Tensor with_rank(const Tensor& t, int ndim) {
  Tensor r = t;
  const int missing = ndim - t.ndim;
  r.ndim = ndim;
  for (int d = ndim - 1; d >= 0; --d) {
    r.shape[d] = d < missing ? 1 : t.shape[d - missing];
    r.strides[d] = d < missing ? 0 : t.strides[d - missing];
  }
  return r;
}

bool broadcasts(const Tensor& t, const Tensor& to) {
  bool fits = t.ndim <= to.ndim;
  for (int d = 1; fits && d <= t.ndim; ++d) {
    const int64_t extent = t.shape[t.ndim - d];
    fits = extent == 1 || extent == to.shape[to.ndim - d];
  }
  return fits;
}

bool same_shape(const Tensor& a, const Tensor& b) {
  if (a.ndim != b.ndim) return false;
  for (int d = 0; d < a.ndim; ++d) {
    if (a.shape[d] != b.shape[d]) return false;
  }
  return true;
}

// Sorted by |stride|, each dimension must step past all that the smaller ones span. (Sufficient,
// not necessary; views for which it fails without overlapping do not come out of frameworks.)
bool has_internal_overlap(const Tensor& t) {
  if (t.numel() <= 1) return false;
  std::array<int, kMaxDims> order{};
  int n = 0;
  for (int d = 0; d < t.ndim; ++d) {
    if (t.shape[d] > 1) order[n++] = d;
  }
  for (int i = 1; i < n; ++i) {
    for (int j = i; j > 0 && std::llabs(t.strides[order[j]]) < std::llabs(t.strides[order[j - 1]]);
         --j) {
      std::swap(order[j], order[j - 1]);
    }
  }
  int64_t span = 1;
  for (int i = 0; i < n; ++i) {
    const int64_t stride = std::llabs(t.strides[order[i]]);
    if (stride < span) return true;
    span = stride * (t.shape[order[i]] - 1) + span;
  }
  return false;
}

ByteRange byte_range(const Tensor& t, intptr_t period) {
  const auto item = static_cast<intptr_t>(dtype_size(t.dtype));
  intptr_t low = reinterpret_cast<intptr_t>(t.data);
  intptr_t high = low + item;
  for (int d = 0; d < t.ndim; ++d) {
    if (period != 0 && t.strides[d] * item % period == 0) continue;
    const intptr_t extent = t.strides[d] * (t.shape[d] - 1) * item;
    (extent < 0 ? low : high) += extent;
  }
  return {low, high};
}

namespace {

// Whether addresses of a and b differ even modulo `period` bytes.
bool disjoint_modulo(intptr_t period, const Tensor& a, const Tensor& b) {
  const ByteRange ra = byte_range(a, period), rb = byte_range(b, period);
  const intptr_t apart = ((rb.low - ra.low) % period + period) % period;
  return apart >= ra.high - ra.low && apart + (rb.high - rb.low) <= period;
}

}  // namespace

bool may_overlap(const Tensor& a, const Tensor& b) {
  if (!a || !b || a.numel() == 0 || b.numel() == 0) return false;
  const ByteRange ra = byte_range(a), rb = byte_range(b);
  if (ra.high <= rb.low || rb.high <= ra.low) return false;
  // Any stride may be a period that keeps the two apart, and so may a divisor of them all.
  int64_t all = 0;
  for (const Tensor* t : {&a, &b}) {
    for (int d = 0; d < t->ndim; ++d) {
      if (t->shape[d] <= 1 || t->strides[d] == 0) continue;
      const int64_t period = std::llabs(t->strides[d]) * static_cast<int64_t>(dtype_size(t->dtype));
      if (disjoint_modulo(period, a, b)) return false;
      all = std::gcd(all, period);
    }
  }
  return all == 0 || !disjoint_modulo(all, a, b);
}

}  // namespace dlkern
