/* SPDX-License-Identifier: Apache-2.0
 * npu.h - the host API: devices, contexts, memory, copies, streams, events, kernels, graphs and profiling, from C99 or C++17.
 *
 *     gcc prog.c $(npu-config --cflags --libs)
 *
 * Rules that hold for every function:
 *  - It returns npu_result_t: NPU_SUCCESS, a status (NPU_NOT_READY, NPU_TIMEOUT) or an error; all others are negative.
 *  - Outputs are written only on success, and arguments are copied before it returns.
 *  - Handles are checked, never followed: a destroyed one gives NPU_ERROR_STALE_HANDLE, a made-up one
 *    NPU_ERROR_INVALID_HANDLE. A host address that this process cannot read or write gives NPU_ERROR_BAD_ADDRESS.
 *  - Thread safety: it may be called from any thread with at least 256 KiB of stack, on any object, at the same time as any other; but from
 *    no signal handler and from no host function. Calls are serialised, and a call that waits lets others in. The current device, the current
 *    context and the last error belong to a thread. A thread's floating-point environment has no say in results and stays as it is.
 *  - Times are virtual: each host thread has a position on the device's clock, each call moves it by what the hardware profile
 *    says, and a wait moves it to the completion. Time-outs are counted on that clock, in nanoseconds; 2^52 and above, as UINT64_MAX: for ever.
 *  - Streams, events, memory and blobs belong to the context in which they were made, the calling thread's current one. In a call all must be of one
 *    context, else NPU_ERROR_WRONG_CONTEXT; the thread's current context need not be it.
 *  - Structures begin with their size where they may grow; a wrong one gives NPU_ERROR_INVALID_SIZE.
 *  - Where vendors' runtimes differ, the comment says "semantics" and the three values of npu_semantics_t.
 *  - Besides the results that its comment lists, it may return
 *      NPU_ERROR_NOT_INITIALIZED  npu_init has not succeeded, or npu_shutdown has ended the library, or the library
 *                                 could not start (npu_get_last_error_detail has the reason), or the process ran Python
 *                                 before and has ended it,
 *      NPU_ERROR_NOT_PERMITTED    in a child process after fork: the library belongs to the parent; or in a host function; or in a signal's handler that has interrupted a call; or this user may not connect to npud,
 *      NPU_ERROR_OUT_OF_HOST_MEMORY
 *      NPU_ERROR_OUT_OF_DEVICE_MEMORY  a call that enqueues, creates, opens, loads, or is the first to need a kernel library, the default stream or the primary context:
 *                                 what the library itself has for that is device memory too,
 *      NPU_ERROR_OUT_OF_RESOURCES a call that enqueues: the stream's queue is full, and its oldest operation waits for what nothing will signal; or a call that enqueues, creates, or
 *                                 is the first to need the default stream or the primary context: queues, doorbells, fences or contexts are used up,
 *      NPU_ERROR_STALE_HANDLE     a call that waits for work and reports its errors: another thread has broken the work off, by npu_destroy_context with NPU_DESTROY_FORCE,
 *                                 npu_reset_device or the last npu_shutdown. All such calls get it then, whatever they wait by, or an error of that work from before,
 *      NPU_ERROR_DEVICE_LOST      an earlier fault ended the context. What is held can still be freed, destroyed and unloaded;
 *                                 npu_reset_device, or npu_shutdown of the last user and npu_init, make a new one,
 *      the device's errors        those of the last group of npu_result_t, and INVALID_BLOB of an operation that the firmware refuses. ascend: an operation's is reported once. Semantics cuda
 *                                 and strict: the first one with which the device has ended an operation *sticks*: from the moment in which the library learns of it, at
 *                                 the latest in the call that reports it, every call that enqueues, waits, asks, creates or allocates in the context returns it, until the context is
 *                                 destroyed or the device reset (a wait or query of a stream may return another one of its own work first). Calls that give up what is
 *                                 held, and those that tell what needs no look at its work (its kernels, ids, time and memory) do not. What leaves the context whole
 *                                 does not stick: HOST_FUNCTION; ABORTED_BY_PRIOR_ERROR of npu_stream_abort; BARRIER_DEADLOCK of a wait for what nothing will signal, whose
 *                                 operation goes on waiting (one that the device has ended so, for barriers of its own, sticks),
 *      NPU_ERROR_CAPTURE_UNSUPPORTED  a call that waits, queries or frees, on a stream (or a context with one) that is being captured; it invalidates the capture,
 *      NPU_ERROR_INTERNAL         a defect of the library.
 *
 * Device memory is named by `void *`: the device virtual address, and above it, from bit 40, the number of the context. It is not a
 * host address; the host never follows it, and pointer arithmetic inside an allocation is allowed wherever the comment does not ask
 * for the start of an allocation.
 */
#ifndef NPU_H
#define NPU_H
#include <stddef.h>
#include <stdint.h>

#define NPU_VERSION_MAJOR 0 /* changes when a program must be compiled again */
#define NPU_VERSION_MINOR 2 /* grows when something was added */

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
    NPU_ERROR_VERSION_MISMATCH = -39,         /* the program was compiled for another or a newer library */
    NPU_ERROR_FILE = -40,                     /* a file cannot be opened or read */
    NPU_ERROR_UNIMPLEMENTED = -41,            /* not implemented yet */
    NPU_ERROR_INTERNAL = -99,                 /* a defect of the library */
    /* the device's: belong to an operation, reported by the next call that waits for it or asks about it; which of them stick: see above */
    NPU_ERROR_DEVICE_PAGE_FAULT = -100,       /* the device touched an address that is not mapped */
    NPU_ERROR_DEVICE_MISALIGNED = -101,       /* the device touched a misaligned address; nothing returns it yet */
    NPU_ERROR_KERNEL_FAULT = -102,            /* a SHAVE program faulted */
    NPU_ERROR_DMA_FAULT = -103,               /* a DMA port refused a descriptor; nothing returns it yet: the firmware refuses it before, as INVALID_BLOB */
    NPU_ERROR_BARRIER_DEADLOCK = -104,        /* tasks wait for a barrier that nothing will produce */
    NPU_ERROR_BARRIER_UNDERFLOW = -105,       /* a barrier was produced or consumed more often than it counts */
    NPU_ERROR_WATCHDOG_TIMEOUT = -106,        /* the operation made no progress in the time that the watchdog allows, and its context is lost; an endless SHAVE program is a KERNEL_FAULT */
    NPU_ERROR_ABORTED_BY_PRIOR_ERROR = -107,  /* an earlier operation failed, so this one did not run */
    NPU_ERROR_PREEMPTED = -108,               /* the operation was preempted and not resumed; nothing returns it yet */
    NPU_ERROR_DEVICE_LOST = -109,             /* the context is lost after a fault; of an operation: the device was reset or unplugged, or how it ended was not reported */
    NPU_ERROR_HOST_FUNCTION = -110            /* a host function raised an exception (Python) or ended its thread (C) */
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
/* Where the rules of vendors' runtimes differ. The environment variable NPU_SEMANTICS (ascend, cuda, strict) chooses, default ascend. */
typedef enum npu_semantics {
    NPU_SEMANTICS_ASCEND = 0,     /* as CANN's runtime: free is immediate, the default stream is a stream like others, pageable copies wait */
    NPU_SEMANTICS_CUDA = 1,       /* as CUDA's runtime: legacy default stream, free waits, pageable host-to-device copies are staged, errors stick */
    NPU_SEMANTICS_STRICT = 2      /* what is not right under all of them is an error */
} npu_semantics_t;
/* flags of npu_init: NPU_INIT_CHECK refuses a library that is older than this header. */
#define NPU_INIT_CHECK ((uint32_t)NPU_VERSION_MAJOR << 24 | (uint32_t)NPU_VERSION_MINOR << 16)
/* Start the library, or count one more user of it. The environment variable NPU_PROFILE names the hardware profiles of the
 * devices, separated by commas (default "npu-37xx": one device, at most 128); the first user's call reads it. Devices start when they
 * are first used. NPU_DEVICE=unix:PATH: the one device is that of npud at PATH (docs/daemon.md), and NPU_PROFILE, when it is set, has to name its profile; when nobody
 * answers there, who uses the device first gets NPU_ERROR_DEVICE_LOST.
 *   INVALID_VALUE    flags is neither 0 nor NPU_INIT_CHECK of some header, or NPU_PROFILE names no profile, or too many, or NPU_SEMANTICS or
 *                    NPU_SCHEDULE is none that exists, NPU_LAUNCH_BLOCKING is neither 0 nor 1, or NPU_KMD_PARAMS is refused by the kernel module, or NPU_DEVICE is not unix:PATH,
 *                    or NPU_FAULTS names no file of faults (docs/recovery.md)
 *   VERSION_MISMATCH NPU_INIT_CHECK of a header with another major version than the library's or a newer minor one
 *   NOT_INITIALIZED  the library cannot start: its Python environment is gone, or the process runs another Python version */
NPU_API npu_result_t npu_init(uint32_t flags);
/* Count one user less; the last one ends everything: work in flight is abandoned, every handle and pointer becomes stale, a team ends, and memory and
 * descriptors of the process are given back. Threads stay, of the library and of what it uses: a process ends by a return from main, by exit or by a signal, at any
 * time and with work in flight; pthread_exit of main leaves it running. exit out of a signal's handler that has interrupted a call writes the program's files
 * and ends without the exit handlers registered before npu_init; calls in those registered later are NPU_ERROR_NOT_PERMITTED. longjmp out of a call is undefined. */
NPU_API npu_result_t npu_shutdown(void);
/* The library's version as major << 16 | minor. Works before npu_init.
 *   NULL_POINTER  version is NULL       BAD_ADDRESS  version cannot be written */
NPU_API npu_result_t npu_get_version(uint32_t *version);

/* The rules that hold; they are chosen before the first device is used.
 *   INVALID_VALUE  none of npu_semantics_t   BAD_STATE  a device is in use */
NPU_API npu_result_t npu_set_semantics(npu_semantics_t semantics);
/* The rules that hold.
 *   NULL_POINTER, BAD_ADDRESS  semantics */
NPU_API npu_result_t npu_get_semantics(npu_semantics_t *semantics);

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
typedef enum npu_attribute {
    NPU_ATTR_TILES = 0, NPU_ATTR_SHAVES = 1 /* of the device */, NPU_ATTR_DMA_PORTS = 2, NPU_ATTR_BARRIERS = 3, NPU_ATTR_CMX_BYTES = 4 /* of the device */,
    NPU_ATTR_DDR_BYTES = 5, NPU_ATTR_CLOCK_HZ = 6, NPU_ATTR_CACHE_LINE_BYTES = 7 /* of the host's caches */, NPU_ATTR_COHERENT = 8 /* 1: the device snoops them */,
    NPU_ATTR_MAX_STREAMS = 9 /* of a context, the default one included */, NPU_ATTR_MAX_CONTEXTS = 10 /* of the device */, NPU_ATTR_QUEUE_DEPTH = 11 /* operations in flight of a stream */,
    NPU_ATTR_FIRMWARE_VERSION = 12 /* major << 16 | minor of its job interface */, NPU_ATTR_COUNT = 13
} npu_attribute_t;
/* One property of device number `device`.
 *   NULL_POINTER, BAD_ADDRESS  value    INVALID_VALUE  no such attribute or device */
NPU_API npu_result_t npu_device_get_attribute(int64_t *value, npu_attribute_t attribute, uint32_t device);
/* Begin anew with the current device: all its contexts end, work in flight is aborted, everything made on it becomes stale, memory
 * included; the clock goes on. The next call makes a new primary context. Other devices are not touched. */
NPU_API npu_result_t npu_reset_device(void);
/* Wait for all work of the current device, of all its contexts, for ever if need be. Returns the first error of that work which was not yet reported.
 *   the device's errors */
NPU_API npu_result_t npu_synchronize_device(void);

/* ---- Contexts ------------------------------------------------------------------------------------- */
/* An address space with everything made in it. Each device has a primary context, made on first use; NULL stands for the
 * current device's primary context. Contexts are isolated from each other: a fault ends one of them. */
typedef struct npu_context_s *npu_context_t;
/* Make a context on the current device, and make it the calling thread's current one.
 *   NULL_POINTER, BAD_ADDRESS  context  INVALID_VALUE  flags is not 0   OUT_OF_RESOURCES  the device has no context left */
NPU_API npu_result_t npu_create_context(npu_context_t *context, uint32_t flags);
enum { NPU_DESTROY_FORCE = 1 };
/* End a context. A thread whose current context it was goes on with its device's primary context.
 *   INVALID_HANDLE, STALE_HANDLE  context (NULL: INVALID_HANDLE)      INVALID_VALUE  flags is neither 0 nor NPU_DESTROY_FORCE
 *   IN_USE  streams, events, memory or blobs of it are left; NPU_DESTROY_FORCE ends them too, and aborts work in flight */
NPU_API npu_result_t npu_destroy_context(npu_context_t context, uint32_t flags);
/* Make a context the calling thread's current one, and its device the current device. npu_set_device goes back to a primary context.
 *   INVALID_HANDLE, STALE_HANDLE  context */
NPU_API npu_result_t npu_set_current_context(npu_context_t context);
/* The calling thread's current context, NULL for a primary one.
 *   NULL_POINTER, BAD_ADDRESS  context */
NPU_API npu_result_t npu_get_current_context(npu_context_t *context);
/* Wait for all work of the current context. Results as npu_synchronize_device. */
NPU_API npu_result_t npu_synchronize_context(void);

/* ---- Virtual time --------------------------------------------------------------------------------- */
/* The host's position on the current device's clock, in picoseconds.
 *   NULL_POINTER, BAD_ADDRESS  time_ps */
NPU_API npu_result_t npu_get_time_ps(uint64_t *time_ps);
/* Let the host work for `duration_ns` of virtual time while the device goes on.
 *   INVALID_VALUE  duration_ns is above 10^15, or the clock would pass 2^61 ps */
NPU_API npu_result_t npu_host_delay(uint64_t duration_ns);
/* How long the calling thread has worked and has been blocked in waits on the current device's clock, in picoseconds, since its first call on it.
 *   NULL_POINTER, BAD_ADDRESS  busy_ps, blocked_ps */
NPU_API npu_result_t npu_get_host_times(uint64_t *busy_ps, uint64_t *blocked_ps);

/* Order of work. All are legal orders of the same program: a program without missing synchronisation gives the same bytes under all of them. */
typedef enum npu_schedule_kind {
    NPU_SCHED_TIMED = 0,          /* by the model's time: the only one whose times mean something */
    NPU_SCHED_EAGER = 1,          /* the device runs until it is idle before a call returns */
    NPU_SCHED_LAZY = 2,           /* only what a wait or query needs runs */
    NPU_SCHED_NEWEST_FIRST = 3,   /* at a wait, of what is ready the newest runs first */
    NPU_SCHED_SEED = 4            /* tasks take random times, from the seed */
} npu_schedule_kind_t;
/* Choose the order on the current device, for work enqueued from now on; waits for the work before. The environment variable NPU_SCHEDULE (timed, eager,
 * lazy, newest-first, seed:N) chooses at the start. `seed` counts for NPU_SCHED_SEED only, else it is 0.
 * NPU_LAUNCH_BLOCKING=1 in the environment, read by the first user's npu_init: a call that enqueues returns when its operation has ended, with the operation's
 * error. Not so in a capture, nor while the operation, or one before it, waits for a notify that has no record yet, which only a later call can give.
 *   INVALID_VALUE  kind or seed */
NPU_API npu_result_t npu_set_schedule(npu_schedule_kind_t kind, uint64_t seed);

/* Several host threads. The device advances to a time only when every thread that has made calls is waiting in one or has come to that time, so the order of
 * calls follows from virtual time. A thread that makes no call for 50 ms of real time (10 s while there is a team) while others wait for it is
 * set aside; npu_is_reproducible then says 0.
 * A team makes it exact: the owner begins a team of `count` threads on the current device and is suspended (NPU_ERROR_NOT_PERMITTED of all its calls but those of teams);
 * every member enters with its rank, 0 ... count - 1, makes its calls and leaves; equal positions go by rank. Members begin at the owner's position, and nobody gets
 * past it until all have entered; when the owner ends the team it is at the last member's. There is one team at a time.
 *   BAD_STATE  a team has not ended, the caller's included            INVALID_VALUE  count is 0 or above 1024 */
NPU_API npu_result_t npu_team_begin(uint32_t count);
/* Enter the team.
 *   BAD_STATE  there is no team, or the thread is a member or the owner already     INVALID_VALUE  rank is not below count, or taken */
NPU_API npu_result_t npu_team_enter(uint32_t rank);
/* Leave the team.
 *   BAD_STATE  the thread is no member */
NPU_API npu_result_t npu_team_leave(void);
/* End the team that the calling thread has begun.
 *   BAD_STATE  it has begun none, or members have not left */
NPU_API npu_result_t npu_team_end(void);
/* The calling thread will make no calls for a while (it joins threads, reads files): nobody waits for it until its next call. */
NPU_API npu_result_t npu_suspend_host_thread(void);
/* 1 while the current device's run depends on the program alone, 0 once a thread had to be set aside.
 *   NULL_POINTER, BAD_ADDRESS  reproducible */
NPU_API npu_result_t npu_is_reproducible(uint32_t *reproducible);

/* A queue of work that runs in order; see Streams. NULL is the current context's default stream. */
typedef struct npu_stream_s *npu_stream_t;

/* ---- Device memory -------------------------------------------------------------------------------- */
/* Allocate `size` bytes of the current context's memory, 4096-byte aligned. Its content is poison (bytes 0xff) until written. Parts of an
 * allocation (sub-buffers) are named by pointer arithmetic. Synchronises with nothing.
 *   INVALID_SIZE          size is 0 (semantics cuda: success, and *ptr is NULL)      OUT_OF_DEVICE_MEMORY  there is not that much
 *   INVALID_VALUE         flags is not 0                NULL_POINTER, BAD_ADDRESS  ptr */
NPU_API npu_result_t npu_malloc(void **ptr, size_t size, uint32_t flags);
/* Free an allocation by its first address. Work in flight that uses it: semantics ascend: does not wait, the pointer is stale at once and the memory goes when that work
 * has ended; cuda: waits for all work of the context first; strict: IN_USE.
 * The addresses of the last 64 that were freed, in whatever way, are no other allocation's while the context has others left: until then a use of them, a second free
 * too, is STALE_HANDLE and changes nothing. Only addresses are kept: the memory is free.
 *   STALE_HANDLE   it was freed before  INVALID_VALUE  not the first address of an allocation
 *   WRONG_CONTEXT  it is memory of another context than the current one
 *   NULL_POINTER   ptr is NULL (semantics cuda: success)              IN_USE  semantics strict, see above */
NPU_API npu_result_t npu_free(void *ptr);
/* Wait for all work of the context, then free. Frees also when that work failed.
 *   results as npu_free, never IN_USE   the device's errors, never DEVICE_LOST */
NPU_API npu_result_t npu_free_sync(void *ptr);
/* Allocate in stream order: the memory may be used by work of `stream` enqueued from now on, or by others ordered behind it.
 *   results as npu_malloc, never INVALID_VALUE            INVALID_HANDLE, STALE_HANDLE  stream */
NPU_API npu_result_t npu_malloc_async(void **ptr, size_t size, npu_stream_t stream);
/* Free in stream order: earlier work of `stream` may still use it; the pointer is stale at once.
 *   results as npu_free, never IN_USE   INVALID_HANDLE, STALE_HANDLE  stream */
NPU_API npu_result_t npu_free_async(void *ptr, npu_stream_t stream);
/* Free and total bytes of the current device's memory.
 *   NULL_POINTER, BAD_ADDRESS  free_bytes, total_bytes */
NPU_API npu_result_t npu_mem_get_info(uint64_t *free_bytes, uint64_t *total_bytes);
typedef enum npu_memory_kind { NPU_MEMORY_PAGEABLE = 0 /* any other address */, NPU_MEMORY_DEVICE = 1, NPU_MEMORY_HOST = 2 /* npu_malloc_host */, NPU_MEMORY_REGISTERED = 3, NPU_MEMORY_MAPPED = 4 /* npu_map */ } npu_memory_kind_t;
typedef struct npu_pointer_attributes {
    uint32_t size;                /* [in]  sizeof(npu_pointer_attributes_t) */
    uint32_t kind;                /* [out] npu_memory_kind_t */
    uint32_t device;              /* [out] its device; 0 for PAGEABLE */
    uint32_t flags;               /* [out] that it was made with */
    void    *base;                /* [out] first address of its allocation; NULL for PAGEABLE */
    uint64_t size_bytes;          /* [out] of the allocation */
    void    *device_pointer;      /* [out] what kernels see it by, NULL for PAGEABLE */
    npu_context_t context;        /* [out] NULL for a primary one */
} npu_pointer_attributes_t;
/* What an address is.
 *   NULL_POINTER, BAD_ADDRESS  attributes   INVALID_SIZE  attributes->size   STALE_HANDLE  it lies in memory that was freed */
NPU_API npu_result_t npu_pointer_get_attributes(npu_pointer_attributes_t *attributes, const void *ptr);

/* ---- Host memory ---------------------------------------------------------------------------------- */
/* Host memory is pageable (malloc, the stack), or pinned: known to the device, which copies to and from it by DMA while the host goes on. Pinned memory is
 * a kernel argument too. The memory of npu_malloc_host is poison (bytes 0xff) until written. A child of fork shares pinned and registered memory, and mappings, with its
 * parent and the device, and cannot undo it: it must not write there (exec is fine). One cache policy: */
enum npu_host_flag {
    NPU_HOST_CACHED = 0,          /* write-back, snooped by the device: no maintenance is needed */
    NPU_HOST_WRITE_COMBINED = 1,
    NPU_HOST_UNCACHED = 2,        /* NOT_SUPPORTED unless the kernel module was loaded with allow_uncached=1 */
    NPU_HOST_NON_COHERENT = 3     /* write-back, not snooped: npu_flush before the device reads, npu_invalidate after it has written */
};
/* With coherent=0 among the parameters of the kernel module (NPU_KMD_PARAMS) the device snoops nothing, and NPU_HOST_CACHED, registered memory and mappings are as
 * NPU_HOST_NON_COHERENT. */
/* Allocate pinned memory in the current context, 4096-byte aligned: a host address.
 *   NULL_POINTER, BAD_ADDRESS  ptr      INVALID_SIZE  size is 0       INVALID_VALUE  flags is none of enum npu_host_flag
 *   OUT_OF_DEVICE_MEMORY (pinned memory is taken from it), NOT_SUPPORTED  see npu_host_flag */
NPU_API npu_result_t npu_malloc_host(void **ptr, size_t size, uint32_t flags);
/* Free it by its first address; work in flight as in npu_free. The address must not be used any more: what is there then is not defined.
 * Unlike a device address it may be the next allocation's at once: a second free then frees that.
 *   STALE_HANDLE, INVALID_VALUE, WRONG_CONTEXT, NULL_POINTER, IN_USE  as npu_free */
NPU_API npu_result_t npu_free_host(void *ptr);
/* Pin memory that the program has: whole pages of private read-write memory, such as the heap's, initialised data, and private mappings of files, which then are no
 * more the file's. Their content stays. No other thread may write there during the call.
 *   MISALIGNED  ptr or size is not a multiple of 4096     INVALID_SIZE  size is 0       NULL_POINTER  ptr      INVALID_VALUE  flags not of enum npu_register_flag
 *   ALREADY_REGISTERED  a byte of it is pinned memory     BAD_ADDRESS  not mapped, not writable, shared with files or processes, or the calling thread's stack
 *   OUT_OF_DEVICE_MEMORY                                  OUT_OF_RESOURCES  NPU_REGISTER_SVA, and the device has something else at that address */
NPU_API npu_result_t npu_host_register(void *ptr, size_t size, uint32_t flags);
enum npu_register_flag { NPU_REGISTER_SVA = 1 /* shared virtual addresses: the device has it at the host's address, pointers into it are device pointers */ };
/* Undo npu_host_register. The content stays.
 *   NOT_REGISTERED  ptr is not the first address of registered memory IN_USE  work in flight uses it
 *   WRONG_CONTEXT   it is registered in another context than the current one          NULL_POINTER  ptr */
NPU_API npu_result_t npu_host_unregister(void *ptr);
/* The device pointer of an address in pinned memory, for kernels and device-to-device copies.
 *   NULL_POINTER, BAD_ADDRESS  device_ptr   NULL_POINTER  host_ptr     NOT_REGISTERED  host_ptr is not pinned memory
 *   INVALID_VALUE  flags is not 0 */
NPU_API npu_result_t npu_host_get_device_pointer(void **device_ptr, void *host_ptr, uint32_t flags);

typedef enum npu_direction { NPU_TO_DEVICE = 0, NPU_FROM_DEVICE = 1, NPU_BIDIRECTIONAL = 2 } npu_direction_t;
/* Let the host look at device memory: `size` bytes from `ptr`, inside one allocation, at a host address. `direction` says what the host will do: TO_DEVICE writes,
 * FROM_DEVICE reads. The memory is one: what the device writes shows when it has written it, so the program synchronises first.
 *   NULL_POINTER, BAD_ADDRESS  host_ptr NULL_POINTER  ptr             INVALID_SIZE  size is 0
 *   OUT_OF_RANGE, STALE_HANDLE, WRONG_CONTEXT  ptr                    INVALID_VALUE  direction */
NPU_API npu_result_t npu_map(void **host_ptr, void *ptr, size_t size, npu_direction_t direction);
/* End a mapping by its host address; the address must not be used any more. Freeing the allocation ends its mappings too.
 *   INVALID_VALUE  not the address of a mapping           STALE_HANDLE  it was ended before
 *   IN_USE  work in flight uses the allocation            NULL_POINTER  host_ptr */
NPU_API npu_result_t npu_unmap(void *host_ptr);
/* Cache maintenance of `size` bytes at `offset` of the pinned memory or mapping that begins at `host_ptr`: flush writes the host's lines back (before the device reads),
 * invalidate drops them (before the host reads what the device wrote). They work on whole cache lines. Where the device snoops they cost time and change nothing.
 *   NULL_POINTER  host_ptr              NOT_REGISTERED  not pinned or mapped memory
 *   OUT_OF_RANGE  the range leaves it   INVALID_SIZE    size is 0 */
NPU_API npu_result_t npu_flush(void *host_ptr, size_t offset, size_t size);
NPU_API npu_result_t npu_invalidate(void *host_ptr, size_t offset, size_t size);
/* Tell `npu check` that the host reads, or writes, `size` bytes at `ptr` of pinned memory or a mapping here, by loads and stores of its own, which it does not see by
 * itself. They are checked as accesses of the host in a call are. Without it nothing happens.
 *   NULL_POINTER  ptr                   NOT_REGISTERED  not pinned or mapped memory
 *   OUT_OF_RANGE  the range leaves it   INVALID_SIZE    size is 0 */
NPU_API npu_result_t npu_annotate_host_read(const void *ptr, size_t size);
NPU_API npu_result_t npu_annotate_host_write(const void *ptr, size_t size);

typedef enum npu_memcpy_kind {
    NPU_MEMCPY_HOST_TO_DEVICE = 1,
    NPU_MEMCPY_DEVICE_TO_HOST = 2,
    NPU_MEMCPY_DEVICE_TO_DEVICE = 3,
    NPU_MEMCPY_HOST_TO_HOST = 4,
    NPU_MEMCPY_DEFAULT = 5        /* what the pointers say */
} npu_memcpy_kind_t;
/* Copy `size` bytes from src to dst; dst_max is how many bytes may be written there. Complete on return. It runs on the default
 * stream: behind its earlier work, and behind other streams' as the semantics say. Copies of pinned or device memory are DMA jobs; of pageable memory the host
 * copies. Size 0 is allowed at any pointers of the right kind, which are not looked at, and copies nothing.
 *   INVALID_VALUE  kind is none of npu_memcpy_kind_t, or is not what the pointers are         NULL_POINTER  dst or src is NULL
 *   OUT_OF_RANGE   size > dst_max, or a device range is not inside one allocation
 *   STALE_HANDLE   a device range lies in freed memory  BAD_ADDRESS   a host range cannot be read, or not all of it written
 *   OVERLAP        the ranges of a DEVICE_TO_DEVICE copy overlap      WRONG_CONTEXT  memory of another device
 *   the device's errors, from earlier work of the stream */
NPU_API npu_result_t npu_memcpy(void *dst, size_t dst_max, const void *src, size_t size, npu_memcpy_kind_t kind);
/* Set `size` bytes of device or pinned memory to the low eight bits of value; complete on return, behind earlier work as npu_memcpy. Size 0 as there.
 *   NULL_POINTER   dst is NULL          OUT_OF_RANGE   size > dst_max, or the range is not inside one allocation
 *   STALE_HANDLE   the range lies in freed memory         WRONG_CONTEXT  memory of another device
 *   the device's errors, from earlier work of the stream */
NPU_API npu_result_t npu_memset(void *dst, size_t dst_max, int32_t value, size_t size);
/* Copy `height` rows of `width` bytes, dst_pitch and src_pitch bytes apart; dst_max bounds dst_pitch * (height - 1) + width. 
 *   INVALID_SIZE  a pitch is below width (when height > 1)            OVERLAP  counts rows, not gaps
 *   otherwise results as npu_memcpy */
NPU_API npu_result_t npu_memcpy_2d(void *dst, size_t dst_pitch, size_t dst_max, const void *src, size_t src_pitch, size_t width, size_t height, npu_memcpy_kind_t kind);
/* Copy device memory to device memory of any context or device. Waits for the default streams of both contexts; complete on return.
 *   NULL_POINTER  dst or src            OUT_OF_RANGE, STALE_HANDLE, OVERLAP  as npu_memcpy; the device's errors */
NPU_API npu_result_t npu_memcpy_peer(void *dst, size_t dst_max, const void *src, size_t size);

/* ---- Streams -------------------------------------------------------------------------------------- */
/* Operations of a stream run one after the other, in the order of the calls. Streams are independent of each other, except through events, notifies, and, in
 * semantics cuda, the legacy default stream: an operation on it waits for all earlier work of the context's streams, and their later work waits for it; streams made
 * with NPU_STREAM_NON_BLOCKING are exempt. When a stream's queue is full, a call that enqueues waits for its oldest operation. */
enum npu_stream_flag { NPU_STREAM_DEFAULT = 0, NPU_STREAM_NON_BLOCKING = 1 };
typedef enum npu_priority { NPU_PRIORITY_IDLE = 1, NPU_PRIORITY_NORMAL = 2, NPU_PRIORITY_FOCUS = 3, NPU_PRIORITY_REALTIME = 4 } npu_priority_t;
/* Create a stream in the current context, of normal priority.
 *   NULL_POINTER, BAD_ADDRESS  stream   OUT_OF_RESOURCES  no command queue is left */
NPU_API npu_result_t npu_create_stream(npu_stream_t *stream);
/* The same with flags and priority; the firmware serves streams of a higher priority first, at task boundaries (docs/preemption.md): an inference of a lower one leaves
 * its tiles to them and resumes with the same result. For its state a stream below NPU_PRIORITY_REALTIME takes NPU_PARAM_PREEMPT_BUFFER_SIZE bytes of device memory with
 * its first inference, and gives them back when it is destroyed; without memory for it inferences run, but keep their tiles to their ends.
 *   INVALID_VALUE  flags; priority is none of npu_priority_t (semantics cuda: the nearest one is taken)
 *   otherwise results as npu_create_stream */
NPU_API npu_result_t npu_create_stream_with_priority(npu_stream_t *stream, uint32_t flags, npu_priority_t priority);
/* Destroy a stream. Work in flight: semantics ascend: waits for it, as npu_synchronize_stream; cuda: returns at once, the work goes on; strict: IN_USE. The handle becomes
 * stale even when that work failed.
 *   INVALID_HANDLE, STALE_HANDLE  stream (the default stream cannot be destroyed: INVALID_HANDLE)
 *   IN_USE  semantics strict            the device's errors, never DEVICE_LOST */
NPU_API npu_result_t npu_destroy_stream(npu_stream_t stream);
/* Wait for all work of the stream. Returns the first error of that work which was not yet reported.
 *   INVALID_HANDLE, STALE_HANDLE  stream                the device's errors */
NPU_API npu_result_t npu_synchronize_stream(npu_stream_t stream);
/* The same, for at most `timeout_ns` of virtual time (2^52 and above, as UINT64_MAX: for ever).
 *   TIMEOUT  work is left; the host's position is behind the time-out  otherwise results as npu_synchronize_stream */
NPU_API npu_result_t npu_synchronize_stream_timeout(npu_stream_t stream, uint64_t timeout_ns);
/* Ask without waiting.
 *   SUCCESS  no work is left            NOT_READY  work is left
 *   INVALID_HANDLE, STALE_HANDLE  stream                the device's errors */
NPU_API npu_result_t npu_query_stream(npu_stream_t stream);
/* A number that no other stream of the process has, as operation records name it.
 *   INVALID_HANDLE, STALE_HANDLE  stream                NULL_POINTER, BAD_ADDRESS  id */
NPU_API npu_result_t npu_get_stream_id(npu_stream_t stream, uint64_t *id);
/* A function that a stream calls. */
typedef void (*npu_host_function_t)(void *user_data);
/* Call function(user_data) on a thread of the library when the stream's earlier work has ended; the stream's later work waits until it returns, other streams do not. It may call
 * no function of this library (NPU_ERROR_NOT_PERMITTED), and returns: one that ends its thread instead (pthread_exit) has failed, and who waits for the stream gets
 * NPU_ERROR_HOST_FUNCTION. It is not called after the context was lost or the stream was aborted.
 *   INVALID_HANDLE, STALE_HANDLE  stream                NULL_POINTER  function */
NPU_API npu_result_t npu_stream_add_host_function(npu_stream_t stream, npu_host_function_t function, void *user_data);
typedef enum npu_failure_mode { NPU_CONTINUE_ON_FAILURE = 0, NPU_STOP_ON_FAILURE = 1 } npu_failure_mode_t;
/* What happens behind an operation that failed, in a context that goes on: later operations run (the default), or no later operation of the context runs:
 * each ends with NPU_ERROR_ABORTED_BY_PRIOR_ERROR until the context is destroyed or the device reset. STOP cannot be taken back.
 *   INVALID_HANDLE, STALE_HANDLE  stream                INVALID_VALUE  mode
 *   IN_USE  the stream has work in flight               BAD_STATE  from STOP to CONTINUE */
NPU_API npu_result_t npu_stream_set_failure_mode(npu_stream_t stream, npu_failure_mode_t mode);
/* Take the stream's work off the device: what runs is broken off, what waits does not run; each ends with NPU_ERROR_ABORTED_BY_PRIOR_ERROR, reported as other errors are. Other streams that wait
 * for it go on. The stream can be used at once. When the context is lost, or another program of npud's has taken the memory for the stream's new queue, the call says so, the work is off
 * the device all the same, and the stream's next operation or abort asks for the queue again.
 *   INVALID_HANDLE, STALE_HANDLE  stream */
NPU_API npu_result_t npu_stream_abort(npu_stream_t stream);
/* Copy in stream order. Pinned and device memory: a DMA job; returns at once, and the source is read and the destination written when the stream comes to it. Pageable memory: semantics
 * ascend: waits for the stream's earlier work and is complete on return; cuda: host to device is read before return and copied later, device to host is complete on
 * return; strict: NOT_PERMITTED. HOST_TO_HOST: NOT_SUPPORTED.
 *   otherwise results as npu_memcpy     INVALID_HANDLE, STALE_HANDLE  stream */
NPU_API npu_result_t npu_memcpy_async(void *dst, size_t dst_max, const void *src, size_t size, npu_memcpy_kind_t kind, npu_stream_t stream);
/* npu_memcpy_2d in stream order, as npu_memcpy_async.
 *   results as npu_memcpy_async         INVALID_SIZE  as npu_memcpy_2d */
NPU_API npu_result_t npu_memcpy_2d_async(void *dst, size_t dst_pitch, size_t dst_max, const void *src, size_t src_pitch, size_t width, size_t height, npu_memcpy_kind_t kind, npu_stream_t stream);
/* Set in stream order: a DMA job, returns at once.
 *   results as npu_memset, never the device's errors      INVALID_HANDLE, STALE_HANDLE  stream */
NPU_API npu_result_t npu_memset_async(void *dst, size_t dst_max, int32_t value, size_t size, npu_stream_t stream);

/* ---- Events and notifies ---------------------------------------------------------------------------- */
/* An event is a snapshot of a stream: recording it says "all work enqueued there so far". Recording it again replaces that. */
typedef struct npu_event_s *npu_event_t;
enum npu_event_flag { NPU_EVENT_DEFAULT = 0, NPU_EVENT_DISABLE_TIMING = 1, NPU_EVENT_INTERPROCESS = 2 /* with DISABLE_TIMING: see Several processes */ };
/* Create an event in the current context.
 *   NULL_POINTER, BAD_ADDRESS  event    INVALID_VALUE  flags, or INTERPROCESS without DISABLE_TIMING */
NPU_API npu_result_t npu_create_event(npu_event_t *event, uint32_t flags);
/* Destroy it, also while it is recorded or waited for: that goes on.
 *   INVALID_HANDLE, STALE_HANDLE  event */
NPU_API npu_result_t npu_destroy_event(npu_event_t event);
/* Record the stream's work enqueued so far.
 *   INVALID_HANDLE, STALE_HANDLE  event, stream         WRONG_CONTEXT  they are of two contexts */
NPU_API npu_result_t npu_record_event(npu_event_t event, npu_stream_t stream);
/* Let the stream's later work wait for what the event has recorded at the time of this call. Never recorded: semantics ascend, cuda: nothing to wait for; strict: NOT_RECORDED.
 *   INVALID_HANDLE, STALE_HANDLE  event, stream         WRONG_CONTEXT  they are of two contexts   NOT_RECORDED */
NPU_API npu_result_t npu_stream_wait_event(npu_stream_t stream, npu_event_t event);
/* Make the event one that was never recorded, for all calls from now on: as a record, which is a snapshot of what was enqueued, it counts when it is called and not when
 * the stream comes to it. Waits enqueued before stay what they are; `stream` is checked only.
 *   results as npu_record_event */
NPU_API npu_result_t npu_reset_event(npu_event_t event, npu_stream_t stream);
/* Wait for what it recorded, for ever if need be. Never recorded: success at once (semantics strict: NOT_RECORDED).
 *   INVALID_HANDLE, STALE_HANDLE  event NOT_RECORDED    the device's errors, of the recorded stream's work */
NPU_API npu_result_t npu_synchronize_event(npu_event_t event);
/* The same, for at most `timeout_ns`.
 *   TIMEOUT  it has not happened        otherwise results as npu_synchronize_event */
NPU_API npu_result_t npu_synchronize_event_timeout(npu_event_t event, uint64_t timeout_ns);
/* Ask whether what it recorded has happened. Never recorded: success (semantics strict: NOT_RECORDED).
 *   NOT_READY                           INVALID_HANDLE, STALE_HANDLE  event   NOT_RECORDED */
NPU_API npu_result_t npu_query_event(npu_event_t event);
/* Device time from one event to another, in nanoseconds, negative when `end` happened first.
 *   NULL_POINTER, BAD_ADDRESS  duration_ns                INVALID_HANDLE, STALE_HANDLE  start, end    WRONG_CONTEXT  they are of two contexts
 *   NOT_RECORDED  one was never recorded                  NOT_READY  one has not happened            NO_TIMING  made with NPU_EVENT_DISABLE_TIMING */
NPU_API npu_result_t npu_event_elapsed_time(double *duration_ns, npu_event_t start, npu_event_t end);
/* Device time at which it happened, in picoseconds.
 *   NULL_POINTER, BAD_ADDRESS  time_ps  results as npu_event_elapsed_time, never WRONG_CONTEXT */
NPU_API npu_result_t npu_event_get_timestamp(uint64_t *time_ps, npu_event_t event);

/* A notify is a token: each record lets exactly one wait pass, whichever was enqueued first. */
typedef struct npu_notify_s *npu_notify_t;
/* Create a notify in the current context.
 *   NULL_POINTER, BAD_ADDRESS  notify   INVALID_VALUE  flags is not 0 */
NPU_API npu_result_t npu_create_notify(npu_notify_t *notify, uint32_t flags);
/* Destroy it; IN_USE while work in flight records or waits for it.
 *   INVALID_HANDLE, STALE_HANDLE  notify                IN_USE */
NPU_API npu_result_t npu_destroy_notify(npu_notify_t notify);
/* Give one token when the stream's earlier work has ended.
 *   INVALID_HANDLE, STALE_HANDLE  notify, stream        WRONG_CONTEXT  they are of two contexts
 *   OUT_OF_RESOURCES  about 16,000 tokens of the context have not been taken */
NPU_API npu_result_t npu_record_notify(npu_notify_t notify, npu_stream_t stream);
/* Let the stream's later work wait for one token, and take it. A wait without a record is no error until nothing else is left that could run:
 * then who waits for the stream gets NPU_ERROR_BARRIER_DEADLOCK.
 *   INVALID_HANDLE, STALE_HANDLE  notify, stream        WRONG_CONTEXT  they are of two contexts */
NPU_API npu_result_t npu_wait_notify(npu_notify_t notify, npu_stream_t stream);

/* ---- Several processes ------------------------------------------------------------------------------ */
/* With NPU_DEVICE=unix:PATH processes share the device of npud (docs/daemon.md). A handle names memory or an event of one for the others; it is passed on by
 * whatever means. It holds as long as what it names is not freed or destroyed where it was made; what was opened stays there until it is closed
 * or destroyed, and each process, and each context, has it at an address of its own. Handles also work between the contexts of one process. */
enum { NPU_IPC_HANDLE_BYTES = 64 };
typedef struct npu_ipc_mem_handle { uint8_t opaque[64]; } npu_ipc_mem_handle_t;
typedef struct npu_ipc_event_handle { uint8_t opaque[64]; } npu_ipc_event_handle_t;
/* Name an allocation of npu_malloc, by its first address, for others.
 *   NULL_POINTER  handle, ptr           BAD_ADDRESS  handle           STALE_HANDLE  it was freed      WRONG_CONTEXT  it is of another context than the current one
 *   INVALID_VALUE  not the first address of an allocation, or opened by a handle itself */
NPU_API npu_result_t npu_ipc_get_mem_handle(npu_ipc_mem_handle_t *handle, void *ptr);
/* Map the memory of a handle in the current context. Every call maps it once more.
 *   NULL_POINTER, BAD_ADDRESS  ptr, handle                INVALID_VALUE  flags is not 0, or it is no handle of memory
 *   INVALID_HANDLE  what it names is gone, or on another device       OUT_OF_DEVICE_MEMORY  none is left for page tables */
NPU_API npu_result_t npu_ipc_open_mem_handle(void **ptr, const npu_ipc_mem_handle_t *handle, uint32_t flags);
/* End such a mapping by its first address; the memory goes with the last who has it. Work in flight that uses it: as npu_free, which ends it as well.
 *   NULL_POINTER  ptr                   STALE_HANDLE  it was closed before                  WRONG_CONTEXT  it is of another context than the current one
 *   INVALID_VALUE  not the first address of memory opened by a handle      IN_USE  semantics strict: work in flight uses it */
NPU_API npu_result_t npu_ipc_close_mem_handle(void *ptr);
/* Name an event made with NPU_EVENT_INTERPROCESS for others. They can record it, wait for it, ask about it and reset it; it cannot be captured.
 *   NULL_POINTER, BAD_ADDRESS  handle   INVALID_HANDLE, STALE_HANDLE  event       INVALID_VALUE  not made with NPU_EVENT_INTERPROCESS, or opened by a handle itself */
NPU_API npu_result_t npu_ipc_get_event_handle(npu_ipc_event_handle_t *handle, npu_event_t event);
/* Open the event of a handle in the current context; npu_destroy_event ends it.
 *   NULL_POINTER, BAD_ADDRESS  event, handle              INVALID_VALUE  it is no handle of an event
 *   INVALID_HANDLE  what it names is gone, or on another device */
NPU_API npu_result_t npu_ipc_open_event_handle(npu_event_t *event, const npu_ipc_event_handle_t *handle);

/* ---- Blobs and kernels ---------------------------------------------------------------------------- */
enum { NPU_MAX_DIMS = 8, NPU_NAME_BYTES = 128 };
typedef enum npu_dtype {
    NPU_DT_F16 = 0, NPU_DT_BF16 = 1, NPU_DT_F32 = 2, NPU_DT_F64 = 3, NPU_DT_I8 = 4, NPU_DT_U8 = 5, NPU_DT_I16 = 6, NPU_DT_U16 = 7,
    NPU_DT_I32 = 8, NPU_DT_U32 = 9, NPU_DT_I64 = 10, NPU_DT_U64 = 11, NPU_DT_BOOL = 12, NPU_DT_COUNT = 13
} npu_dtype_t;

/* A compiled model or a library of kernels, in device memory. */
typedef struct npu_blob_s *npu_blob_t;
/* Something of a blob that can be launched. It lives as long as its blob. */
typedef struct npu_kernel_s *npu_kernel_t;

/* Load a blob file, or a model in parts (npu compile says that it is one), into the current context. Of the latter some nodes run on the host, in the stream as host functions.
 *   NULL_POINTER, BAD_ADDRESS  blob, path               FILE  the file cannot be opened or read, is not a regular one, or path has no end in 4096 bytes
 *   INVALID_BLOB  it is damaged, foreign or needs more than the device has, or parts on the host cannot run here (the detail says what and where)
 *   OUT_OF_DEVICE_MEMORY */
NPU_API npu_result_t npu_load_blob(npu_blob_t *blob, const char *path);
/* Load a blob from `size` bytes of host memory, which are not needed any more after the call.
 *   NULL_POINTER, BAD_ADDRESS  blob, data               INVALID_BLOB, OUT_OF_DEVICE_MEMORY  as npu_load_blob */
NPU_API npu_result_t npu_load_blob_mem(npu_blob_t *blob, const void *data, size_t size);
/* Unload a blob; it and its kernels become stale.
 *   INVALID_HANDLE, STALE_HANDLE  blob  IN_USE  a launch of it has not been waited for, or a command list or graph has one */
NPU_API npu_result_t npu_unload(npu_blob_t blob);
/* What the loader says about a blob, or, with NULL, about the calling thread's last load that failed: lines of text. `needed` gets the bytes with the NUL; text may be NULL.
 *   NULL_POINTER, BAD_ADDRESS  needed   BAD_ADDRESS  text             INVALID_HANDLE, STALE_HANDLE  blob
 *   OUT_OF_RANGE  capacity is below *needed, which is written all the same; the text is not */
NPU_API npu_result_t npu_blob_get_log(npu_blob_t blob, char *text, size_t capacity, size_t *needed);
/* Find a kernel by its name; NULL finds the only one. A compiled model is one kernel with the model's name.
 *   NULL_POINTER, BAD_ADDRESS  kernel   BAD_ADDRESS  name
 *   INVALID_HANDLE, STALE_HANDLE  blob  INVALID_VALUE  no kernel of that name */
NPU_API npu_result_t npu_get_kernel(npu_kernel_t *kernel, npu_blob_t blob, const char *name);

typedef enum npu_arg_direction { NPU_ARG_IN = 1, NPU_ARG_OUT = 2, NPU_ARG_INOUT = 3 } npu_arg_direction_t;
typedef struct npu_arg_info {
    uint32_t size;                /* [in]  sizeof(npu_arg_info_t) */
    uint32_t direction;           /* [out] npu_arg_direction_t */
    uint32_t dtype;               /* [out] npu_dtype_t */
    uint32_t rank;                /* [out] how many of dims count; 0 = scalar, or a size that the kernel gets at run time */
    uint64_t dims[8];             /* [out] dense, row-major; 0 = only a run tells */
    uint64_t size_bytes;          /* [out] what the buffer must hold; 0 = depends on the other arguments */
    char     name[128];           /* [out] the tensor's name in the model, or the parameter's, NUL-terminated */
    uint32_t kind;                /* [out] npu_arg_kind_t */
    uint32_t reserved;            /* [out] 0 */
} npu_arg_info_t;
/* A kernel of the built-in library, in the current context, by its name (`npu kernels list`): conv2d, pool2d, fully_connected, matmul, add, mul, relu,
 * softmax, layernorm, reduce_sum, copy, fill, scale_add. It lives as long as the context.
 *   NULL_POINTER, BAD_ADDRESS  kernel, name             INVALID_VALUE  no kernel of that name */
NPU_API npu_result_t npu_get_builtin_kernel(npu_kernel_t *kernel, const char *name);
typedef struct npu_kernel_info {
    uint32_t size;                /* [in]  sizeof(npu_kernel_info_t) */
    uint32_t arg_count;           /* [out] */
    uint64_t code_bytes;          /* [out] that go through a SHAVE's instruction cache; of a compiled model, of all its programs */
    uint32_t max_grid;            /* [out] most blocks that make sense; 0 = any number; of a compiled model 1 */
    uint32_t cooperative;         /* [out] 1: all blocks run at the same time */
    char     name[128];           /* [out] NUL-terminated */
} npu_kernel_info_t;
/* What a kernel is.
 *   NULL_POINTER, BAD_ADDRESS  info     INVALID_SIZE  info->size      INVALID_HANDLE, STALE_HANDLE  kernel */
NPU_API npu_result_t npu_get_kernel_info(npu_kernel_t kernel, npu_kernel_info_t *info);
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
#define NPU_INT(number) { NPU_ARG_INT, 0, (uint64_t)(int64_t)(number) }
/* The bits of a float, for an argument of kind NPU_ARG_FLOAT: { NPU_ARG_FLOAT, 0, npu_float_bits(0.5f) }. */
static inline uint64_t npu_float_bits(float number) { union { float f; uint32_t u; } bits; bits.f = number; return bits.u; }
/* Enqueue a kernel with `count` arguments and return at once. The arguments are copied; the buffers, device or pinned memory, must live until it has finished.
 * A kernel of a library runs in as many blocks as fit its size; see npu_launch_kernel_grid_async. It may take NULL for a buffer (of the built-in ones: bias, gamma and beta);
 * a compiled model may not. An error of the device comes from the call that waits for the stream. The content of buffers is not looked at: the device
 * computes with integers of 32 bits, so int64 inputs beyond them give wrong results and no error.
 *   INVALID_HANDLE, STALE_HANDLE  kernel, stream        WRONG_CONTEXT  kernel, stream and buffers are not of one device
 *   NULL_POINTER, BAD_ADDRESS  args     ARG_COUNT  not as many as npu_get_num_args says
 *   ARG_KIND   an argument's kind is not the kernel's, or a buffer is not device memory
 *   ARG_SIZE   less than the argument needs lie between the address and the end of its allocation (of a built-in kernel, by its other arguments)
 *   INVALID_VALUE     reserved is not 0, or a number is none that the kernel takes       STALE_HANDLE  a buffer was freed
 *   MISALIGNED        a buffer is not 64-byte aligned (of a kernel library: 4-byte)
 *   NOT_SUPPORTED     a model in parts has an output whose shape only a run tells (dims and size_bytes of it are 0) */
NPU_API npu_result_t npu_launch_kernel_async(npu_kernel_t kernel, const npu_arg_t *args, uint32_t count, npu_stream_t stream);
/* The same in `grid` blocks, each on the SHAVE that has the least to do; 0: as many as fit.
 *   INVALID_VALUE  grid is above 1024 or the kernel's max_grid, of a cooperative kernel above the number of SHAVEs (its blocks run at the same time,
 *                  each on a SHAVE of its own), of a compiled model above 1, or of a built-in kernel so small that the watchdog would stop a block
 *   otherwise results as npu_launch_kernel_async */
NPU_API npu_result_t npu_launch_kernel_grid_async(npu_kernel_t kernel, uint32_t grid, const npu_arg_t *args, uint32_t count, npu_stream_t stream);

/* Parameters of a built-in kernel, dense NCHW tensors of float in device or pinned memory. "conv2d": 3x3, stride 1, padding 1, C output channels, weights [C][C][3][3].
 * "pool2d": maximum over 2x2, stride 2. "fully_connected": N rows of C*H*W inputs and as many outputs, weights [outputs][inputs]. "relu", "copy", "softmax" and "layernorm" (over W), "add", "mul" (the second operand at
 * weight_addr): output as input. "reduce_sum" (over W): output N*C*H values. Others need npu_launch_kernel_async. Its size and version travel with the call. */
typedef struct kernel_params {
    uint64_t input_addr;          /* (uint64_t)pointer, as the two below */
    uint64_t weight_addr;         /* 0 where the kernel has no second operand */
    uint64_t output_addr;
    uint32_t N, C, H, W;
} kernel_params_t;
/* Parameters of "conv2d" in full. Output height: (h + 2 * pad_h - kernel_h) / stride_h + 1, width likewise. */
typedef struct npu_conv2d_params {
    const void *input;            /* [n][c][h][w] */
    const void *weight;           /* [k][c][kernel_h][kernel_w] */
    const void *bias;             /* [k], or NULL */
    void       *output;           /* [n][k][output height][output width] */
    uint32_t n, c, h, w, k, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
    uint32_t relu;                /* 1: negative results become 0 */
} npu_conv2d_params_t;
/* Enqueue a built-in kernel by its name on the current context's default stream: pack the parameters, submit them through the driver, and return; the device's scheduler then chooses
 * the unit, which loads the instructions and executes them (operation records have the times of these steps). `params_bytes` says which structure `params` is; the macro fills it in.
 *   NULL_POINTER, BAD_ADDRESS  name, params              INVALID_VALUE  no kernel of that name, or one that does not take these parameters, or a dimension is 0
 *   INVALID_SIZE      params_bytes is the size of none of the structures              VERSION_MISMATCH  version is newer than the library
 *   ARG_KIND, ARG_SIZE, MISALIGNED, STALE_HANDLE, WRONG_CONTEXT  an address, as npu_launch_kernel_async */
NPU_API npu_result_t npu_submit_kernel_sized(const char *name, const void *params, size_t params_bytes, uint32_t version);
/* The same for kernel_params_t of this header's version. The macro takes a pointer to either structure; error details name npu_submit_kernel for both functions.
 *   results as npu_submit_kernel_sized, never INVALID_SIZE, never VERSION_MISMATCH */
NPU_API npu_result_t npu_submit_kernel(const char *name, const void *params);
#define npu_submit_kernel(name, params) npu_submit_kernel_sized(name, params, sizeof *(params), (uint32_t)NPU_VERSION_MAJOR << 16 | NPU_VERSION_MINOR)
/* Wait for all work of the current context.
 *   results as npu_synchronize_context */
NPU_API npu_result_t npu_wait_for_completion(void);
/* The same, for at most `timeout_ns`.
 *   TIMEOUT  work is left               otherwise results as npu_wait_for_completion */
NPU_API npu_result_t npu_wait_for_completion_timeout(uint64_t timeout_ns);

/* ---- Command lists ---------------------------------------------------------------------------------- */
/* Operations that are put together once and submitted as one, any number of times: they run in the order in which they were appended, as one operation of the stream. */
typedef struct npu_cmdlist_s *npu_cmdlist_t;
/* Create an open list in the current context.
 *   NULL_POINTER, BAD_ADDRESS  list     INVALID_VALUE  flags is not 0 */
NPU_API npu_result_t npu_cmdlist_create(npu_cmdlist_t *list, uint32_t flags);
/* Append a kernel with arguments as for npu_launch_kernel_async.
 *   INVALID_HANDLE, STALE_HANDLE  list  BAD_STATE  the list is closed OUT_OF_RESOURCES  the list is full (1 MiB of commands, or memory of 4,000 allocations)
 *   NOT_SUPPORTED  the kernel is a model in parts
 *   otherwise results as npu_launch_kernel_async */
NPU_API npu_result_t npu_cmdlist_append_kernel(npu_cmdlist_t list, npu_kernel_t kernel, const npu_arg_t *args, uint32_t count);
/* Append a copy of device or pinned memory.
 *   NOT_SUPPORTED  pageable memory      BAD_STATE, OUT_OF_RESOURCES, INVALID_HANDLE, STALE_HANDLE  list, as npu_cmdlist_append_kernel
 *   otherwise results as npu_memcpy_async, never NOT_PERMITTED, never BAD_ADDRESS, never the device's errors */
NPU_API npu_result_t npu_cmdlist_append_memcpy(npu_cmdlist_t list, void *dst, size_t dst_max, const void *src, size_t size, npu_memcpy_kind_t kind);
/* Append a memset.
 *   BAD_STATE, OUT_OF_RESOURCES, INVALID_HANDLE, STALE_HANDLE  list, as npu_cmdlist_append_kernel
 *   otherwise results as npu_memset_async */
NPU_API npu_result_t npu_cmdlist_append_memset(npu_cmdlist_t list, void *dst, size_t dst_max, int32_t value, size_t size);
/* Close it: it can be submitted, and nothing can be appended.
 *   INVALID_HANDLE, STALE_HANDLE  list  BAD_STATE  it is closed */
NPU_API npu_result_t npu_cmdlist_close(npu_cmdlist_t list);
/* Empty and open it.
 *   INVALID_HANDLE, STALE_HANDLE  list  IN_USE  a submit of it has not been waited for */
NPU_API npu_result_t npu_cmdlist_reset(npu_cmdlist_t list);
/* Enqueue it on a stream and return at once. An empty list does nothing.
 *   INVALID_HANDLE, STALE_HANDLE  list, stream          BAD_STATE  it is not closed     WRONG_CONTEXT
 *   STALE_HANDLE  memory or a blob that it uses was freed since        IN_USE  an earlier submit of it has not ended in another stream */
NPU_API npu_result_t npu_cmdlist_submit(npu_cmdlist_t list, npu_stream_t stream);
/* Destroy it; work in flight goes on.
 *   INVALID_HANDLE, STALE_HANDLE  list */
NPU_API npu_result_t npu_cmdlist_destroy(npu_cmdlist_t list);

/* ---- Graphs ----------------------------------------------------------------------------------------- */
/* A graph is what was enqueued on a stream, and on those that joined it by events, while it was captured; nothing of it runs then. Nodes keep addresses: a copy reads at each launch what
 * is there at that time. */
typedef struct npu_graph_s *npu_graph_t;
typedef struct npu_graph_exec_s *npu_graph_exec_t;
/* Begin to capture a stream. Another stream joins when it waits for an event that was recorded in the capture; it must be joined back before the end.
 * Pageable copies, waits, queries and notifies cannot be captured: CAPTURE_UNSUPPORTED, and the capture is invalid.
 *   INVALID_HANDLE, STALE_HANDLE  stream (the default stream: CAPTURE_UNSUPPORTED)    BAD_STATE  it is being captured already */
NPU_API npu_result_t npu_stream_begin_capture(npu_stream_t stream);
/* End the capture that began on this stream, and give its graph.
 *   NULL_POINTER, BAD_ADDRESS  graph    INVALID_HANDLE, STALE_HANDLE  stream            BAD_STATE  no capture began on it
 *   CAPTURE_INVALIDATED  something in it was not possible, or a joined stream was not joined back; there is no graph, the streams are as before */
NPU_API npu_result_t npu_stream_end_capture(npu_stream_t stream, npu_graph_t *graph);
typedef enum npu_capture_status { NPU_CAPTURE_NONE = 0, NPU_CAPTURE_ACTIVE = 1, NPU_CAPTURE_INVALID = 2 } npu_capture_status_t;
/* Whether a stream is being captured.
 *   NULL_POINTER, BAD_ADDRESS  status   INVALID_HANDLE, STALE_HANDLE  stream */
NPU_API npu_result_t npu_stream_is_capturing(npu_stream_t stream, npu_capture_status_t *status);
/* How many operations a graph has.
 *   NULL_POINTER, BAD_ADDRESS  count    INVALID_HANDLE, STALE_HANDLE  graph */
NPU_API npu_result_t npu_graph_get_node_count(npu_graph_t graph, size_t *count);
/* Make a graph ready to launch. It does not need the graph afterwards.
 *   NULL_POINTER, BAD_ADDRESS  exec     INVALID_HANDLE, STALE_HANDLE  graph   STALE_HANDLE  memory or a blob that it uses was freed
 *   OUT_OF_DEVICE_MEMORY, OUT_OF_RESOURCES */
NPU_API npu_result_t npu_graph_instantiate(npu_graph_exec_t *exec, npu_graph_t graph);
/* Enqueue it on a stream as one operation, and return at once. A launch begins when the launch before it has ended.
 *   INVALID_HANDLE, STALE_HANDLE  exec, stream          WRONG_CONTEXT
 *   STALE_HANDLE  memory or a blob that it uses was freed since */
NPU_API npu_result_t npu_graph_launch(npu_graph_exec_t exec, npu_stream_t stream);
/* Give an executable graph the parameters (addresses, sizes, arguments) of another graph with the same operations in the same order.
 *   INVALID_HANDLE, STALE_HANDLE  exec, graph           INVALID_VALUE  the operations differ; nothing has changed      IN_USE  a launch has not ended */
NPU_API npu_result_t npu_graph_update(npu_graph_exec_t exec, npu_graph_t graph);
/* Destroy a graph; what was instantiated from it lives on.
 *   INVALID_HANDLE, STALE_HANDLE  graph */
NPU_API npu_result_t npu_graph_destroy(npu_graph_t graph);
/* Destroy an executable graph; launches in flight go on.
 *   INVALID_HANDLE, STALE_HANDLE  exec */
NPU_API npu_result_t npu_graph_exec_destroy(npu_graph_exec_t exec);

/* ---- Profiling -------------------------------------------------------------------------------------- */
/* Keep a record of every operation enqueued from now on in the current context.
 *   BAD_STATE  records are being kept */
NPU_API npu_result_t npu_profiler_start(void);
/* Keep no more records; those that are kept stay until they are read or kept anew.
 *   BAD_STATE  no records are being kept */
NPU_API npu_result_t npu_profiler_stop(void);
typedef enum npu_op_kind {
    NPU_OP_KERNEL = 0, NPU_OP_MODEL = 1, NPU_OP_MEMCPY = 2, NPU_OP_MEMSET = 3, NPU_OP_EVENT_RECORD = 4, NPU_OP_EVENT_WAIT = 5, NPU_OP_NOTIFY_RECORD = 6, NPU_OP_NOTIFY_WAIT = 7,
    NPU_OP_HOST_FUNCTION = 8, NPU_OP_CMDLIST = 9, NPU_OP_GRAPH = 10, NPU_OP_FREE = 11
} npu_op_kind_t;
typedef struct npu_op_record {
    uint64_t op_id;               /* counts operations of the context, from 1 */
    uint64_t stream_id;           /* npu_get_stream_id */
    uint32_t kind;                /* npu_op_kind_t */
    int32_t  result;              /* npu_result_t; NPU_NOT_READY: it had not ended */
    uint64_t bytes;               /* that a copy or memset moves; arguments of a kernel */
    uint64_t enqueue_ps;          /* host's position when the call began */
    uint64_t enqueued_ps;         /* host's position when it returned, or with NPU_LAUNCH_BLOCKING=1 began to wait */
    uint64_t start_ps, end_ps;    /* device time */
    /* The five steps of a kernel launch, in picoseconds; 0 for others. The last three are of the block that ended last. */
    uint64_t pack_ps, submit_ps, schedule_ps, load_ps, execute_ps;
    uint64_t enqueue_site;        /* code address behind the call */
    uint32_t units;               /* bit u set: a block ran on SHAVE u, counted through the tiles */
    uint32_t blocks;              /* of a kernel */
    char     name[64];            /* kernel, model or direction of a copy, NUL-terminated, cut to fit */
} npu_op_record_t;
/* Copy the oldest `capacity` records out, and forget them. With records NULL, *count says how many there are.
 *   NULL_POINTER, BAD_ADDRESS  count    BAD_ADDRESS  records */
NPU_API npu_result_t npu_get_op_records(npu_op_record_t *records, size_t capacity, size_t *count);
/* The current device's counters, as many as fit in `capacity`. With values NULL, *count says how many there are.
 *   NULL_POINTER, BAD_ADDRESS  count    BAD_ADDRESS  values */
NPU_API npu_result_t npu_get_counters(uint64_t *values, size_t capacity, size_t *count);
/* The name of counter number `index` ("DMA_BUSY"), "unknown" for others. Static text; works before npu_init. */
NPU_API const char *npu_get_counter_name(size_t index);
/* Write the current device's trace and operation records as a Chrome trace (JSON), which Perfetto shows. The environment variable NPU_TRACE=1 keeps traces; without it the device's lanes are empty.
 *   NULL_POINTER, BAD_ADDRESS  path     FILE  it cannot be written, or path has no end in 4096 bytes */
NPU_API npu_result_t npu_export_trace(const char *path);
typedef struct npu_overflow { char layer[128]; uint64_t values; } npu_overflow_t;
/* Which layers have rounded finite values to infinity in fp16, and how many, in jobs that a wait has seen the end of; as npu_get_op_records, of the current context.
 *   NULL_POINTER, BAD_ADDRESS  count    BAD_ADDRESS  overflows */
NPU_API npu_result_t npu_get_overflows(npu_overflow_t *overflows, size_t capacity, size_t *count);

#ifdef __cplusplus
}
#endif
#endif
