#pragma once

#include <vector>

#include "core/call.h"
#include "core/tensor.h"

namespace dlkern {

// All of rank 4, as views [B, S, H, D]; one B, S, D and dtype.
struct Heads {
  Tensor x, y;
};

struct Rope {
  std::vector<Heads> tensors;
  Tensor cos, sin;   // [P, R / 2], or absent
  Tensor positions;  // [B, S] view, or absent
  bool interleaved;
  int64_t rotary;  // R
  int64_t offset;
  double base;
  int sign;  // of the angles: -1 backwards

  const Tensor& first() const { return tensors[0].x; }
  int64_t batch() const { return first().shape[0]; }
  int64_t length() const { return first().shape[1]; }
  int64_t depth() const { return first().shape[3]; }
};

// Fails for a position that cos and sin have no row for.
void check_position(const Rope& p, int64_t position, int64_t i);

template <>
ImplList<Rope> cpu_impls<Rope>();
template <>
ImplList<Rope> gpu_impls<Rope>();

}  // namespace dlkern
