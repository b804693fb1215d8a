#include "ops/embedding.h"

#include <dlkern/embedding.h>

#include <limits>

#include "core/cast.h"
#include "core/mixed.h"

namespace dlkern {
namespace {

constexpr dlk_embedding_params kDefaults = DLK_EMBEDDING_PARAMS_INIT;

// ids with a last dimension of extent 1, once they have been checked against `rows` and the shape of
// y or dy, whose last dimension has `columns`.
Tensor prepared(const Call& call, Tensor ids, const Tensor& y, int64_t rows, int64_t columns) {
  call.require_dtype(ids, {DType::kInt64, DType::kInt32});
  call.require_rank(ids, 0, kMaxDims - 1);
  Dims shape = ids.shape;
  shape[ids.ndim] = columns;
  call.require_shape(y, {shape.data(), static_cast<size_t>(ids.ndim) + 1},
                     "ids.shape and the length of a row");
  if (call.device().is_gpu && call.checks_values()) {
    const std::vector<int64_t> values = call.read_integers(ids);
    for (size_t i = 0; i < values.size(); ++i) check_id(values[i], rows, i);
  }
  ids.shape[ids.ndim] = 1;
  ids.strides[ids.ndim++] = 1;
  return ids;
}

}  // namespace

void check_id(int64_t id, int64_t rows, int64_t i) {
  if (id >= 0 && id < rows) return;
  fail(DLK_INVALID_ARGUMENT, "ids holds ", id, " at flat index ", i, ", expected 0 to ", rows - 1);
}

uint64_t bits_of_one(DType dtype) {
  return dispatch_any(dtype, [&]<class T>() {
    const T one = cast_wide<T>(1);
    uint64_t bits = 0;
    std::memcpy(&bits, &one, sizeof(T));
    return bits;
  });
}

}  // namespace dlkern

using namespace dlkern;

dlk_status_t dlk_embedding_forward(const DLTensor* ids, const DLTensor* weight, const DLTensor* y,
                                   const dlk_launch* launch) {
  return entry("embedding", launch, [&](Call& call) {
    EmbeddingForward p{call.input("ids", ids), call.input("weight", weight), call.output("y", y)};
    call.require_floating(p.weight);
    call.require_rank(p.weight, 2, 2);
    call.require_same_dtype(p.y, p.weight);
    call.require_disjoint(p.y, p.ids);
    call.require_disjoint(p.y, p.weight);
    p.ids = prepared(call, p.ids, p.y, p.rows(), p.columns());
    call.run(p);
  });
}

dlk_status_t dlk_embedding_backward(const DLTensor* dy, const DLTensor* ids,
                                    const DLTensor* dweight, const dlk_embedding_params* params,
                                    const dlk_launch* launch) {
  return entry("embedding_backward", launch, [&](Call& call) {
    const dlk_embedding_params q = read_params(params, kDefaults);
    EmbeddingBackward p{call.input("dy", dy),           call.input("ids", ids),
                        call.inout("dweight", dweight), q.accumulate != 0,
                        q.scale_by_freq != 0,           q.padding_idx};
    call.require_floating(p.dy);
    call.require_rank(p.dweight, 2, 2);
    require_mixed_dtype(call, p.dweight, p.dy);
    call.require_disjoint(p.dweight, p.dy);
    call.require_disjoint(p.dweight, p.ids);
    if (q.padding_idx < -1 || q.padding_idx >= p.rows()) {
      fail(DLK_INVALID_ARGUMENT, "padding_idx is ", q.padding_idx, ", expected -1 to ",
           p.rows() - 1);
    }
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    if (p.ids.numel() >= kMost || p.rows() >= kMost) {
      fail(DLK_NOT_SUPPORTED, p.ids.numel(), " ids of ", p.rows(),
           " rows, expected below 2^31 - 1");
    }
    p.ids = prepared(call, p.ids, p.dy, p.rows(), p.columns());
    call.run(p);
  });
}

dlk_status_t dlk_one_hot(const DLTensor* ids, const DLTensor* y, const dlk_launch* launch) {
  return entry("one_hot", launch, [&](Call& call) {
    OneHot p{call.input("ids", ids), call.output("y", y)};
    call.require_rank(p.y, 1, kMaxDims);
    call.require_disjoint(p.y, p.ids);
    p.ids = prepared(call, p.ids, p.y, p.classes(), p.classes());
    call.run(p);
  });
}
