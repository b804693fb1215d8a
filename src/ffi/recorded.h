/* Calls of the C API as data, for hosts that run a call later and elsewhere than it was made.
 *
 * Who includes this header calls the compute functions as always; a call with DLK_LAUNCH_PLAN_ONLY
 * that succeeds also leaves a record of its arguments, which dlk_last_record() returns.
 * (dlk_functions.h and dlk_recorded_names.h are made of the declarations in include/dlkern.) */
#ifndef DLKERN_FFI_RECORDED_H_
#define DLKERN_FFI_RECORDED_H_

#include <dlkern/dlkern.h>

#include "dlk_functions.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dlk_record {
  const char* function; /* name of the C function */
  const uint8_t* bytes; /* its arguments, without the addresses of tensors */
  size_t size;
  void* const* data; /* addresses of the tensors, in the order in which buffers are wanted later */
  size_t tensors;
} dlk_record;

/* Of this thread's last plan-only call that succeeded; lives until the next one. */
const dlk_record* dlk_last_record(void);

/* The workspace that the recorded call would need on another device; DLK_NOT_SUPPORTED and others
 * as the call itself. */
dlk_status_t dlk_plan_record(const dlk_record* record, DLDevice device, size_t* workspace_bytes);

/* The handler of XLA's FFI that runs records, for host memory or for the GPU; NULL where this build
 * has none. */
void* dlk_xla_handler(int gpu);

#ifdef __cplusplus
#define DLK_DECLARE(name) extern decltype(&name) recorded_##name;
#else
#define DLK_DECLARE(name) extern __typeof__(&name) recorded_##name;
#endif
DLK_FUNCTIONS(DLK_DECLARE)

#ifdef __cplusplus
}
#else
#include "dlk_recorded_names.h"
#endif
#endif /* DLKERN_FFI_RECORDED_H_ */
