// What becomes of the sums of a matrix product on the CPU, or of a convolution that ends as one.
#pragma once

#include <atomic>
#include <cmath>
#include <memory>

#include "core/activation_math.h"
#include "core/fast_math.h"
#include "cpu/prims/any_dtype.h"
#include "ops/gemm.h"

namespace dlkern::cpu {

// The epilogue of one thread's panels, row by row.
template <class Acc>
class Finish {
 public:
  Finish(const Gemm& g, int64_t cols) : g_(g), other_(new Acc[std::max<int64_t>(cols, 1)]) {}

  // A row of exact sums: what is done to those of int32, all of it. `row`: n numbers of room.
  void finish(const int32_t* sums, Acc* row, int64_t item, const int64_t (&at)[Gemm::kTensors],
              int64_t i, int64_t j0, int64_t n) {
    if (g_.y.dtype == DType::kInt32) {
      int32_t* y = g_.y.as<int32_t>() + at[3] + i * g_.y.row + j0 * g_.y.col;
      for (int64_t j = 0; j < n; ++j) y[j * g_.y.col] = sums[j];
      return;
    }
    for (int64_t j = 0; j < n; ++j) row[j] = static_cast<Acc>(sums[j]);
    scale(row, item, at, i, j0, n);
    store(row, at, i, j0, n, false);
  }

  // What is still to be done to sums: factors, alpha and c.
  void scale(Acc* row, int64_t item, const int64_t (&at)[Gemm::kTensors], int64_t i, int64_t j0,
             int64_t n) {
    // One after the other: their product may be infinite where the result is not.
    if (g_.scale_a.data && !g_.scale_a.along_depth()) {
      const Acc factor = g_.scale_a.at(item, i, 0);
      for (int64_t j = 0; j < n; ++j) row[j] *= factor;
    }
    if (g_.scale_b.data && !g_.scale_b.along_depth()) {
      for (int64_t j = 0; j < n; ++j) row[j] *= g_.scale_b.at(item, j0 + j, 0);
    }
    const auto alpha = static_cast<Acc>(g_.alpha), beta = static_cast<Acc>(g_.beta);
    for (int64_t j = 0; j < n && alpha != 1; ++j) row[j] *= alpha;
    if (beta == 0) return;
    load(g_.c, at[2], i, j0, n);
    for (int64_t j = 0; j < n; ++j) row[j] += beta * other_[j];
  }

  // The rest. in_place: row is y's own.
  void store(Acc* row, const int64_t (&at)[Gemm::kTensors], int64_t i, int64_t j0, int64_t n,
             bool in_place) {
    if (g_.pre.data) put(row, g_.pre, at[4], i, j0, n);
    activate(row, at, i, j0, n);
    if (g_.residual.data) {
      load(g_.residual, at[5], i, j0, n);
      for (int64_t j = 0; j < n; ++j) row[j] += other_[j];
    }
    if (g_.amax) {
      for (int64_t j = 0; j < n; ++j) take_largest(std::abs(row[j]));
    }
    if (g_.scale_y) {
      for (int64_t j = 0; j < n; ++j) row[j] *= *g_.scale_y;
    }
    if (!in_place) put(row, g_.y, at[3], i, j0, n);
  }

  // After the last panel. The order in which threads come here does not matter.
  void finish_amax() {
    if (!g_.amax) return;
    std::atomic_ref<uint32_t> bits(*reinterpret_cast<uint32_t*>(g_.amax));
    uint32_t before = bits.load();
    while (before < largest_ && !bits.compare_exchange_weak(before, largest_)) {
    }
  }

 private:
  void load(const dlkern::Matrix& t, int64_t at, int64_t i, int64_t j0, int64_t n) {
    load_any_span(t.dtype, t.data, at + i * t.row + j0 * t.col, t.col, n, other_.get());
  }
  static void put(const Acc* row, const dlkern::Matrix& t, int64_t at, int64_t i, int64_t j0,
                  int64_t n) {
    store_any_span(row, t.dtype, t.data, at + i * t.row + j0 * t.col, t.col, n);
  }
  // Non-negative floats are ordered as their bits are, and NaN is above all.
  void take_largest(Acc v) {
    const auto bits = v != v ? 0x7fc00000u : bit_cast_to<uint32_t>(static_cast<float>(v));
    largest_ = std::max(largest_, bits);
  }

  void activate(Acc* row, const int64_t (&at)[Gemm::kTensors], int64_t i, int64_t j0, int64_t n) {
    const ActivationScalars<Acc> scalars(g_.activation_alpha, g_.activation_threshold);
    if (g_.activation == DLK_ACTIVATION_NONE) return;
    if (g_.saved.data) load(g_.saved, at[6], i, j0, n);
    const Acc* saved = g_.saved.data ? other_.get() : nullptr;
    dispatch_activation(g_.activation, [=]<dlk_activation kKind>() {
      if (saved) {
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) {
          row[j] = activation_backward<kKind, FastMath>(row[j], saved[j], scalars);
        }
      } else {
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) {
          row[j] = activation_forward<kKind, FastMath>(row[j], scalars);
        }
      }
    });
  }

  const Gemm& g_;
  std::unique_ptr<Acc[]> other_;
  uint32_t largest_ = 0;
};

}  // namespace dlkern::cpu
