// Convolutions whose filter has one tap and moves by one pixel without padding: a matrix product of
// pixels by channels, by whatever kernel of gemm.h takes it.
//
//   forward          y[pixel, k]  = bias[k] + sum_c x[pixel, c] w[k, c]
//   backward_input   dx[pixel, c] = bias[c] + sum_k dy[pixel, k] w[k, c]
//   backward_weight  dw[k, c]     = sum_pixel dy[pixel, k] x[pixel, c]
//
// Pixels are rows of the product where channels are neighbours in memory, else columns: then images are
// a batch, or in the gradient of weights a part of the index of the sum. Groups are a batch.
#include "cuda/conv.h"
#include "cuda/gemm.h"

namespace dlkern {
namespace {

// The pixels of x and y, which are as many: dimensions that merge are one.
struct Pixels {
  StridedIndex<2> all;      // n, then spatial
  StridedIndex<2> spatial;  // of one image

  explicit Pixels(const ConvProblem& p) {
    const ConvGeometry& g = p.geometry;
    all.push(g.batch, {p.x_strides.n, p.y_strides.n});
    for (int d = 0; d < 3; ++d) {
      for (StridedIndex<2>* index : {&all, &spatial}) {
        index->push(g.out[d], {p.x_strides.spatial[d], p.y_strides.spatial[d]});
      }
    }
  }
};

const char* not_pointwise(const ConvProblem& p) {
  const ConvGeometry& g = p.geometry;
  for (int d = 0; d < 3; ++d) {
    const Window& w = g.window[d];
    if (w.kernel != 1 || w.stride != 1 || w.pad_begin != 0 || g.in[d] != g.out[d]) {
      return "more than one tap, a stride or padding";
    }
  }
  if (g.groups > 1 && (g.c < 16 || g.k < 16)) return "few channels in a group";
  if (p.x.numel() == 0 || p.y.numel() == 0 || p.w.numel() == 0) return "nothing to multiply";
  return nullptr;
}
const char* unsuitable(const ConvProblem& p) {
  if (const char* reason = fused_work_declines(p)) return reason;
  return not_pointwise(p);
}

// An image times the weights: x giving y or, where it is inverse, y giving x.
const char* image_product(const ConvProblem& p, bool inverse, Gemm& g) {
  const ConvGeometry& geometry = p.geometry;
  const int from = inverse ? 1 : 0, to = 1 - from;
  const Tensor* images[2] = {&p.x, &p.y};
  const ConvImageStrides* strides[2] = {&p.x_strides, &p.y_strides};
  const int64_t channels[2] = {geometry.c, geometry.k};
  const int64_t of_weights[2] = {p.w_strides.c, p.w_strides.k};
  g.batch_invariant = true;  // an image's bits do not depend on the others
  const Pixels pixels(p);
  const bool one = pixels.all.ndim <= 1;  // pixels of all images have one stride
  if (!one && pixels.spatial.ndim > 1) return "an image's pixels have no common stride";
  const StridedIndex<2>& index = one ? pixels.all : pixels.spatial;
  const auto pixel = [&](int image) { return index.ndim ? index.stride[image][0] : 0; };

  const int64_t bias = p.bias ? p.bias.strides[0] : 0;
  const Matrix image{images[from]->data, images[from]->dtype, pixel(from), pixel(from)};
  const Matrix weights{p.w.data, p.w.dtype, of_weights[to], of_weights[to]};
  // Of the operands in this order, for channels last; the other way round else.
  const bool last = channels_last(p);
  g.a = last ? image : weights;
  g.b = last ? weights : image;
  g.m = last ? index.numel : channels[to];
  g.n = last ? channels[to] : index.numel;
  g.y = {images[to]->data, images[to]->dtype, last ? pixel(to) : strides[to]->c,
         last ? strides[to]->c : pixel(to)};
  if (p.bias) {
    g.c = {p.bias.data, p.bias.dtype, last ? 0 : bias, last ? bias : 0};
    g.beta = 1;
  }
  const auto ordered = [&](int64_t of_image, int64_t of_weight, int64_t of_bias, int64_t of_result,
                           int64_t extent) {
    g.batch.push(extent, {last ? of_image : of_weight, last ? of_weight : of_image, of_bias,
                          of_result, 0, 0, 0});
  };
  ordered(channels[from] * strides[from]->c, p.w_strides.group, channels[to] * bias,
          channels[to] * strides[to]->c, geometry.groups);
  if (!one) ordered(strides[from]->n, 0, 0, strides[to]->n, geometry.batch);
  const int64_t image_k = strides[from]->c, weights_k = of_weights[from];
  g.k.push(channels[from], {last ? image_k : weights_k, last ? weights_k : image_k});
  return nullptr;
}

// The gradient of a bias comes along where it is a sum of the first operand's rows.
bool sums_rows(const ConvProblem& p) {
  return p.bias && !p.transposed && p.geometry.groups == 1 && channels_last(p);
}
void weight_product(const ConvProblem& p, Gemm& g) {
  const ConvGeometry& geometry = p.geometry;
  const ConvWeightStrides& w = p.w_strides;
  const DType dtype = p.x.dtype;
  g.a = {p.y.data, dtype, p.y_strides.c, 0};
  g.b = {p.x.data, dtype, 0, p.x_strides.c};
  g.m = geometry.k;
  g.n = geometry.c;
  g.y = {p.w.data, dtype, w.k, w.c};
  if (p.accumulate) {
    g.c = g.y;
    g.beta = 1;
  }
  const Pixels pixels(p);
  for (int d = 0; d < pixels.all.ndim; ++d) {
    g.k.push(pixels.all.shape[d], {pixels.all.stride[1][d], pixels.all.stride[0][d]});
  }
  const int64_t c = p.accumulate ? w.group : 0;
  g.batch.push(geometry.groups,
               {geometry.k * p.y_strides.c, geometry.c * p.x_strides.c, c, w.group, 0, 0, 0});
  if (sums_rows(p)) {
    g.row_sum = {p.bias.data, dtype, p.bias.strides[0], 0};
    g.add_row_sum = p.accumulate;
  }
}

const char* make_product(const ConvForward& p, Gemm& g) { return image_product(p, false, g); }
const char* make_product(const ConvBackwardInput& p, Gemm& g) { return image_product(p, true, g); }
const char* make_product(const ConvBackwardWeight& p, Gemm& g) {
  weight_product(p, g);
  return nullptr;
}

template <class Problem>
const char* supports(const Problem& p) {
  if (const char* reason = unsuitable(p)) return reason;
  Gemm g;
  return make_product(p, g);
}

// f(the product, what computes it)
template <class Problem, class F>
auto with_product(const Problem& p, F&& f) {
  Gemm g;
  g.tf32 = p.precision == DLK_PRECISION_TF32;
  make_product(p, g);
  return f(g, gpu::gemm_impl(g));
}

template <class Problem>
size_t workspace_bytes(const Problem& p) {
  return with_product(p, [](const Gemm& g, const Impl<Gemm>& impl) {
    return impl.workspace_bytes ? impl.workspace_bytes(g) : size_t{0};
  });
}
template <class Problem>
void run(const Problem& p, const Launch& launch) {
  with_product(p, [&](const Gemm& g, const Impl<Gemm>& impl) { impl.run(g, launch); });
  if constexpr (std::is_same_v<Problem, ConvBackwardWeight>) {
    if (p.bias && !sums_rows(p)) gpu::add_bias_gradient(p, launch);
  }
}

template <class Problem>
void candidates(const Problem& p, Candidates& out) {
  with_product(p, [&](const Gemm& g, const Impl<Gemm>& impl) {
    if (impl.candidates) impl.candidates(g, out);
  });
}

template <class Problem>
constexpr Impl<Problem> kImpls[] = {{"pointwise_gemm", supports<Problem>, workspace_bytes<Problem>,
                                     run<Problem>, candidates<Problem>}};

}  // namespace

const char* gpu::pointwise_product(const ConvProblem& p, Gemm& g) {
  if (const char* reason = not_pointwise(p)) return reason;
  return image_product(p, false, g);
}

ImplList<ConvForward> conv_forward_pointwise_impls() { return kImpls<ConvForward>; }
ImplList<ConvBackwardInput> conv_backward_input_pointwise_impls() {
  return kImpls<ConvBackwardInput>;
}
ImplList<ConvBackwardWeight> conv_backward_weight_pointwise_impls() {
  return kImpls<ConvBackwardWeight>;
}

}  // namespace dlkern
