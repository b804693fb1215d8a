#include "ops/pool.h"

#include <cmath>
#include <limits>

#include "ops/reduce.h"

namespace dlkern {
namespace {

constexpr dlk_pool_params kDefaults = DLK_POOL_PARAMS_INIT;

// The op's name in messages, given that of the one with a kernel.
const char* name_of(const char* op, const dlk_pool_params* params) {
  static constexpr std::pair<const char*, const char*> kAdaptive[] = {
      {"max_pool", "adaptive_max_pool"},
      {"max_pool_backward", "adaptive_max_pool_backward"},
      {"avg_pool", "adaptive_avg_pool"},
      {"avg_pool_backward", "adaptive_avg_pool_backward"}};
  if (!params || params->struct_size < sizeof(dlk_pool_params) || !params->output[0]) return op;
  for (const auto& [plain, adaptive] : kAdaptive) {
    if (std::string_view(op) == plain) return adaptive;
  }
  return op;
}

// The caller's dimension that holds the channels, and the first spatial one.
struct Layout {
  int channels, spatial;

  Layout(int32_t layout, int ndim) {
    if (layout != DLK_LAYOUT_NCHW && layout != DLK_LAYOUT_NHWC) {
      fail(DLK_INVALID_ARGUMENT, "layout is ", layout, ", expected a dlk_layout");
    }
    const bool last = layout == DLK_LAYOUT_NHWC;
    channels = last ? ndim - 1 : 1;
    spatial = last ? 1 : 2;
  }
};

// Every window must hold an element of x, for its maximum to have an index.
void require_elements(const Window& w, int64_t n, int64_t out, int d) {
  const int64_t limit = w.span() / 2;
  for (const auto& [name, pad] : {std::pair{"pad_begin", w.pad_begin}, {"pad_end", w.pad_end}}) {
    if (pad > limit) {
      fail(DLK_INVALID_ARGUMENT, "padding: ", name, "[", d, "] is ", pad, ", expected at most ",
           limit, ", half of the window's span of ", w.span());
    }
  }
  for (int64_t o = 0; o < out && w.start(o) < 0; ++o) {  // with dilation, x may lie between taps
    const Range taps = w.taps_inside(o, n);
    if (taps.begin >= taps.end) {
      fail(DLK_INVALID_ARGUMENT, "dilation[", d, "] is ", w.dilation,
           ", expected windows that hold an element of x, whose extent is ", n);
    }
  }
}

// `output` windows along dimension `at` of s; the caller's is d.
void make_adaptive(PoolShape& s, int at, int d, int64_t output) {
  if (output < 1) {
    fail(DLK_INVALID_ARGUMENT, "output[", d, "] is ", output, ", expected at least 1");
  }
  const int64_t n = s.in[at], kernel = ceil_div(n, output);
  s.out[at] = output;
  s.adaptive[at] = n % output != 0;  // else the windows are alike
  s.window[at].kernel = s.adaptive[at] ? std::min(kernel + 1, n) : kernel;
  s.window[at].stride = kernel;
  s.prepare(at);
}

// The shape of the problem for an input of `ndim` dimensions.
PoolShape make_shape(const char* name, dlk_pool_params p, int ndim, const int64_t* shape) {
  if (ndim < 3 || ndim > 2 + kMaxSpatial) {
    fail(DLK_INVALID_ARGUMENT, name, " has ", ndim, " dimensions, expected 3 to 5");
  }
  const Layout layout(p.layout, ndim);
  PoolShape s;
  s.batch = shape[0];
  s.channels = shape[layout.channels];
  for (int d = 0; d < ndim - 2; ++d) {
    const int64_t n = shape[layout.spatial + d];
    if (n < 1) {
      fail(DLK_INVALID_ARGUMENT, name, ".shape is ", shape_string(shape, ndim),
           ", expected spatial extents of at least 1");
    }
    const int at = d + kMaxSpatial - (ndim - 2);
    s.in[at] = n;
    if (p.output[d] != 0) {
      make_adaptive(s, at, d, p.output[d]);
      continue;
    }
    if (p.kernel[d] < 0) {
      fail(DLK_INVALID_ARGUMENT, "kernel[", d, "] is ", p.kernel[d], ", expected at least 1");
    }
    const int64_t kernel = p.kernel[d] ? p.kernel[d] : n;
    if (p.stride[d] == 0) {
      p.stride[d] = static_cast<int32_t>(std::min<int64_t>(kernel, INT32_MAX));
    }
    const Window w = make_window(p, d, kernel, n);
    const int64_t out = w.output_extent(n, p.ceil_mode);
    if (out < 1) {
      fail(DLK_INVALID_ARGUMENT, "kernel[", d, "] is ", kernel, " with a span of ", w.span(),
           ", expected at most ", n + w.pad_begin + w.pad_end, ", the padded extent of ", name);
    }
    require_elements(w, n, out, d);
    s.window[at] = w;
    s.out[at] = out;
    s.prepare(at);
  }
  return s;
}

// The caller's shape of the output.
Dims output_shape(const PoolShape& s, const dlk_pool_params& p, int ndim) {
  const Layout layout(p.layout, ndim);
  Dims shape{};
  shape[0] = s.batch;
  shape[layout.channels] = s.channels;
  for (int d = 0; d < ndim - 2; ++d) {
    shape[layout.spatial + d] = s.out[d + kMaxSpatial - (ndim - 2)];
  }
  return shape;
}

// [N, C, D, H, W]
Tensor as_image(const Tensor& t, const dlk_pool_params& p) {
  if (!t) return t;
  const Layout layout(p.layout, t.ndim);
  Tensor image = t;
  image.ndim = 2 + kMaxSpatial;
  const auto take = [&](int to, int from) {
    image.shape[to] = from < 0 ? 1 : t.shape[from];
    image.strides[to] = from < 0 ? 1 : t.strides[from];
  };
  take(0, 0);
  take(1, layout.channels);
  const int missing = kMaxSpatial - (t.ndim - 2);
  for (int d = 0; d < kMaxSpatial; ++d)
    take(2 + d, d < missing ? -1 : layout.spatial + d - missing);
  return image;
}

// Checks a tensor of the output's shape.
void require_output_shape(const Call& call, const Tensor& t, const PoolShape& s,
                          const dlk_pool_params& p, int ndim) {
  const Dims shape = output_shape(s, p, ndim);
  call.require_shape(t, {shape.data(), static_cast<size_t>(ndim)}, "windows over the input");
}

void require_indices(const Call& call, const Tensor& indices, const PoolShape& s) {
  call.require_dtype(indices, {DType::kInt64, DType::kInt32, DType::kUInt8});
  if (indices.dtype == DType::kUInt8 && s.taps() > 256) {
    fail(DLK_UNSUPPORTED_DTYPE, indices.name, ".dtype is uint8, expected int64 or int32 for ",
         s.taps(), " taps");
  }
  if (indices.dtype == DType::kInt32 && s.in_plane() > std::numeric_limits<int32_t>::max()) {
    fail(DLK_UNSUPPORTED_DTYPE, indices.name, ".dtype is int32, expected int64 for ", s.in_plane(),
         " positions");
  }
}

void require_no_dilation(const dlk_pool_params& p) {
  for (int d = 0; d < kMaxSpatial; ++d) {
    if (p.dilation[d] != 1) {
      fail(DLK_INVALID_ARGUMENT, "dilation[", d, "] is ", p.dilation[d],
           ", expected 1 for average and Lp pooling");
    }
  }
}
PoolDivisor make_divisor(const dlk_pool_params& p) {
  require_no_dilation(p);
  return {p.count_include_pad != 0, p.divisor_override};
}
void require_norm(const dlk_pool_params& p) {
  require_no_dilation(p);
  if (!(p.norm > 0) || std::isinf(p.norm)) {
    fail(DLK_INVALID_ARGUMENT, "norm is ", p.norm, ", expected a positive number");
  }
}

// One window that is exactly the plane, whose result is a reduction over it.
bool is_global(const PoolShape& s) {
  for (int d = 0; d < kMaxSpatial; ++d) {
    const Window& w = s.window[d];
    if (s.adaptive[d] || s.out[d] != 1 || w.kernel != s.in[d] || w.span() != s.in[d] ||
        w.start(0) != 0) {
      return false;
    }
  }
  return true;
}
constexpr uint32_t kSpatialAxes = 0b11100;

}  // namespace
}  // namespace dlkern

using namespace dlkern;

dlk_status_t dlk_pool_output_shape(const DLTensor* x, const dlk_pool_params* params,
                                   int64_t* shape) {
  return entry("pool_output_shape", nullptr, [&](Call&) {
    const dlk_pool_params p = read_params(params, kDefaults);
    if (!x) fail(DLK_INVALID_ARGUMENT, "x is NULL, expected a tensor");
    const PoolShape s = make_shape("x", p, x->ndim, x->shape);
    const Dims dims = output_shape(s, p, x->ndim);
    std::copy_n(dims.begin(), x->ndim, shape);
  });
}

dlk_status_t dlk_max_pool_forward(const DLTensor* x_, const DLTensor* y_, const DLTensor* indices_,
                                  const dlk_pool_params* params, const dlk_launch* launch) {
  return entry(name_of("max_pool", params), launch, [&](Call& call) {
    const dlk_pool_params p = read_params(params, kDefaults);
    const Tensor x = call.input("x", x_);
    const Tensor y = call.output("y", y_);
    const Tensor indices = call.optional_output("indices", indices_);
    call.require_floating(x);
    call.require_same_dtype(y, x);
    const PoolShape s = make_shape("x", p, x.ndim, x.shape.data());
    require_output_shape(call, y, s, p, x.ndim);
    call.require_disjoint(y, x);
    if (indices) {
      require_indices(call, indices, s);
      require_output_shape(call, indices, s, p, x.ndim);
      call.require_disjoint(indices, x);
      call.require_disjoint(indices, y);
    } else if (is_global(s)) {
      return call.run(Reduce{as_image(x, p), as_image(y, p), kSpatialAxes, DLK_REDUCE_MAX});
    }
    call.run(MaxPoolForward{as_image(x, p), as_image(y, p), as_image(indices, p), s});
  });
}

dlk_status_t dlk_max_pool_backward(const DLTensor* dy_, const DLTensor* indices_,
                                   const DLTensor* dx_, const dlk_pool_params* params,
                                   const dlk_launch* launch) {
  return entry(name_of("max_pool_backward", params), launch, [&](Call& call) {
    const dlk_pool_params p = read_params(params, kDefaults);
    const Tensor dy = call.input("dy", dy_);
    const Tensor indices = call.input("indices", indices_);
    const Tensor dx = call.output("dx", dx_);
    call.require_floating(dy);
    call.require_same_dtype(dx, dy);
    const PoolShape s = make_shape("dx", p, dx.ndim, dx.shape.data());
    require_indices(call, indices, s);
    require_output_shape(call, dy, s, p, dx.ndim);
    call.require_same_shape(indices, dy);
    call.require_disjoint(dx, dy);
    call.require_disjoint(dx, indices);
    call.run(MaxPoolBackward{as_image(dy, p), as_image(indices, p), as_image(dx, p), s});
  });
}

dlk_status_t dlk_avg_pool_forward(const DLTensor* x_, const DLTensor* y_,
                                  const dlk_pool_params* params, const dlk_launch* launch) {
  return entry(name_of("avg_pool", params), launch, [&](Call& call) {
    const dlk_pool_params p = read_params(params, kDefaults);
    const Tensor x = call.input("x", x_);
    const Tensor y = call.output("y", y_);
    call.require_floating(x);
    call.require_same_dtype(y, x);
    const PoolDivisor divisor = make_divisor(p);
    const PoolShape s = make_shape("x", p, x.ndim, x.shape.data());
    require_output_shape(call, y, s, p, x.ndim);
    call.require_disjoint(y, x);
    if (is_global(s) && !divisor.fixed) {
      return call.run(Reduce{as_image(x, p), as_image(y, p), kSpatialAxes, DLK_REDUCE_MEAN});
    }
    call.run(AvgPoolForward{as_image(x, p), as_image(y, p), s, divisor});
  });
}

dlk_status_t dlk_avg_pool_backward(const DLTensor* dy_, const DLTensor* dx_,
                                   const dlk_pool_params* params, const dlk_launch* launch) {
  return entry(name_of("avg_pool_backward", params), launch, [&](Call& call) {
    const dlk_pool_params p = read_params(params, kDefaults);
    const Tensor dy = call.input("dy", dy_);
    const Tensor dx = call.output("dx", dx_);
    call.require_floating(dy);
    call.require_same_dtype(dx, dy);
    const PoolDivisor divisor = make_divisor(p);
    const PoolShape s = make_shape("dx", p, dx.ndim, dx.shape.data());
    require_output_shape(call, dy, s, p, dx.ndim);
    call.require_disjoint(dx, dy);
    if (is_global(s) && !divisor.fixed) {
      return call.run(ReduceBackward{
          as_image(dy, p), {}, {}, as_image(dx, p), kSpatialAxes, DLK_REDUCE_MEAN, 0, 0});
    }
    call.run(AvgPoolBackward{as_image(dy, p), as_image(dx, p), s, divisor});
  });
}

dlk_status_t dlk_lp_pool_forward(const DLTensor* x_, const DLTensor* y_,
                                 const dlk_pool_params* params, const dlk_launch* launch) {
  return entry("lp_pool", launch, [&](Call& call) {
    const dlk_pool_params p = read_params(params, kDefaults);
    const Tensor x = call.input("x", x_);
    const Tensor y = call.output("y", y_);
    call.require_floating(x);
    call.require_same_dtype(y, x);
    require_norm(p);
    const PoolShape s = make_shape("x", p, x.ndim, x.shape.data());
    require_output_shape(call, y, s, p, x.ndim);
    call.require_disjoint(y, x);
    call.run(LpPoolForward{as_image(x, p), as_image(y, p), s, p.norm});
  });
}

dlk_status_t dlk_lp_pool_backward(const DLTensor* dy_, const DLTensor* x_, const DLTensor* y_,
                                  const DLTensor* dx_, const dlk_pool_params* params,
                                  const dlk_launch* launch) {
  return entry("lp_pool_backward", launch, [&](Call& call) {
    const dlk_pool_params p = read_params(params, kDefaults);
    const Tensor dy = call.input("dy", dy_);
    const Tensor x = call.input("x", x_);
    const Tensor y = call.input("y", y_);
    const Tensor dx = call.output("dx", dx_);
    call.require_floating(dy);
    call.require_same_dtype(x, dy);
    require_norm(p);
    const PoolShape s = make_shape("x", p, x.ndim, x.shape.data());
    require_output_shape(call, dy, s, p, x.ndim);
    call.require_like(y, dy);
    call.require_like(dx, x);
    call.require_disjoint(dx, dy);
    call.require_disjoint(dx, y);
    call.require_same_or_disjoint(dx, x);
    call.run(LpPoolBackward{as_image(dy, p), as_image(x, p), as_image(y, p), as_image(dx, p), s,
                            p.norm});
  });
}
