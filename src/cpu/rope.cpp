// Rotary position embedding on the CPU: positions in parallel; the cosines and sines of one serve all
// of its heads.
#include "ops/rope.h"

#include <cmath>

#include "cpu/prims/any_dtype.h"
#include "cpu/prims/parallel.h"
#include "cpu/prims/spans.h"

namespace dlkern {
namespace {

using namespace cpu;

constexpr int64_t kGrainElements = 16384;  // work worth a thread

int64_t position_of(const Rope& p, int64_t b, int64_t s) {
  if (!p.positions) return p.offset + s;
  const int64_t at = b * p.positions.strides[0] + s * p.positions.strides[1];
  return p.positions.dtype == DType::kInt64 ? p.positions.as<int64_t>()[at]
                                            : p.positions.as<int32_t>()[at];
}

// Cosines and (signed) sines of one position.
template <class Acc>
void angles(const Rope& p, const std::vector<double>& frequency, int64_t position, Acc* cos,
            Acc* sin) {
  const int64_t n = p.rotary / 2;
  if (p.cos) {
    load_any_span(p.cos.dtype, p.cos.data, position * p.cos.strides[0], p.cos.strides[1], n, cos);
    load_any_span(p.sin.dtype, p.sin.data, position * p.sin.strides[0], p.sin.strides[1], n, sin);
  } else {
    for (int64_t i = 0; i < n; ++i) {
      const double t = static_cast<double>(position) * frequency[i];
      cos[i] = static_cast<Acc>(std::cos(t));
      sin[i] = static_cast<Acc>(std::sin(t));
    }
  }
  for (int64_t i = 0; i < n; ++i) sin[i] *= static_cast<Acc>(p.sign);
}

// x and y are the same or apart.
template <class Acc>
void rotate(const Acc* x, Acc* y, const Acc* cos, const Acc* sin, int64_t n, bool interleaved) {
  if (interleaved) {
    DLK_SIMD for (int64_t i = 0; i < n; ++i) {
      const Acc a = x[2 * i], b = x[2 * i + 1];
      y[2 * i] = a * cos[i] - b * sin[i];
      y[2 * i + 1] = b * cos[i] + a * sin[i];
    }
  } else {
    DLK_SIMD for (int64_t i = 0; i < n; ++i) {
      const Acc a = x[i], b = x[i + n];
      y[i] = a * cos[i] - b * sin[i];
      y[i + n] = b * cos[i] + a * sin[i];
    }
  }
}

template <class T>
void rope_heads(const Rope& p, const Heads& t, int64_t b, int64_t s, const Accumulator<T>* cos,
                const Accumulator<T>* sin, Accumulator<T>* buffer) {
  using Acc = Accumulator<T>;
  const int64_t depth = p.depth(), x_step = t.x.strides[3], y_step = t.y.strides[3];
  for (int64_t h = 0; h < t.x.shape[2]; ++h) {
    const T* from = t.x.as<T>() + b * t.x.strides[0] + s * t.x.strides[1] + h * t.x.strides[2];
    T* to = t.y.as<T>() + b * t.y.strides[0] + s * t.y.strides[1] + h * t.y.strides[2];
    const Acc* x = read_span(from, x_step, depth, buffer);
    Acc* y = begin_span(to, y_step, buffer);
    rotate(x, y, cos, sin, p.rotary / 2, p.interleaved);
    if (x != y) std::copy(x + p.rotary, x + depth, y + p.rotary);
    finish_span(y, to, y_step, depth);
  }
}

template <class T>
void rope(const Rope& p) {
  using Acc = Accumulator<T>;
  const int64_t half = p.rotary / 2, places = p.batch() * p.length();
  std::vector<double> frequency(half);
  for (int64_t i = 0; i < half; ++i) {
    frequency[i] = std::pow(p.base, -2.0 * static_cast<double>(i) / static_cast<double>(p.rotary));
  }
  int64_t heads = 0;
  for (const Heads& t : p.tensors) heads += t.x.shape[2];
  for (int64_t i = 0; p.cos && p.positions && i < places; ++i) {
    check_position(p, position_of(p, i / p.length(), i % p.length()), i);
  }
  parallel_for(places, kGrainElements / (heads * p.depth() + 1), [&](int64_t begin, int64_t end) {
    std::vector<Acc> buffer(2 * half + p.depth());
    Acc *cos = buffer.data(), *sin = cos + half;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / p.length(), s = i % p.length();
      angles(p, frequency, position_of(p, b, s), cos, sin);
      for (const Heads& t : p.tensors) rope_heads<T>(p, t, b, s, cos, sin, sin + half);
    }
  });
}

constexpr Impl<Rope> kImpls[] = {
    {"cpu_positions", supports_all, nullptr,
     [](const Rope& p, const Launch&) {
       dispatch_floating(p.first().dtype, [&]<class T>() { rope<T>(p); });
     }},
};

}  // namespace

template <>
ImplList<Rope> cpu_impls<Rope>() {
  return kImpls;
}

}  // namespace dlkern
