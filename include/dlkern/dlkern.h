/* The whole C API of dlkern. */
#ifndef DLKERN_DLKERN_H_
#define DLKERN_DLKERN_H_

#include <dlkern/activation.h>
#include <dlkern/conv.h>
#include <dlkern/core.h>
#include <dlkern/dropout.h>
#include <dlkern/elementwise.h>
#include <dlkern/embedding.h>
#include <dlkern/gemm.h>
#include <dlkern/layout.h>
#include <dlkern/loss.h>
#include <dlkern/norm.h>
#include <dlkern/norm_group.h>
#include <dlkern/optim.h>
#include <dlkern/pool.h>
#include <dlkern/reduce.h>
#include <dlkern/rope.h>
#include <dlkern/softmax.h>
#include <dlkern/topk.h>

#endif /* DLKERN_DLKERN_H_ */
