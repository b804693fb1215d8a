// Parameters and statistics beside 16-bit data: tensors whose elements are of the data's type T or
// of the type it is summed in.
#pragma once

#include "core/call.h"
#include "core/index.h"

namespace dlkern {

// A view of such a tensor by its linear (row-major) index. An absent tensor is false.
template <class T>
struct MixedView {
  using Acc = Accumulator<T>;
  void* data = nullptr;
  bool wide = true;  // of type Acc
  StridedIndex<1> index;

  MixedView() = default;
  explicit MixedView(const Tensor& t)
      : data(t.data), wide(dtype_size(t.dtype) == sizeof(Acc)), index(make_index<1>({&t})) {}

  DLK_HD explicit operator bool() const { return data != nullptr; }
  // Where element i lies, and the element there: apart where a GPU's registers are full in between.
  DLK_HD int64_t place(int64_t i) const {
    int64_t at[1];
    index.offsets(i, at);
    return at[0];
  }
  DLK_HD Acc load_at(int64_t place) const {
    return wide ? static_cast<const Acc*>(data)[place]
                : static_cast<Acc>(static_cast<const T*>(data)[place]);
  }
  DLK_HD Acc load(int64_t i) const { return load_at(place(i)); }
  DLK_HD Acc load_or(int64_t i, Acc absent) const { return data ? load(i) : absent; }
  DLK_HD void store_at(int64_t place, Acc value) const {
    if (wide) {
      static_cast<Acc*>(data)[place] = value;
    } else {
      static_cast<T*>(data)[place] = static_cast<T>(value);
    }
  }
  DLK_HD void store(int64_t i, Acc value) const { store_at(place(i), value); }
};

// float64 for float64, float32 for all smaller ones: Accumulator<T> at run time.
inline DType accumulator_of(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

// t has the dtype of `data`, or the one it is summed in.
inline void require_mixed_dtype(const Call& call, const Tensor& t, const Tensor& data) {
  if (!t || t.dtype == accumulator_of(data.dtype)) return;
  if (data.dtype == accumulator_of(data.dtype)) {
    call.require_same_dtype(t, data);
  } else {
    call.require_dtype(t, {data.dtype, accumulator_of(data.dtype)});
  }
}

}  // namespace dlkern
