# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=False
# The one extension module: the Python side of the C API. Each op family is one .pxi.
cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.pycapsule cimport (
    PyCapsule_GetPointer,
    PyCapsule_IsValid,
    PyCapsule_New,
    PyCapsule_SetName,
)
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, intptr_t, uint64_t, uintptr_t  # no-cython-lint
from libc.string cimport memcpy, memset

from core cimport *

include "dlpack.pxi"
include "tuning.pxi"
include "recorded.pxi"
include "call.pxi"
include "info.pxi"
include "image.pxi"
include "loss.pxi"
include "norm.pxi"
include "norm_batch.pxi"
include "norm_group.pxi"
include "conv.pxi"
include "softmax.pxi"
include "activation.pxi"
include "dropout.pxi"
include "elementwise.pxi"
include "embedding.pxi"
include "gemm.pxi"
include "gemm_scaled.pxi"
include "conv_scaled.pxi"
include "gemm_grouped.pxi"
include "optim.pxi"
include "layout.pxi"
include "pool.pxi"
include "reduce.pxi"
include "rope.pxi"
include "topk.pxi"
