// The element types dlkern knows, and dispatch from a run-time DType to a C++ type.
#pragma once

#include <dlpack/dlpack.h>

#include <cstddef>
#include <cstdint>

#include "core/float16.h"
#include "core/status.h"

namespace dlkern {

enum class DType {
  kFloat64,
  kFloat32,
  kFloat16,
  kBFloat16,
  kFloat8E4M3,
  kFloat8E5M2,
  kInt8,
  kInt32,
  kInt64,
  kUInt8,
  kUInt64,
  kBool,
  kUnknown  // any other DLPack type; no op takes it
};

DType dtype_of(DLDataType type);
const char* dtype_name(DType dtype);
// The name of any DLPack type, for messages: "float32", "complex64", "int16".
std::string dtype_name(DLDataType type);
size_t dtype_size(DType dtype);

inline bool is_floating(DType t) {
  return t == DType::kFloat64 || t == DType::kFloat32 || t == DType::kFloat16 ||
         t == DType::kBFloat16;
}
inline bool is_float8(DType t) { return t == DType::kFloat8E4M3 || t == DType::kFloat8E5M2; }
inline bool is_index(DType t) { return t == DType::kInt32 || t == DType::kInt64; }

// Calls f.template operator()<T>() with the C++ type of a floating dtype:
//     dispatch_floating(x.dtype, [&]<class T>() { launch<T>(problem); });
template <class F>
decltype(auto) dispatch_floating(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat64:
      return f.template operator()<double>();
    case DType::kFloat32:
      return f.template operator()<float>();
    case DType::kFloat16:
      return f.template operator()<Half>();
    case DType::kBFloat16:
      return f.template operator()<BFloat16>();
    default:
      fail(DLK_INTERNAL, "dispatch on dtype ", dtype_name(dtype), ", which is not floating");
  }
}

// The same for int32 and int64.
template <class F>
decltype(auto) dispatch_index(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kInt32:
      return f.template operator()<int32_t>();
    case DType::kInt64:
      return f.template operator()<int64_t>();
    default:
      fail(DLK_INTERNAL, "dispatch on dtype ", dtype_name(dtype), ", which is no index type");
  }
}

// f.template operator()<T>() with an integer type of a dtype's size.
template <class F>
void dispatch_item_size(DType dtype, F&& f) {
  switch (dtype_size(dtype)) {
    case 1:
      return f.template operator()<uint8_t>();
    case 2:
      return f.template operator()<uint16_t>();
    case 4:
      return f.template operator()<uint32_t>();
    default:
      return f.template operator()<uint64_t>();
  }
}

}  // namespace dlkern
