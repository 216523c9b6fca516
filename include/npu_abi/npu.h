/* SPDX-License-Identifier: Apache-2.0
 * npu.h - the host API: devices, device memory, streams, blobs and launches, from C99 or C++17.
 *
 *     gcc prog.c $(npu-config --cflags --libs)
 *
 * Rules that hold for every function:
 *  - It returns npu_result_t: NPU_SUCCESS, a status (NPU_NOT_READY, NPU_TIMEOUT) or an error; all others are negative.
 *  - Outputs are written only on success, and arguments are copied before it returns.
 *  - Handles are checked, never followed: a destroyed one gives NPU_ERROR_STALE_HANDLE, a made-up one
 *    NPU_ERROR_INVALID_HANDLE. A host address that this process cannot read or write gives NPU_ERROR_BAD_ADDRESS.
 *  - It may be called from any thread with at least 256 KiB of stack, but from no signal handler. Calls are serialised; only the current
 *    device and the last error belong to a thread. A thread's floating-point environment has no say in results and stays as it is.
 *  - Times are virtual: the host has a position on the device's clock, each call moves it by what the hardware profile
 *    says, and a wait moves it to the completion. Time-outs are counted on that clock, in nanoseconds.
 *  - Besides the results that its comment lists, it may return
 *      NPU_ERROR_NOT_INITIALIZED  npu_init has not succeeded, or npu_shutdown has ended the library, or the library
 *                                 could not start (npu_get_last_error_detail has the reason), or the process ran Python
 *                                 before and has ended it,
 *      NPU_ERROR_NOT_PERMITTED    in a child process after fork: the library belongs to the parent,
 *      NPU_ERROR_OUT_OF_HOST_MEMORY
 *      NPU_ERROR_DEVICE_LOST      an earlier fault ended the context. What is held can still be freed, destroyed and unloaded;
 *                                 after the npu_shutdown of the last user npu_init makes a new context,
 *      NPU_ERROR_INTERNAL         a defect of the library.
 *
 * Device memory is named by `void *`: the device virtual address, and above it, from bit 40, the number of the device. It is not a
 * host address; the host never follows it, and pointer arithmetic inside an allocation is allowed wherever the comment does not ask
 * for the start of an allocation.
 */
#ifndef NPU_H
#define NPU_H
#include <stddef.h>
#include <stdint.h>

#define NPU_VERSION_MAJOR 0 /* changes when a program must be compiled again */
#define NPU_VERSION_MINOR 1 /* grows when something was added */

#if defined(__GNUC__)
#define NPU_API __attribute__((visibility("default")))
#else
#define NPU_API
#endif
#ifdef __cplusplus
extern "C" {
#endif

/* ---- Results -------------------------------------------------------------------------------------- */
/* Values are stable. The comment behind a value is the text of npu_get_error_string. */
typedef enum npu_result {
    NPU_SUCCESS = 0,                          /* success */
    /* status: nothing is wrong, and the last error stays what it was */
    NPU_NOT_READY = -1,                       /* work that was asked about has not finished */
    NPU_TIMEOUT = -2,                         /* the time-out passed before the work finished */
    /* the caller's: reported by the call itself, which changed nothing */
    NPU_ERROR_NOT_INITIALIZED = -10,          /* the library is not initialised */
    NPU_ERROR_INVALID_VALUE = -11,            /* a value is not one of those that the function accepts */
    NPU_ERROR_NULL_POINTER = -12,             /* a pointer that must not be NULL is NULL */
    NPU_ERROR_BAD_ADDRESS = -13,              /* a host address that this process cannot read or write */
    NPU_ERROR_INVALID_HANDLE = -14,           /* not a handle of this kind */
    NPU_ERROR_STALE_HANDLE = -15,             /* the handle or pointer was valid and its object is gone */
    NPU_ERROR_WRONG_CONTEXT = -16,            /* the object belongs to another device or context */
    NPU_ERROR_INVALID_SIZE = -17,             /* a size is zero or does not fit the object */
    NPU_ERROR_MISALIGNED = -18,               /* an address or size is not aligned as the function asks */
    NPU_ERROR_OUT_OF_RANGE = -19,             /* a range leaves its allocation or the bound that was given */
    NPU_ERROR_OVERLAP = -20,                  /* source and destination overlap */
    NPU_ERROR_OUT_OF_DEVICE_MEMORY = -21,     /* not enough device memory */
    NPU_ERROR_OUT_OF_HOST_MEMORY = -22,       /* not enough host memory */
    NPU_ERROR_OUT_OF_RESOURCES = -23,         /* a queue, a handle table or another finite resource is used up */
    NPU_ERROR_NOT_SUPPORTED = -24,            /* not supported, by design */
    NPU_ERROR_NOT_PERMITTED = -25,            /* not allowed here */
    NPU_ERROR_ALREADY_REGISTERED = -26,       /* the host memory is registered already */
    NPU_ERROR_NOT_REGISTERED = -27,           /* the host memory is not registered */
    NPU_ERROR_IN_USE = -28,                   /* the object is in use by work in flight */
    NPU_ERROR_BAD_STATE = -29,                /* the object is not in a state that allows it */
    NPU_ERROR_INVALID_BLOB = -30,             /* the blob is damaged, foreign or does not fit this device */
    NPU_ERROR_ARG_COUNT = -31,                /* too few or too many kernel arguments */
    NPU_ERROR_ARG_INDEX = -32,                /* no kernel argument of that index */
    NPU_ERROR_ARG_SIZE = -33,                 /* a kernel argument is smaller than the kernel needs */
    NPU_ERROR_ARG_KIND = -34,                 /* a kernel argument is of another kind than the kernel needs */
    NPU_ERROR_NOT_RECORDED = -35,             /* the event was never recorded */
    NPU_ERROR_NO_TIMING = -36,                /* the event keeps no time */
    NPU_ERROR_CAPTURE_UNSUPPORTED = -37,      /* not possible while the stream is being captured */
    NPU_ERROR_CAPTURE_INVALIDATED = -38,      /* an earlier error ended the capture */
    NPU_ERROR_VERSION_MISMATCH = -39,         /* the program was compiled for a newer library; nothing returns it yet */
    NPU_ERROR_FILE = -40,                     /* a file cannot be opened or read */
    NPU_ERROR_UNIMPLEMENTED = -41,            /* not implemented yet */
    NPU_ERROR_INTERNAL = -99,                 /* a defect of the library */
    /* the device's: belong to an operation, reported by the next call that waits for it or asks about it */
    NPU_ERROR_DEVICE_PAGE_FAULT = -100,       /* the device touched an address that is not mapped */
    NPU_ERROR_DEVICE_MISALIGNED = -101,       /* the device touched a misaligned address; nothing returns it yet */
    NPU_ERROR_KERNEL_FAULT = -102,            /* a SHAVE program faulted */
    NPU_ERROR_DMA_FAULT = -103,               /* a DMA descriptor was refused */
    NPU_ERROR_BARRIER_DEADLOCK = -104,        /* tasks wait for a barrier that nothing will produce */
    NPU_ERROR_BARRIER_UNDERFLOW = -105,       /* a barrier was produced or consumed more often than it counts */
    NPU_ERROR_WATCHDOG_TIMEOUT = -106,        /* the device made no progress in the time that the watchdog allows; nothing returns it yet: an endless SHAVE program is a KERNEL_FAULT */
    NPU_ERROR_ABORTED_BY_PRIOR_ERROR = -107,  /* an earlier operation failed, so this one did not run */
    NPU_ERROR_PREEMPTED = -108,               /* the operation was preempted and not resumed; nothing returns it yet */
    NPU_ERROR_DEVICE_LOST = -109              /* the context is lost after a fault */
} npu_result_t;

/* The last error of the calling thread (NPU_SUCCESS when there was none), and forget it. Never fails; works before npu_init. */
NPU_API npu_result_t npu_get_last_error(void);
/* The same without forgetting it. */
NPU_API npu_result_t npu_peek_last_error(void);
/* The name of a result ("NPU_ERROR_IN_USE"), "unknown" for other values. Static text; works before npu_init. */
NPU_API const char *npu_get_error_name(npu_result_t result);
/* A sentence on a result, "unknown result" for other values. Static text; works before npu_init. */
NPU_API const char *npu_get_error_string(npu_result_t result);

typedef struct npu_error_detail {
    uint32_t size;                /* [in]  sizeof(npu_error_detail_t) */
    int32_t  result;              /* [out] npu_result_t */
    uint64_t call_site;           /* [out] code address behind the call that reported the error */
    uint64_t enqueue_site;        /* [out] code address behind the call that enqueued the failing operation; 0 = the same call */
    uint64_t job_id;              /* [out] of the failing operation; 0 = none */
    char     function[64];        /* [out] the function that reported it, NUL-terminated */
    char     message[1024];       /* [out] what is wrong: the value, the limit, the name; NUL-terminated, cut to fit */
} npu_error_detail_t;
/* More on the last error of the calling thread. It stays until the thread's next error. Works before npu_init.
 *   NULL_POINTER  detail is NULL        INVALID_SIZE  detail->size is not sizeof(npu_error_detail_t)
 *   BAD_ADDRESS   detail cannot be read or written */
NPU_API npu_result_t npu_get_last_error_detail(npu_error_detail_t *detail);

/* ---- Initialisation ------------------------------------------------------------------------------- */
/* Start the library, or count one more user of it. The environment variable NPU_PROFILE names the hardware profiles of the
 * devices, separated by commas (default "npu-37xx": one device, at most 128); the first user's call reads it. Devices start when they
 * are first used.
 *   INVALID_VALUE    flags is not 0, or NPU_PROFILE names no profile, or too many
 *   NOT_INITIALIZED  the library cannot start: its Python environment is gone, or the process runs another Python version */
NPU_API npu_result_t npu_init(uint32_t flags);
/* Count one user less; the last one ends everything: work in flight is abandoned, every handle and pointer becomes stale. */
NPU_API npu_result_t npu_shutdown(void);
/* The library's version as major << 16 | minor. Works before npu_init.
 *   NULL_POINTER  version is NULL       BAD_ADDRESS  version cannot be written */
NPU_API npu_result_t npu_get_version(uint32_t *version);

/* ---- Devices -------------------------------------------------------------------------------------- */
/* How many devices there are.
 *   NULL_POINTER, BAD_ADDRESS  count */
NPU_API npu_result_t npu_get_device_count(uint32_t *count);
/* Make `device` (0 ... count - 1) the calling thread's current device, and boot it on first use. A thread begins with device 0.
 *   INVALID_VALUE  no such device */
NPU_API npu_result_t npu_set_device(uint32_t device);
/* The calling thread's current device.
 *   NULL_POINTER, BAD_ADDRESS  device */
NPU_API npu_result_t npu_get_device(uint32_t *device);

typedef struct npu_device_properties {
    uint32_t size;                /* [in]  sizeof(npu_device_properties_t) */
    uint32_t tile_count;          /* [out] tiles; each has one DPU and a CMX scratchpad */
    uint32_t shaves_per_tile;     /* [out] vector cores of one tile */
    uint32_t dma_port_count;      /* [out] */
    uint32_t barrier_count;       /* [out] physical barriers of the whole device */
    uint32_t cmx_bytes_per_tile;  /* [out] */
    uint64_t ddr_bytes;           /* [out] device memory */
    uint64_t clock_hz;            /* [out] of the DPU */
    char     profile[64];         /* [out] name of the hardware profile, NUL-terminated */
} npu_device_properties_t;
/* What device number `device` is, as its driver says; the device boots on first use.
 *   INVALID_VALUE  no such device       NULL_POINTER, BAD_ADDRESS  properties
 *   INVALID_SIZE   properties->size is not sizeof(npu_device_properties_t) */
NPU_API npu_result_t npu_get_device_properties(npu_device_properties_t *properties, uint32_t device);
/* Wait for all work of the current device, for ever if need be. Returns the first error of that work which was not yet reported:
 *   the device's errors, DEVICE_PAGE_FAULT ... DEVICE_LOST */
NPU_API npu_result_t npu_synchronize_device(void);

/* ---- Virtual time --------------------------------------------------------------------------------- */
/* The host's position on the current device's clock, in picoseconds.
 *   NULL_POINTER, BAD_ADDRESS  time_ps */
NPU_API npu_result_t npu_get_time_ps(uint64_t *time_ps);
/* Let the host work for `duration_ns` of virtual time while the device goes on.
 *   INVALID_VALUE  duration_ns is above 10^15, or the clock would pass 2^61 ps */
NPU_API npu_result_t npu_host_delay(uint64_t duration_ns);

/* ---- Device memory -------------------------------------------------------------------------------- */
/* Allocate `size` bytes of the current device's memory, 4096-byte aligned. Its content is poison (bytes 0xff) until written.
 *   INVALID_SIZE          size is 0     OUT_OF_DEVICE_MEMORY  there is not that much
 *   INVALID_VALUE         flags is not 0                NULL_POINTER, BAD_ADDRESS  ptr */
NPU_API npu_result_t npu_malloc(void **ptr, size_t size, uint32_t flags);
/* Free an allocation by its first address. Does not wait: the caller synchronises with work that uses it first. NULL is allowed.
 *   STALE_HANDLE   it was freed before  INVALID_VALUE  not the first address of an allocation
 *   WRONG_CONTEXT  it is or was memory of another device */
NPU_API npu_result_t npu_free(void *ptr);
/* Free and total bytes of the current device's memory.
 *   NULL_POINTER, BAD_ADDRESS  free_bytes, total_bytes */
NPU_API npu_result_t npu_mem_get_info(uint64_t *free_bytes, uint64_t *total_bytes);

typedef enum npu_memcpy_kind {
    NPU_MEMCPY_HOST_TO_DEVICE = 1,
    NPU_MEMCPY_DEVICE_TO_HOST = 2,
    NPU_MEMCPY_DEVICE_TO_DEVICE = 3
} npu_memcpy_kind_t;
/* Copy `size` bytes from src to dst; dst_max is how many bytes may be written there. Complete on return. It waits for the default
 * stream's earlier work, and for no other stream. Size 0 is allowed and copies nothing.
 *   INVALID_VALUE  kind is none of the three            NULL_POINTER  dst or src is NULL
 *   OUT_OF_RANGE   size > dst_max, or a device range is not inside one allocation
 *   STALE_HANDLE   a device range lies in freed memory  BAD_ADDRESS   a host range cannot be read, or not all of it written
 *   OVERLAP        the ranges of a DEVICE_TO_DEVICE copy overlap      WRONG_CONTEXT  memory of another device
 *   the device's errors, from earlier work of the stream */
NPU_API npu_result_t npu_memcpy(void *dst, size_t dst_max, const void *src, size_t size, npu_memcpy_kind_t kind);
/* Set `size` bytes of device memory to the low eight bits of value; otherwise as npu_memcpy. */
NPU_API npu_result_t npu_memset(void *dst, size_t dst_max, int32_t value, size_t size);

/* ---- Streams -------------------------------------------------------------------------------------- */
/* A queue of work that runs in order. Streams are independent of each other. NULL is the current device's default stream. */
typedef struct npu_stream_s *npu_stream_t;
/* Create a stream on the current device.
 *   NULL_POINTER, BAD_ADDRESS  stream   OUT_OF_RESOURCES  no command queue is left */
NPU_API npu_result_t npu_create_stream(npu_stream_t *stream);
/* Destroy a stream, after its work: waits as npu_synchronize_stream does; the handle becomes stale even when that work failed.
 *   INVALID_HANDLE, STALE_HANDLE  stream (the default stream cannot be destroyed: INVALID_HANDLE)
 *   the device's errors */
NPU_API npu_result_t npu_destroy_stream(npu_stream_t stream);
/* Wait for all work of the stream. Returns the first error of that work which was not yet reported.
 *   INVALID_HANDLE, STALE_HANDLE  stream                the device's errors */
NPU_API npu_result_t npu_synchronize_stream(npu_stream_t stream);
/* The same, for at most `timeout_ns` of virtual time (2^52 and above, as UINT64_MAX: for ever).
 *   TIMEOUT  work is left; the host's position is behind the time-out */
NPU_API npu_result_t npu_synchronize_stream_timeout(npu_stream_t stream, uint64_t timeout_ns);
/* Ask without waiting.
 *   SUCCESS  no work is left            NOT_READY  work is left
 *   INVALID_HANDLE, STALE_HANDLE  stream                the device's errors */
NPU_API npu_result_t npu_query_stream(npu_stream_t stream);
/* Copy in stream order. Host memory is pageable, so the call waits for the stream's earlier work and returns when the copy is
 * complete. Results as npu_memcpy, and INVALID_HANDLE, STALE_HANDLE  stream */
NPU_API npu_result_t npu_memcpy_async(void *dst, size_t dst_max, const void *src, size_t size, npu_memcpy_kind_t kind, npu_stream_t stream);
/* Set in stream order, as npu_memcpy_async. */
NPU_API npu_result_t npu_memset_async(void *dst, size_t dst_max, int32_t value, size_t size, npu_stream_t stream);

/* ---- Blobs and kernels ---------------------------------------------------------------------------- */
enum { NPU_MAX_DIMS = 8, NPU_NAME_BYTES = 128 };
typedef enum npu_dtype {
    NPU_DT_F16 = 0, NPU_DT_BF16 = 1, NPU_DT_F32 = 2, NPU_DT_F64 = 3, NPU_DT_I8 = 4, NPU_DT_U8 = 5, NPU_DT_I16 = 6, NPU_DT_U16 = 7,
    NPU_DT_I32 = 8, NPU_DT_U32 = 9, NPU_DT_I64 = 10, NPU_DT_U64 = 11, NPU_DT_BOOL = 12, NPU_DT_COUNT = 13
} npu_dtype_t;

/* A compiled model in device memory. */
typedef struct npu_blob_s *npu_blob_t;
/* Something of a blob that can be launched. It lives as long as its blob. */
typedef struct npu_kernel_s *npu_kernel_t;

/* Load a blob file onto the current device.
 *   NULL_POINTER, BAD_ADDRESS  blob, path               FILE  the file cannot be opened or read, or is not a regular one
 *   INVALID_BLOB  it is damaged, foreign or needs more than the device has (the detail says what and where)
 *   OUT_OF_DEVICE_MEMORY */
NPU_API npu_result_t npu_load_blob(npu_blob_t *blob, const char *path);
/* Load a blob from `size` bytes of host memory, which are not needed any more after the call.
 *   NULL_POINTER, BAD_ADDRESS  blob, data               INVALID_BLOB, OUT_OF_DEVICE_MEMORY  as npu_load_blob */
NPU_API npu_result_t npu_load_blob_mem(npu_blob_t *blob, const void *data, size_t size);
/* Unload a blob; it and its kernels become stale.
 *   INVALID_HANDLE, STALE_HANDLE  blob  IN_USE  a launch of it has not been waited for */
NPU_API npu_result_t npu_unload(npu_blob_t blob);
/* Find a kernel by its name; NULL finds the only one. A compiled model is one kernel with the model's name.
 *   NULL_POINTER, BAD_ADDRESS  kernel   BAD_ADDRESS  name
 *   INVALID_HANDLE, STALE_HANDLE  blob  INVALID_VALUE  no kernel of that name */
NPU_API npu_result_t npu_get_kernel(npu_kernel_t *kernel, npu_blob_t blob, const char *name);

typedef enum npu_arg_direction { NPU_ARG_IN = 1, NPU_ARG_OUT = 2, NPU_ARG_INOUT = 3 } npu_arg_direction_t;
typedef struct npu_arg_info {
    uint32_t size;                /* [in]  sizeof(npu_arg_info_t) */
    uint32_t direction;           /* [out] npu_arg_direction_t */
    uint32_t dtype;               /* [out] npu_dtype_t */
    uint32_t rank;                /* [out] how many of dims count; 0 = scalar */
    uint64_t dims[8];             /* [out] dense, row-major */
    uint64_t size_bytes;          /* [out] what the buffer must hold */
    char     name[128];           /* [out] the tensor's name in the model, NUL-terminated */
} npu_arg_info_t;
/* How many arguments a kernel takes: a model's inputs, then its outputs.
 *   NULL_POINTER, BAD_ADDRESS  count    INVALID_HANDLE, STALE_HANDLE  kernel */
NPU_API npu_result_t npu_get_num_args(npu_kernel_t kernel, uint32_t *count);
/* What argument `index` is.
 *   NULL_POINTER, BAD_ADDRESS  info     INVALID_SIZE  info->size is not sizeof(npu_arg_info_t)
 *   INVALID_HANDLE, STALE_HANDLE  kernel                ARG_INDEX  index is not below the count */
NPU_API npu_result_t npu_get_arg_info(npu_kernel_t kernel, uint32_t index, npu_arg_info_t *info);

/* ---- Launch --------------------------------------------------------------------------------------- */
typedef enum npu_arg_kind {
    NPU_ARG_BUFFER = 1,           /* value is a device pointer */
    NPU_ARG_INT = 2,              /* value is a signed 64-bit integer */
    NPU_ARG_FLOAT = 3             /* the low 32 bits of value are a float */
} npu_arg_kind_t;
typedef struct npu_arg {
    uint32_t kind;                /* npu_arg_kind_t */
    uint32_t reserved;            /* 0 */
    uint64_t value;
} npu_arg_t;
/* An initialiser for npu_arg_t: npu_arg_t args[] = { NPU_BUFFER(x), NPU_BUFFER(y) }; */
#define NPU_BUFFER(pointer) { NPU_ARG_BUFFER, 0, (uint64_t)(uintptr_t)(pointer) }
/* Enqueue a kernel with `count` arguments and return at once. The arguments are copied; the buffers must live until it has finished.
 * An error of the device comes from the call that waits for the stream.
 *   INVALID_HANDLE, STALE_HANDLE  kernel, stream        WRONG_CONTEXT  kernel, stream and buffers are not of one device
 *   NULL_POINTER, BAD_ADDRESS  args     ARG_COUNT  not as many as npu_get_num_args says
 *   ARG_KIND   an argument's kind is not the kernel's, or a buffer is not device memory
 *   ARG_SIZE   less than the argument's size_bytes lie between the address and the end of its allocation
 *   INVALID_VALUE     reserved is not 0 STALE_HANDLE  a buffer was freed
 *   MISALIGNED        a buffer is not 64-byte aligned   OUT_OF_RESOURCES  the queue is full: synchronise first */
NPU_API npu_result_t npu_launch_kernel_async(npu_kernel_t kernel, const npu_arg_t *args, uint32_t count, npu_stream_t stream);

#ifdef __cplusplus
}
#endif
#endif
