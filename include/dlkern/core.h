/* Core types of the dlkern C API: status, launch, plan, version, device facts.
 *
 * Every compute function has the form
 *
 *     dlk_status_t dlk_<op>_<verb>(inputs..., outputs..., const dlk_<op>_params*, const dlk_launch*);
 *
 * Tensors are borrowed DLTensors: byte_offset, strides (NULL means contiguous; zero and negative
 * strides are honoured), zero-size dimensions and rank 0 are all valid. Tensors documented as
 * optional may be NULL. params == NULL means the defaults given by the DLK_*_PARAMS_INIT macro.
 * launch == NULL means the default stream and no workspace.
 *
 * Every struct begins with struct_size, which the caller sets to sizeof the struct he was compiled
 * with: fields that it lacks have their defaults, or are not filled.
 *
 * A compute call never allocates device memory and never synchronises, except in debug mode
 * (environment variable DLKERN_DEBUG=1, or DLKERN_DEBUG=nan to check outputs for NaN/inf too).
 */
#ifndef DLKERN_CORE_H_
#define DLKERN_CORE_H_

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

#define DLK_VERSION_MAJOR 0
#define DLK_VERSION_MINOR 1
#define DLK_VERSION_PATCH 0
#define DLK_VERSION (DLK_VERSION_MAJOR * 10000 + DLK_VERSION_MINOR * 100 + DLK_VERSION_PATCH)

#if defined(_WIN32)
#define DLK_API
#else
#define DLK_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Values are append-only. */
typedef enum dlk_status_t {
  DLK_SUCCESS = 0,
  DLK_INVALID_ARGUMENT = 1,
  DLK_UNSUPPORTED_DTYPE = 2,
  DLK_NOT_SUPPORTED = 3,
  DLK_WORKSPACE_TOO_SMALL = 4,
  DLK_OUT_OF_MEMORY = 5,
  DLK_DEVICE_ERROR = 6,
  DLK_INTERNAL = 7
} dlk_status_t;

/* Bits of dlk_launch.flags. */
typedef enum dlk_launch_flags {
  /* Validate and choose an implementation, run nothing; read the choice with dlk_explain_last(). */
  DLK_LAUNCH_PLAN_ONLY = 1
} dlk_launch_flags;

/* How one call is run. stream is a cudaStream_t / hipStream_t (NULL = legacy default stream) and is
 * ignored for tensors in host memory. workspace is device memory of at least the size that
 * dlk_explain_last() reported for the same call; 256-byte aligned. */
typedef struct dlk_launch {
  uint32_t struct_size;
  uint32_t flags;
  void* stream;
  void* workspace;
  size_t workspace_bytes;
} dlk_launch;
#define DLK_LAUNCH_INIT {sizeof(dlk_launch), 0, NULL, NULL, 0}

/* What the last call of this thread chose. The strings live until the thread's next call. */
typedef struct dlk_plan {
  uint32_t struct_size;
  uint32_t reserved;
  size_t workspace_bytes;
  const char* implementation; /* name of the chosen implementation, "" if there was none */
  const char* explanation;    /* one line for each that was asked; of PLAN_ONLY calls */
  const char* tuning_key;     /* for dlk_set_tuning(); of PLAN_ONLY calls, "" if nothing to tune */
  const char* candidates;     /* choices worth timing, '\n'-separated, best guess first; or "" */
} dlk_plan;

/* float32 products in GEMM and convolution: full precision, or tf32 tensor cores where present. */
typedef enum dlk_precision { DLK_PRECISION_IEEE = 0, DLK_PRECISION_TF32 = 1 } dlk_precision;

/* Where the channels of an image tensor lie, for any number of spatial dimensions:
 * [N, C, spatial...] or [N, spatial..., C]. */
typedef enum dlk_layout { DLK_LAYOUT_NCHW = 0, DLK_LAYOUT_NHWC = 1 } dlk_layout;

/* Padding of convolution and pooling windows. */
typedef enum dlk_padding_mode {
  DLK_PADDING_EXPLICIT = 0, /* as in pad_begin and pad_end */
  /* Output extent = ceil(extent / stride); the padding that this needs is split in halves, the
   * larger one at the end. */
  DLK_PADDING_SAME = 1,
  DLK_PADDING_VALID = 2 /* none */
} dlk_padding_mode;

typedef enum dlk_reduction {
  DLK_REDUCTION_NONE = 0,
  DLK_REDUCTION_MEAN = 1,
  DLK_REDUCTION_SUM = 2
} dlk_reduction;

DLK_API int dlk_version(void);

/* The status's name, e.g. "DLK_INVALID_ARGUMENT". Never NULL. */
DLK_API const char* dlk_status_string(dlk_status_t status);

/* The message of this thread's last failed call: "<op>: <argument> ... is ..., expected ...". */
DLK_API const char* dlk_last_error(void);

/* The plan of this thread's last call that got as far as choosing an implementation. */
DLK_API dlk_status_t dlk_explain_last(dlk_plan* plan);

/* For tests: from now on this thread's calls choose only among the implementations with these names,
 * ','-separated and without spaces; NULL or "": among all. A thread begins with what the environment
 * variable DLKERN_IMPL named when the library was first used. A call that is left without an
 * implementation fails with DLK_NOT_SUPPORTED. */
DLK_API dlk_status_t dlk_set_implementations(const char* names);

/* Makes the kernels whose plan has this tuning_key use one of its candidates instead of their own
 * choice, from any thread's next call on, on all devices of that architecture. It changes how fast
 * they are and may change in which order they sum, never whether they are right; a choice that a
 * kernel does not know is ignored. choice == NULL removes the entry, key == NULL all entries. */
DLK_API dlk_status_t dlk_set_tuning(const char* key, const char* choice);

/* The choice set for key, 0-terminated, "" where there is none. DLK_INVALID_ARGUMENT where it does
 * not fit into choice_bytes. */
DLK_API dlk_status_t dlk_get_tuning(const char* key, char* choice, size_t choice_bytes);

/* Threads of the CPU backend, for the whole process. Default: OMP_NUM_THREADS, else all cores
 * that the process may use. n < 1 is DLK_INVALID_ARGUMENT. */
DLK_API dlk_status_t dlk_set_num_threads(int n);
DLK_API int dlk_get_num_threads(void);

/* What this library was built with. */
typedef struct dlk_build_info {
  uint32_t struct_size;
  uint32_t reserved;
  const char* version;
  const char* gpu;           /* "none", "cuda" or "hip" */
  const char* architectures; /* GPU architectures compiled in, ';'-separated */
  const char* compilers;
  const char* blas;
  const char* cpu_arch; /* instruction set of the CPU kernels, e.g. "x86-64-v3" */
} dlk_build_info;
DLK_API dlk_status_t dlk_get_build_info(dlk_build_info* info);

/* DLK_SUCCESS where this CPU has the instructions that the CPU kernels were compiled for. */
DLK_API dlk_status_t dlk_check_cpu(void);

/* Number of GPUs usable by this build: 0 for a CPU-only build, without a driver, or without a GPU. */
DLK_API int dlk_device_count(void);

typedef struct dlk_device_info {
  uint32_t struct_size;
  int32_t compute_capability; /* 10 * major + minor */
  char name[256];
  size_t total_memory_bytes;
  size_t free_memory_bytes;
  int32_t multiprocessors;
  int32_t driver_version; /* as the runtime reports it, e.g. 13000 */
  int32_t runtime_version;
  int32_t reserved;
} dlk_device_info;
DLK_API dlk_status_t dlk_get_device_info(int device, dlk_device_info* info);

#ifdef __cplusplus
}
#endif
#endif /* DLKERN_CORE_H_ */
