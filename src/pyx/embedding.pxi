cdef extern from "dlkern/embedding.h" nogil:
    ctypedef struct dlk_embedding_params:
        uint32_t struct_size
        int32_t accumulate
        int64_t padding_idx
        int32_t scale_by_freq
        int32_t reserved
    dlk_status_t dlk_embedding_forward(const DLTensor*, const DLTensor*, const DLTensor*,
                                       const dlk_launch*)
    dlk_status_t dlk_embedding_backward(const DLTensor*, const DLTensor*, const DLTensor*,
                                        const dlk_embedding_params*, const dlk_launch*)
    dlk_status_t dlk_one_hot(const DLTensor*, const DLTensor*, const dlk_launch*)


cdef int rows_shape(Call call, const DLTensor* ids, int64_t length, int64_t* shape) except -1:
    """The shape of ids and one dimension more; its rank."""
    if ids.ndim >= MAX_DIMS:
        raise ValueError(f"{call.op}: ids has {ids.ndim} dimensions, expected at most "
                         f"{MAX_DIMS - 1}")
    for d in range(ids.ndim):
        shape[d] = ids.shape[d]
    shape[ids.ndim] = length
    return ids.ndim + 1


def embedding(ids, weight, out, stream):
    cdef Call call = Call("embedding", stream)
    cdef const DLTensor* tids = call.input("ids", ids)
    cdef const DLTensor* tweight = call.input("weight", weight)
    cdef int64_t shape[MAX_DIMS]
    cdef int ndim = rows_shape(
        call, tids, tweight.shape[tweight.ndim - 1] if tweight.ndim else 0, shape)
    cdef const DLTensor* ty = call.output("y", out, ndim, shape, tweight.dtype)
    while call.pending():
        with nogil:
            call.status = dlk_embedding_forward(tids, tweight, ty, &call.launch)
    return call.result()


def embedding_backward(dy, ids, num_embeddings, padding_idx, bint scale_grad_by_freq,
                       bint accumulate, out, stream):
    cdef Call call = Call("embedding_backward", stream)
    cdef const DLTensor* tdy = call.input("dy", dy)
    cdef const DLTensor* tids = call.input("ids", ids)
    cdef int64_t shape[2]
    if accumulate and out is None:
        raise ValueError(f"{call.op}: accumulate is True, expected out= to add to")
    if out is None:
        shape[0] = integer(call, "num_embeddings", num_embeddings)
        if shape[0] < 0:
            raise ValueError(f"{call.op}: num_embeddings is {num_embeddings}, expected 0 or more")
    else:
        shape[0] = 0
    shape[1] = tdy.shape[tdy.ndim - 1] if tdy.ndim else 0
    cdef const DLTensor* tdweight = call.output("dweight", out, 2, shape, tdy.dtype)
    if out is not None and num_embeddings is not None and tdweight.ndim == 2:
        if tdweight.shape[0] != integer(call, "num_embeddings", num_embeddings):
            raise ValueError(f"{call.op}: out has {tdweight.shape[0]} rows, expected "
                             f"{num_embeddings} (num_embeddings)")
    cdef dlk_embedding_params params = dlk_embedding_params(
        sizeof(dlk_embedding_params), accumulate, -1, scale_grad_by_freq, 0)
    if padding_idx is not None:
        rows = tdweight.shape[0] if tdweight.ndim else 0
        params.padding_idx = integer(call, "padding_idx", padding_idx)
        if not -rows <= params.padding_idx < rows:
            raise ValueError(f"{call.op}: padding_idx is {padding_idx}, expected it in "
                             f"[{-rows}, {rows})")
        params.padding_idx %= rows
    while call.pending():
        with nogil:
            call.status = dlk_embedding_backward(tdy, tids, tdweight, &params, &call.launch)
    return call.result()


def one_hot(ids, num_classes, dtype, out, stream):
    cdef Call call = Call("one_hot", stream)
    cdef const DLTensor* tids = call.input("ids", ids)
    cdef int64_t shape[MAX_DIMS]
    cdef int ndim = rows_shape(call, tids, integer(call, "num_classes", num_classes), shape)
    if shape[ndim - 1] < 0:
        raise ValueError(f"{call.op}: num_classes is {num_classes}, expected 0 or more")
    if dtype not in _dtype_codes:
        raise ValueError(f"{call.op}: dtype is {dtype!r}, expected the name of a dtype")
    cdef DLDataType to = dtype_named(dtype)
    cdef const DLTensor* ty = call.output("y", out, ndim, shape, to)
    if (ty.dtype.code, ty.dtype.bits) != (to.code, to.bits):
        raise TypeError(f"{call.op}: out.dtype is {dtype_name(ty.dtype)}, expected {dtype}")
    if ty.ndim == ndim and ty.shape[ndim - 1] != shape[ndim - 1]:
        raise ValueError(f"{call.op}: out has {ty.shape[ndim - 1]} classes, expected {num_classes}")
    while call.pending():
        with nogil:
            call.status = dlk_one_hot(tids, ty, &call.launch)
    return call.result()
