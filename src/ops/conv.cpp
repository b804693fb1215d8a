#include "ops/conv.h"

#include <dlkern/conv.h>

#include "core/mixed.h"
#include "core/window.h"
#include "ops/activation.h"
#include "ops/gemm_problem.h"

namespace dlkern {
namespace {

constexpr dlk_conv_params kDefaults = DLK_CONV_PARAMS_INIT;
constexpr dlk_scaled_conv_params kScaledDefaults = DLK_SCALED_CONV_PARAMS_INIT;
constexpr dlk_conv_bias_act_params kBiasActDefaults = DLK_CONV_BIAS_ACT_PARAMS_INIT;

// Along a dimension, as there are at most so many elements (tensor.cpp).
constexpr int64_t kMostPixels = int64_t{1} << 59;

// Where the dimensions of a tensor lie. Weights are laid out like images, with K in place of N.
struct Layout {
  int channel;
  int first_spatial;
  int spatial_dims;

  Layout(int layout, int ndim)
      : channel(layout == DLK_LAYOUT_NCHW ? 1 : ndim - 1),
        first_spatial(layout == DLK_LAYOUT_NCHW ? 2 : 1),
        spatial_dims(ndim - 2) {}
  int slot(int d) const { return 3 - spatial_dims + d; }  // of spatial dimension d in ConvGeometry
};

void check_params(const dlk_conv_params& p) {
  if (p.layout != DLK_LAYOUT_NCHW && p.layout != DLK_LAYOUT_NHWC) {
    fail(DLK_INVALID_ARGUMENT, "layout is ", p.layout,
         ", expected DLK_LAYOUT_NCHW or DLK_LAYOUT_NHWC");
  }
  if (p.precision != DLK_PRECISION_IEEE && p.precision != DLK_PRECISION_TF32) {
    fail(DLK_INVALID_ARGUMENT, "precision is ", p.precision,
         ", expected DLK_PRECISION_IEEE or DLK_PRECISION_TF32");
  }
  if (p.groups < 1) fail(DLK_INVALID_ARGUMENT, "groups is ", p.groups, ", expected at least 1");
}

// Fills dimension `slot` of g from dimension d of the input, whose extent is given: the larger side
// of a convolution, or the smaller one of a transposed convolution.
void set_window(const dlk_conv_params& p, bool transposed, int d, int64_t extent, int64_t kernel,
                int slot, ConvGeometry& g) {
  if (!transposed) {
    g.window[slot] = make_window(p, d, kernel, extent);
    g.in[slot] = extent;
    g.out[slot] = g.window[slot].output_extent(extent);
    return;
  }
  const bool same = p.padding_mode == DLK_PADDING_SAME;
  const Window w = make_window(p, d, kernel, extent * std::max(p.stride[d], 1));
  const int64_t limit = same ? 1 : std::max(w.stride, w.dilation);
  if (p.output_padding[d] < 0 || p.output_padding[d] >= limit) {
    fail(DLK_INVALID_ARGUMENT, "output_padding[", d, "] is ", p.output_padding[d], ", expected ",
         same ? cat("0 with padding \"same\"")
              : cat("it in [0, ", limit, "), below the larger one of stride and dilation"));
  }
  g.window[slot] = w;
  g.out[slot] = extent;
  g.in[slot] =
      same ? extent * w.stride : w.start(extent - 1) - w.pad_end + w.span() + p.output_padding[d];
}

// Dtypes, and the outputs' memory.
void check_tensors(const Call& call, std::initializer_list<Tensor> inputs,
                   std::initializer_list<Tensor> outputs) {
  const Tensor& first = *inputs.begin();
  call.require_floating(first);
  for (const Tensor& in : inputs) {
    if (in) call.require_same_dtype(in, first);
  }
  for (const Tensor& out : outputs) {
    if (!out) continue;
    call.require_same_dtype(out, first);
    for (const Tensor& in : inputs) call.require_disjoint(out, in);
  }
}

// Checks input and weight against each other and returns the geometry of the convolution that they
// belong to. A transposed convolution's input is the output side of that convolution.
ConvGeometry make_geometry(const Call& call, const dlk_conv_params& p, bool transposed,
                           const Tensor& input, const Tensor& weight) {
  call.require_rank(input, 3, 5);
  call.require_rank(weight, input.ndim, input.ndim);
  check_params(p);
  const Layout layout(p.layout, input.ndim);

  const int64_t channels = input.shape[layout.channel];
  const int64_t rows = weight.shape[0], columns = weight.shape[layout.channel];
  if ((transposed ? rows : columns * p.groups) != channels) {
    fail(DLK_INVALID_ARGUMENT, weight.name, ".shape[", transposed ? 0 : layout.channel, "] is ",
         transposed ? rows : columns, ", expected ",
         transposed || p.groups == 1 ? cat(channels) : cat(channels, " / ", p.groups), " (",
         input.name, " has ", channels, " channels",
         p.groups == 1 ? cat(")") : cat(", groups is ", p.groups, ")"));
  }
  if (rows % p.groups != 0) {
    fail(DLK_INVALID_ARGUMENT, weight.name, ".shape[0] is ", rows,
         ", expected a multiple of groups, which is ", p.groups);
  }

  ConvGeometry g{};
  g.batch = input.shape[0];
  g.groups = p.groups;
  g.k = rows / p.groups;
  g.c = columns;
  std::fill_n(g.in, 3, 1);
  std::fill_n(g.out, 3, 1);
  for (int d = 0; d < layout.spatial_dims; ++d) {
    const int s = layout.slot(d), axis = layout.first_spatial + d;
    const int64_t kernel = weight.shape[axis];
    if (kernel < 1 || kernel > INT32_MAX) {
      fail(DLK_INVALID_ARGUMENT, weight.name, ".shape[", axis, "] is ", kernel,
           ", expected it in [1, 2^31)");
    }
    if (transposed && input.shape[axis] > kMostPixels / std::max(p.stride[d], 1)) {
      fail(DLK_INVALID_ARGUMENT, input.name, ".shape[", axis, "] is ", input.shape[axis],
           ", expected at most 2^59 / ", p.stride[d], " with that stride");
    }
    set_window(p, transposed, d, input.shape[axis], kernel, s, g);
    const int64_t extent = transposed ? g.in[s] : g.out[s];
    if (extent < 1) {
      const Window& w = g.window[s];
      fail(DLK_INVALID_ARGUMENT, input.name, ".shape[", axis, "] is ", input.shape[axis],
           ", which gives an output extent of ", extent, " (", kernel, " taps, stride ", w.stride,
           ", padding (", w.pad_begin, ", ", w.pad_end, "), dilation ", w.dilation,
           "), expected at least 1");
    }
  }
  return g;
}

// Shape of the output for an input and a weight that passed make_geometry.
Dims output_shape(const dlk_conv_params& p, bool transposed, const ConvGeometry& g, int ndim) {
  const Layout layout(p.layout, ndim);
  Dims shape{};
  shape[0] = g.batch;
  shape[layout.channel] = g.groups * (transposed ? g.c : g.k);
  for (int d = 0; d < layout.spatial_dims; ++d) {
    const int s = layout.slot(d);
    shape[layout.first_spatial + d] = transposed ? g.in[s] : g.out[s];
  }
  return shape;
}

// Dimensions in which nothing happens go first, so that the last one is worth a vector.
void move_trivial_dims_first(ConvProblem& p) {
  ConvGeometry& g = p.geometry;
  const auto trivial = [&](int s) {
    return g.in[s] == 1 && g.out[s] == 1 && g.window[s].kernel == 1;
  };
  const auto exchange = [&](int a, int b) {
    std::swap(g.window[a], g.window[b]);
    for (int64_t* v : {g.in, g.out, p.x_strides.spatial, p.y_strides.spatial, p.w_strides.taps,
                       p.epilogue.residual_strides.spatial, p.epilogue.pre_strides.spatial}) {
      std::swap(v[a], v[b]);
    }
  };
  for (int pass = 0; pass < 2; ++pass) {
    for (int s = 0; s < 2; ++s) {
      if (trivial(s + 1) && !trivial(s)) exchange(s, s + 1);
    }
  }
}

ConvImageStrides image_strides(int layout_kind, const Tensor& t) {
  if (!t) return {};
  const Layout layout(layout_kind, t.ndim);
  ConvImageStrides strides{t.strides[0], t.strides[layout.channel], {0, 0, 0}};
  for (int d = 0; d < layout.spatial_dims; ++d) {
    strides.spatial[layout.slot(d)] = t.strides[layout.first_spatial + d];
  }
  return strides;
}

// Checks shapes and fills the problem in. `input` and `output` are the forward op's (or gradients in
// their place).
void fill(const Call& call, const dlk_conv_params& p, bool transposed, const Tensor& input,
          const Tensor& weight, const Tensor& output, const Tensor& bias,
          const ConvEpilogue& epilogue, ConvProblem& problem) {
  problem.geometry = make_geometry(call, p, transposed, input, weight);
  const Dims shape = output_shape(p, transposed, problem.geometry, input.ndim);
  call.require_shape(output, {shape.data(), static_cast<size_t>(input.ndim)},
                     cat("from ", input.name, ", ", weight.name, " and params").c_str());
  problem.epilogue = epilogue;
  problem.epilogue.channel = Layout(p.layout, input.ndim).channel;
  const int64_t channels = shape[problem.epilogue.channel];
  for (const Tensor* t : {&bias, &epilogue.scale, &epilogue.mean, &epilogue.var}) {
    if (*t) call.require_shape(*t, {&channels, 1}, "one per output channel");
  }
  problem.epilogue.residual_strides = image_strides(p.layout, epilogue.residual);
  problem.epilogue.pre_strides = image_strides(p.layout, epilogue.pre);
  problem.x = transposed ? output : input;
  problem.y = transposed ? input : output;
  problem.w = weight;
  problem.bias = bias;
  problem.x_strides = image_strides(p.layout, problem.x);
  problem.y_strides = image_strides(p.layout, problem.y);
  const ConvImageStrides w = image_strides(p.layout, weight);
  problem.w_strides = {
      problem.geometry.k * w.n, w.n, w.c, {w.spatial[0], w.spatial[1], w.spatial[2]}};
  problem.transposed = transposed;
  problem.accumulate = p.accumulate != 0;
  problem.precision = static_cast<dlk_precision>(p.precision);
  move_trivial_dims_first(problem);
}

template <ConvDirection kDirection>
void run(Call& call, const dlk_conv_params& p, bool transposed, const Tensor& input,
         const Tensor& weight, const Tensor& output, const Tensor& bias,
         const ConvEpilogue& epilogue = {}) {
  Conv<kDirection> problem{};
  fill(call, p, transposed, input, weight, output, bias, epilogue, problem);
  call.run(problem);
}

dlk_status_t shape(const char* op, bool transposed, const DLTensor* x_, const DLTensor* weight_,
                   const dlk_conv_params* params, int64_t* shape) {
  return entry(op, nullptr, [&](Call& call) {
    const dlk_conv_params p = read_params(params, kDefaults);
    const Tensor x = call.input("x", x_), weight = call.input("weight", weight_);
    if (!shape) fail(DLK_INVALID_ARGUMENT, "shape is NULL, expected room for x.ndim extents");
    const ConvGeometry geometry = make_geometry(call, p, transposed, x, weight);
    const Dims dims = output_shape(p, transposed, geometry, x.ndim);
    std::copy_n(dims.begin(), x.ndim, shape);
  });
}

dlk_status_t forward(const char* op, bool transposed, const DLTensor* x_, const DLTensor* weight_,
                     const DLTensor* bias_, const DLTensor* y_, const dlk_conv_params* params,
                     const dlk_launch* launch) {
  return entry(op, launch, [&](Call& call) {
    const dlk_conv_params p = read_params(params, kDefaults);
    const Tensor x = call.input("x", x_), weight = call.input("weight", weight_);
    const Tensor bias = call.optional_input("bias", bias_);
    const Tensor y = call.output("y", y_);
    check_tensors(call, {x, weight, bias}, {y});
    if (transposed) {
      run<ConvDirection::kBackwardInput>(call, p, true, x, weight, y, bias);
    } else {
      run<ConvDirection::kForward>(call, p, false, x, weight, y, bias);
    }
  });
}

// The tensors of a call with an epilogue.
struct BiasActTensors {
  const DLTensor *x, *weight, *scale, *bias, *residual, *y, *preactivation, *mean, *var;
};

void check_epilogue(const Call& call, const ConvEpilogue& e, const Tensor& x, const Tensor& y,
                    const Tensor& bias) {
  require_mixed_dtype(call, bias, x);
  require_mixed_dtype(call, e.scale, x);
  if (bias && e.scale) call.require_same_dtype(bias, e.scale);
  if (e.residual) call.require_like(e.residual, y);
  if (e.pre) call.require_like(e.pre, y);
  if (!e.mean != !e.var) {
    fail(DLK_INVALID_ARGUMENT, e.mean ? "var" : "mean",
         " is NULL, expected both mean and var or neither");
  }
  for (const Tensor* out : {&e.mean, &e.var}) {
    if (*out) call.require_dtype(*out, {accumulator_of(x.dtype)});
  }
  call.require_outputs_apart();
}

dlk_status_t bias_act(const char* op, bool transposed, const BiasActTensors& t,
                      const dlk_conv_bias_act_params* params, const dlk_launch* launch) {
  return entry(op, launch, [&](Call& call) {
    const dlk_conv_bias_act_params p = read_params(params, kBiasActDefaults);
    const dlk_conv_params window = read_params(&p.conv, kDefaults);
    const Tensor x = call.input("x", t.x), weight = call.input("weight", t.weight);
    const Tensor bias = call.optional_input("bias", t.bias);
    ConvEpilogue e;
    e.scale = call.optional_input("scale", t.scale);
    e.residual = call.optional_input("residual", t.residual);
    const Tensor y = call.output("y", t.y);
    e.pre = call.optional_output("preactivation", t.preactivation);
    e.mean = call.optional_output("mean", t.mean);
    e.var = call.optional_output("var", t.var);
    require_activation(p.activation, p.alpha);
    e.activation = static_cast<dlk_activation>(p.activation);
    e.activation_alpha = p.alpha;
    e.activation_threshold = p.threshold;
    check_tensors(call, {x, weight}, {y});
    check_epilogue(call, e, x, y, bias);
    if (transposed) {
      run<ConvDirection::kBackwardInput>(call, window, true, x, weight, y, bias, e);
    } else {
      run<ConvDirection::kForward>(call, window, false, x, weight, y, bias, e);
    }
  });
}

dlk_status_t backward_input(const char* op, bool transposed, const DLTensor* dy_,
                            const DLTensor* weight_, const DLTensor* dx_,
                            const dlk_conv_params* params, const dlk_launch* launch) {
  return entry(op, launch, [&](Call& call) {
    const dlk_conv_params p = read_params(params, kDefaults);
    const Tensor dy = call.input("dy", dy_), weight = call.input("weight", weight_);
    const Tensor dx = call.output("dx", dx_);
    check_tensors(call, {dy, weight}, {dx});
    if (transposed) {
      run<ConvDirection::kForward>(call, p, true, dx, weight, dy, Tensor{});
    } else {
      run<ConvDirection::kBackwardInput>(call, p, false, dx, weight, dy, Tensor{});
    }
  });
}

dlk_status_t backward_weight(const char* op, bool transposed, const DLTensor* dy_,
                             const DLTensor* x_, const DLTensor* dweight_, const DLTensor* dbias_,
                             const dlk_conv_params* params, const dlk_launch* launch) {
  return entry(op, launch, [&](Call& call) {
    const dlk_conv_params p = read_params(params, kDefaults);
    const Tensor dy = call.input("dy", dy_), x = call.input("x", x_);
    const Tensor dweight = call.output("dweight", dweight_);
    const Tensor dbias = call.optional_output("dbias", dbias_);
    check_tensors(call, {dy, x}, {dweight, dbias});
    if (dbias) call.require_disjoint(dbias, dweight);
    run<ConvDirection::kBackwardWeight>(call, p, transposed, x, dweight, dy, dbias);
  });
}

// The factors of the weights: one, or one for each output channel.
Scale weight_scale(const Call& call, const Tensor& scale, int64_t channels) {
  if (!scale) return {};
  call.require_dtype(scale, {DType::kFloat32});
  Scale s{scale.as<const float>()};
  if (scale.numel() == 1 && scale.ndim <= 1) return s;
  call.require_shape(scale, {&channels, 1}, "one per output channel, or one element");
  s.row = scale.strides[0];
  return s;
}

}  // namespace

Gemm scaled_conv_output(const ScaledConv& p, bool channels_are_columns) {
  Gemm g;
  g.activation = p.epilogue.activation;
  g.activation_alpha = p.epilogue.activation_alpha;
  g.activation_threshold = p.epilogue.activation_threshold;
  g.scale_y = p.scale_y;
  g.amax = p.amax;
  const auto of_channels = [&](const Tensor& t, int64_t stride) {
    return matrix(t, channels_are_columns ? 0 : stride, channels_are_columns ? stride : 0);
  };
  g.y = of_channels(p.y, p.y_strides.c);
  if (p.bias) {
    g.c = of_channels(p.bias, p.bias.strides[0]);
    g.beta = 1;
  }
  (channels_are_columns ? g.scale_a : g.scale_b).data = p.scale_x;
  (channels_are_columns ? g.scale_b : g.scale_a) = p.scale_w;
  return g;
}

}  // namespace dlkern

dlk_status_t dlk_conv_output_shape(const DLTensor* x, const DLTensor* weight,
                                   const dlk_conv_params* params, int64_t* shape) {
  return dlkern::shape("conv", false, x, weight, params, shape);
}

dlk_status_t dlk_conv_transpose_output_shape(const DLTensor* x, const DLTensor* weight,
                                             const dlk_conv_params* params, int64_t* shape) {
  return dlkern::shape("conv_transpose", true, x, weight, params, shape);
}

dlk_status_t dlk_conv_forward(const DLTensor* x, const DLTensor* weight, const DLTensor* bias,
                              const DLTensor* y, const dlk_conv_params* params,
                              const dlk_launch* launch) {
  return dlkern::forward("conv", false, x, weight, bias, y, params, launch);
}

dlk_status_t dlk_conv_backward_input(const DLTensor* dy, const DLTensor* weight, const DLTensor* dx,
                                     const dlk_conv_params* params, const dlk_launch* launch) {
  return dlkern::backward_input("conv_backward_input", false, dy, weight, dx, params, launch);
}

dlk_status_t dlk_conv_backward_weight(const DLTensor* dy, const DLTensor* x,
                                      const DLTensor* dweight, const DLTensor* dbias,
                                      const dlk_conv_params* params, const dlk_launch* launch) {
  return dlkern::backward_weight("conv_backward_weight", false, dy, x, dweight, dbias, params,
                                 launch);
}

dlk_status_t dlk_conv_transpose_forward(const DLTensor* x, const DLTensor* weight,
                                        const DLTensor* bias, const DLTensor* y,
                                        const dlk_conv_params* params, const dlk_launch* launch) {
  return dlkern::forward("conv_transpose", true, x, weight, bias, y, params, launch);
}

dlk_status_t dlk_conv_bias_act_forward(const DLTensor* x, const DLTensor* weight,
                                       const DLTensor* scale, const DLTensor* bias,
                                       const DLTensor* residual, const DLTensor* y,
                                       const DLTensor* preactivation, const DLTensor* mean,
                                       const DLTensor* var, const dlk_conv_bias_act_params* params,
                                       const dlk_launch* launch) {
  return dlkern::bias_act("conv_bias_act", false,
                          {x, weight, scale, bias, residual, y, preactivation, mean, var}, params,
                          launch);
}

dlk_status_t dlk_conv_transpose_bias_act_forward(const DLTensor* x, const DLTensor* weight,
                                                 const DLTensor* scale, const DLTensor* bias,
                                                 const DLTensor* residual, const DLTensor* y,
                                                 const DLTensor* preactivation,
                                                 const DLTensor* mean, const DLTensor* var,
                                                 const dlk_conv_bias_act_params* params,
                                                 const dlk_launch* launch) {
  return dlkern::bias_act("conv_transpose_bias_act", true,
                          {x, weight, scale, bias, residual, y, preactivation, mean, var}, params,
                          launch);
}

dlk_status_t dlk_conv_transpose_backward_input(const DLTensor* dy, const DLTensor* weight,
                                               const DLTensor* dx, const dlk_conv_params* params,
                                               const dlk_launch* launch) {
  return dlkern::backward_input("conv_transpose_backward_input", true, dy, weight, dx, params,
                                launch);
}

dlk_status_t dlk_conv_transpose_backward_weight(const DLTensor* dy, const DLTensor* x,
                                                const DLTensor* dweight, const DLTensor* dbias,
                                                const dlk_conv_params* params,
                                                const dlk_launch* launch) {
  return dlkern::backward_weight("conv_transpose_backward_weight", true, dy, x, dweight, dbias,
                                 params, launch);
}

dlk_status_t dlk_scaled_conv(const DLTensor* x_, const DLTensor* weight_, const DLTensor* scale_x_,
                             const DLTensor* scale_weight_, const DLTensor* bias_,
                             const DLTensor* scale_out_, const DLTensor* y_, const DLTensor* amax_,
                             const dlk_scaled_conv_params* params, const dlk_launch* launch) {
  using namespace dlkern;
  return entry("scaled_conv", launch, [&](Call& call) {
    const dlk_scaled_conv_params p = read_params(params, kScaledDefaults);
    const dlk_conv_params window = read_params(&p.conv, kDefaults);
    const Tensor x = call.input("x", x_);
    const Tensor weight = call.input("weight", weight_);
    const Tensor scale_x = call.optional_input("scale_x", scale_x_);
    const Tensor scale_weight = call.optional_input("scale_weight", scale_weight_);
    const Tensor bias = call.optional_input("bias", bias_);
    const Tensor scale_out = call.optional_input("scale_out", scale_out_);
    const Tensor y = call.output("y", y_);
    const Tensor amax = call.optional_output("amax", amax_);
    require_8bit(call, x, weight, y,
                 !scale_x && !scale_weight && !bias && !scale_out && !amax &&
                     p.activation == DLK_ACTIVATION_NONE);
    if (bias) call.require_dtype(bias, {DType::kFloat32, DType::kBFloat16, DType::kFloat16});
    for (const Tensor* scalar : {&scale_x, &scale_out, &amax}) {
      if (*scalar) call.require_scalar(*scalar, DType::kFloat32);
    }
    for (const Tensor* output : {&y, &amax}) {
      for (const Tensor* input : {&x, &weight, &scale_x, &scale_weight, &bias, &scale_out}) {
        call.require_disjoint(*output, *input);
      }
    }
    call.require_disjoint(amax, y);

    ScaledConv problem{};
    fill(call, window, false, x, weight, y, bias, {}, problem);
    problem.scale_x = scale_x ? scale_x.as<const float>() : nullptr;
    problem.scale_w =
        weight_scale(call, scale_weight, problem.geometry.groups * problem.geometry.k);
    problem.scale_y = scale_out ? scale_out.as<const float>() : nullptr;
    problem.amax = amax ? amax.as<float>() : nullptr;
    Epilogue activation;
    set_activation(activation, p.activation, p.alpha, p.threshold);
    problem.epilogue.activation = activation.activation;
    problem.epilogue.activation_alpha = activation.activation_alpha;
    problem.epilogue.activation_threshold = activation.activation_threshold;
    call.run(problem);
  });
}
