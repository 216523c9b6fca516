/* SPDX-License-Identifier: Apache-2.0
 * npu_uapi.h - what user mode may ask of the kernel-mode driver.
 *
 * Every call is one ioctl on a node's file descriptor (or open, close, mmap, poll). Structures are copied in
 * once; reserved fields must be zero, else EINVAL. Pointers are addresses in the caller, 8 bytes; EFAULT when one is 0 and
 * bytes are behind it. Failure: -errno, and nothing has changed. Times are virtual: picoseconds on the one clock of host and
 * device, deadlines absolute.
 */
#ifndef NPU_UAPI_H
#define NPU_UAPI_H
#include <stdint.h>
#if defined(__cplusplus) && !defined(_Static_assert)
#define _Static_assert static_assert
#endif

enum { NPU_UAPI_MAJOR = 1, NPU_UAPI_MINOR = 0 };
enum npu_ioctl_nr {
    NPU_IOCTL_GET_PARAM = 0x40, NPU_IOCTL_SET_PARAM = 0x41, NPU_IOCTL_BO_CREATE = 0x42, NPU_IOCTL_BO_INFO = 0x43, NPU_IOCTL_BO_SYNC = 0x44,
    NPU_IOCTL_SUBMIT = 0x45, NPU_IOCTL_BO_WAIT = 0x46, NPU_IOCTL_CMDQ_CREATE = 0x4b, NPU_IOCTL_CMDQ_DESTROY = 0x4c, NPU_IOCTL_CMDQ_SUBMIT = 0x4d,
    NPU_IOCTL_BO_CREATE_FROM_USERPTR = 0x4e, NPU_IOCTL_RECOVER = 0x4f, NPU_IOCTL_STATE_DUMP = 0x50, NPU_IOCTL_BO_FREE = 0x51,
    NPU_IOCTL_CMDQ_RING = 0x52, NPU_IOCTL_GET_INFO = 0x53, NPU_IOCTL_BO_EXPORT = 0x54, NPU_IOCTL_BO_IMPORT = 0x55,
    /* Emulator range: not a real device's */
    NPU_IOCTL_EMU_TRACE_READ = 0xe0, NPU_IOCTL_EMU_SET_SCHEDULE = 0xe1, NPU_IOCTL_EMU_COUNTERS = 0xe2, NPU_IOCTL_EMU_ADVANCE = 0xe3,
    NPU_IOCTL_EMU_OVERFLOWS = 0xe4, NPU_IOCTL_EMU_RUN = 0xe5, NPU_IOCTL_EMU_JOB = 0xe6, NPU_IOCTL_EMU_INJECT = 0xe7,
    NPU_IOCTL_EMU_REGISTER = 0xe8, NPU_IOCTL_EMU_TRAFFIC = 0xe9, NPU_IOCTL_EMU_WATCH = 0xea, NPU_IOCTL_EMU_ACCESSES = 0xeb
};
/* The ioctl request word is the number in bits 7:0 and the size of its structure in bits 29:16. */
/* On the seam every call is one 64-bit number: file descriptor in bits 63:32, request word in bits 31:0. Calls that are not ioctls: */
enum npu_syscall_nr { NPU_SYS_OPEN = 1, /* no structure; returns the descriptor */ NPU_SYS_CLOSE = 2, /* no structure */ NPU_SYS_MMAP = 3, NPU_SYS_POLL = 4,
    NPU_SYS_MODULE_LOAD = 5, /* struct npu_module: the driver is loaded anew with these parameters; needs no file. EBUSY while a file is open */
    NPU_SYS_MODULE_PARAMS = 6 /* struct npu_module: writes the parameters, as below, out; needs no file */ };
/* Each mapping has a cache policy of its own: the object's, unless `flags` name another one (a mapping of one object with two policies is an
 * alias mismatch, and behaves as one). What the policies show is said at enum npu_bo_flag. EOPNOTSUPP, also of BO_CREATE_FROM_USERPTR: a CACHED mapping without NON_SNOOPED,
 * and a firmware before NPU_FW_COHERENT_DMA, unless the module parameter force_coherent is 1: then the CPU's cache is between, and nobody has said so. */
struct npu_mmap { uint64_t offset; /* [in] mmap_offset of struct npu_bo_info */ uint64_t length; /* [in] bytes, 1..size of the object */
    uint32_t flags; /* [in] 0, or NPU_MMAP_POLICY | bits of NPU_BO_CACHE_MASK and NPU_BO_NON_SNOOPED */ uint32_t reserved; };
enum npu_mmap_flag { NPU_MMAP_POLICY = 1 };
/* Mappings that one process may have, of all its files: ENOMEM, of mmap and of BO_CREATE_FROM_USERPTR, for one more. As Linux's max_map_count. */
enum { NPU_MAX_MAPPINGS = 65530 };
/* Parameters of the kernel module, as insmod takes them: "name=value name=value", ASCII. EINVAL names an unknown one. docs/driver.md lists them. */
enum { NPU_MAX_MODULE_PARAMS_BYTES = 4096 };
/* What one user who is not privileged may have of what all share, half of it: open of one context more is EMFILE, the first submit to one queue more EBUSY. A
 * privileged user (root, and whose device it is) may have all. The module parameters max_contexts and max_doorbells say otherwise, for every user. */
enum { NPU_USER_CONTEXTS = 32, NPU_USER_DOORBELLS = 127 };
struct npu_module { uint64_t params_ptr; /* [in] LOAD: text, [out] PARAMS: one "name=value" a line */ uint32_t params_bytes; /* [in] of it, at most NPU_MAX_MODULE_PARAMS_BYTES */ uint32_t used_bytes; /* [out] of PARAMS: written, or needed when params_bytes is 0; ENOSPC when they do not fit */ };
_Static_assert(sizeof(struct npu_module) == 16, "npu_module");
struct npu_poll { int64_t deadline_ps; /* [in] as struct npu_bo_wait; returns 0 when it passes, else 1 */ uint32_t ready_jobs; /* [out] finished and not yet waited for */ uint32_t reserved; };

enum npu_param {
    NPU_PARAM_DEVICE_ID = 0, NPU_PARAM_DEVICE_REVISION = 1, NPU_PARAM_PLATFORM_TYPE = 2, /* enum npu_platform */
    NPU_PARAM_CORE_CLOCK_RATE = 3, /* Hz */ NPU_PARAM_NUM_CONTEXTS = 4, NPU_PARAM_CONTEXT_BASE_ADDRESS = 5, NPU_PARAM_CONTEXT_ID = 7,
    NPU_PARAM_FW_API_VERSION = 8,  /* index NPU_FW_API_*: major << 16 | minor */
    NPU_PARAM_ENGINE_HEARTBEAT = 9, NPU_PARAM_UNIQUE_INFERENCE_ID = 10, /* increments at each read */
    NPU_PARAM_TILE_CONFIG = 11, NPU_PARAM_SKU = 12, NPU_PARAM_CAPABILITIES = 13, /* index enum npu_capability: 1 = there */
    NPU_PARAM_PREEMPT_BUFFER_SIZE = 14, NPU_PARAM_CMX_BYTES = 15, /* per tile */ NPU_PARAM_BARRIER_COUNT = 16, NPU_PARAM_SHAVES_PER_TILE = 17, NPU_PARAM_DMA_PORTS = 18,
    NPU_PARAM_DDR_BYTES = 19, NPU_PARAM_DDR_FREE_BYTES = 20, NPU_PARAM_MAX_JOBS = 21,
    NPU_PARAM_PROFILE_NAME = 22,   /* index 0..7: eight bytes of the profile's name, NUL padded */
    NPU_PARAM_MAX_QUEUES = 23,     /* that NPU_IOCTL_CMDQ_CREATE makes in one context */
    NPU_PARAM_FW_RELEASE = 24,     /* of the firmware that runs, as in struct npu_fw_header */
    NPU_PARAM_NOC_PRIORITY = 25    /* index: client of the memory system, in its order. NPU_REG_NOC_QOS_BASE of it, 0..NPU_NOC_PRIORITIES - 1: a higher one goes first */
};
enum npu_platform { NPU_PLATFORM_SIMULATED = 2 };
enum npu_capability { NPU_CAP_METRIC_STREAMER = 1, NPU_CAP_DMA_MEMORY_RANGE = 2, NPU_CAP_MANAGE_CMDQ = 3, NPU_CAP_USER_POINTERS = 4 };
/* SET: NOC_PRIORITY alone can be set, of the whole device: the firmware writes the register, and the driver has it do so again after each reset of the device, until the
 * module is loaded anew. EINVAL: another parameter, an index that is no client, a value beyond the last priority; EPERM for who may not; EOPNOTSUPP: a firmware before NPU_FW_NOC_PRIORITY;
 * ETIMEDOUT and what else a message to the firmware fails with. */
struct npu_param_arg { uint32_t param; uint32_t index; /* [in] */ uint64_t value; /* [out] GET, [in] SET */ };
_Static_assert(sizeof(struct npu_param_arg) == 16, "npu_param_arg");

/* Buffer objects, imported ones too. ENOSPC: no addresses left, or the context has NPU_MAX_OBJECTS; ENOMEM: no device memory, page tables included; ENOBUFS: the machine that simulates the
 * device has no memory for it. SHAVE_MEM places below 4 GiB. DMA_MEM says that only DMA will use it; there is one
 * address range for all that is not SHAVE_MEM, so it changes nothing. READONLY_WEIGHT: constants; READ_ONLY to the device, and the module
 * parameter weight_policy chooses how its pages are cached.
 * One cache policy of CACHED (0), WC, UNCACHED, which needs the module parameter allow_uncached or a board without snooping (else EINVAL);
 * NON_SNOOPED is for CACHED alone. BO_INFO tells the flags in force: of weights those that weight_policy says; on a board without snooping
 * (module parameter coherent=0) NON_SNOOPED of every CACHED object. Mappings of one object with one policy are one. What a CPU mapping shows:
 *   CACHED: the device snoops the CPU's caches: the memory itself. BO_SYNC changes no byte; it takes time for every line of 64 bytes.
 *   CACHED | NON_SNOOPED: the CPU's cache, a shadow of the memory. The device sees a write when its line has been cleaned (BO_SYNC TO_DEVICE,
 *     eviction), the CPU sees the device's when the line was invalidated (BO_SYNC FROM_DEVICE) after it.
 *     A dirty line that FROM_DEVICE covers in part is cleaned before. A store of the value that is there is none. docs/coherency.md.
 *   WC: writes wait in four write-combining buffers of a line; a full line, a fifth line, or a write barrier (submit, BO_SYNC) drains them.
 *   UNCACHED: the memory itself. */
enum npu_bo_flag { NPU_BO_SHAVE_MEM = 1, NPU_BO_MAPPABLE = 2, NPU_BO_DMA_MEM = 4, NPU_BO_READ_ONLY = 8, /* to the device */ NPU_BO_READONLY_WEIGHT = 0x10,
    NPU_BO_SVA = 0x20, /* of BO_CREATE_FROM_USERPTR only: npu_va is the user's address */
    NPU_BO_CACHED = 0, NPU_BO_UNCACHED = 0x10000, NPU_BO_WC = 0x20000, NPU_BO_CACHE_MASK = 0x30000, NPU_BO_NON_SNOOPED = 0x100000,
    NPU_BO_SHAREABLE = 0x200000, /* BO_EXPORT may name it; with MAPPABLE and without SHAVE_MEM only. Where processes share a device, who maps one such object may see all such objects of its owner's context */
    NPU_BO_FLAGS_ALL = 0x33003f };
enum { NPU_MAX_OBJECTS = 65536 };
struct npu_bo_create {
    uint64_t size;                /* [in] bytes, > 0; [out] rounded up to pages */
    uint32_t flags;               /* [in] enum npu_bo_flag */
    uint32_t handle;              /* [out] >= 1 */
    uint64_t npu_va;              /* [out] device virtual address, page aligned */
};
_Static_assert(sizeof(struct npu_bo_create) == 24, "npu_bo_create");
/* User memory for the device: whole private pages of the caller, which become the object's. [in] segment: their contents. The reply has the
 * object's memory, which takes the place of those pages in the caller. EINVAL: 0, unaligned, above NPU_MAX_USERPTR_BYTES, other flags than READ_ONLY and SVA;
 * EFAULT: not readable; EBUSY: SVA, and the address is in use in this context. Freeing the object gives the pages back. */
#define NPU_MAX_USERPTR_BYTES 0x100000000
struct npu_bo_userptr { uint64_t ptr; /* [in] page aligned */ uint64_t size; /* [in] bytes, whole pages */ uint32_t flags; uint32_t handle; /* [out] */ uint64_t npu_va; /* [out] */ };
_Static_assert(sizeof(struct npu_bo_userptr) == 32, "npu_bo_userptr");
/* An object in other contexts, of other processes too: EXPORT names it by a token that holds until the object is freed by its owner, IMPORT maps it once more.
 * The memory lives as long as anybody has it. ENOENT for an unknown handle or token, EOPNOTSUPP for an object without NPU_BO_SHAREABLE, and for one
 * that was imported itself. EOWNERDEAD, of mmap: the owner is gone, and nobody has mapped the object WC or NON_SNOOPED before. */
struct npu_bo_export { uint32_t handle; /* [in] */ uint32_t reserved; uint64_t token; /* [out] not 0 */ };
_Static_assert(sizeof(struct npu_bo_export) == 16, "npu_bo_export");
struct npu_bo_import { uint64_t token; /* [in] */ uint32_t handle; /* [out] */ uint32_t flags; /* [out] enum npu_bo_flag of the object */ uint64_t npu_va; /* [out] */ uint64_t size; /* [out] */ };
_Static_assert(sizeof(struct npu_bo_import) == 32, "npu_bo_import");
struct npu_bo_info { uint32_t handle; /* [in] */ uint32_t flags; uint64_t npu_va; uint64_t mmap_offset; /* 0 when not mappable */ uint64_t size; };
_Static_assert(sizeof(struct npu_bo_info) == 32, "npu_bo_info");
struct npu_bo_free { uint32_t handle; uint32_t reserved; };
enum npu_sync_dir { NPU_SYNC_TO_DEVICE = 0, NPU_SYNC_FROM_DEVICE = 1, NPU_SYNC_BIDIRECTIONAL = 2 };
struct npu_bo_sync { uint32_t handle; uint32_t direction; /* enum npu_sync_dir */ uint64_t offset; uint64_t size; uint32_t flags; uint32_t reserved; };
_Static_assert(sizeof(struct npu_bo_sync) == 32, "npu_bo_sync");
struct npu_bo_wait {
    uint32_t handle;              /* [in] command buffer of the job */
    uint32_t flags;               /* [in] 0 */
    int64_t  deadline_ps;         /* [in] absolute virtual time; <= now polls; INT64_MAX, and what is beyond the end of the clock (3 * 2^61), waits for ever. ETIMEDOUT when it passes */
    uint32_t job_status;          /* [out] enum npu_job_status */
    uint32_t job_id;              /* [out] */
    uint64_t error_detail; uint64_t error_info; /* [out] as struct npu_jsm_job_done */
    uint64_t start_ps; uint64_t end_ps;         /* [out] device time */
};
_Static_assert(sizeof(struct npu_bo_wait) == 56, "npu_bo_wait");
/* Of a queue, or of a job of SUBMIT: the firmware serves a higher band first; see struct npu_jsm_register_db. */
enum npu_job_priority { NPU_JOB_PRIORITY_DEFAULT = 0, NPU_JOB_PRIORITY_IDLE = 1, NPU_JOB_PRIORITY_NORMAL = 2, NPU_JOB_PRIORITY_FOCUS = 3, NPU_JOB_PRIORITY_REALTIME = 4 };
enum { NPU_MAX_SUBMIT_BUFFERS = 4096 };
struct npu_submit {               /* a queue of the context's own for each priority, created on first use */
    uint64_t buffers_ptr;         /* [in] u32 handles; entry 0 is the command buffer object */
    uint32_t buffer_count;        /* [in] 1..NPU_MAX_SUBMIT_BUFFERS, no handle twice */
    uint32_t engine;              /* [in] 0 */
    uint32_t flags;               /* [in] 0 */
    uint32_t commands_offset;     /* [in] of struct npu_cmd_buffer_header in entry 0, 64-byte aligned */
    uint32_t priority;            /* [in] enum npu_job_priority */
    uint32_t reserved;
};
_Static_assert(sizeof(struct npu_submit) == 32, "npu_submit");
/* STOP_ON_FAILURE: when a job of the queue has failed, no later job of this context runs: each ends as ABORTED, until the file is closed. */
enum npu_cmdq_flag { NPU_CMDQ_STOP_ON_FAILURE = 1 };
struct npu_cmdq_create { uint32_t cmdq_id; /* [out] 1..255 */ uint32_t priority; uint32_t flags; /* [in] enum npu_cmdq_flag */ uint32_t reserved; };
_Static_assert(sizeof(struct npu_cmdq_create) == 16, "npu_cmdq_create");
/* EBUSY with jobs in flight, unless ABORT says to take them off the device: they end as ABORTED. */
enum npu_cmdq_destroy_flag { NPU_CMDQ_ABORT = 1 };
struct npu_cmdq_destroy { uint32_t cmdq_id; uint32_t flags; /* [in] enum npu_cmdq_destroy_flag */ };
struct npu_cmdq_submit { uint64_t buffers_ptr; uint32_t buffer_count; uint32_t cmdq_id; uint32_t flags; uint32_t commands_offset;
    uint32_t preempt_buffer_index; /* 0: none; else the index in the list of an object, not MAPPABLE, of at least NPU_PARAM_PREEMPT_BUFFER_SIZE bytes: an inference of this job can be preempted */
    uint32_t job_id; /* [out] as BO_WAIT and records of traces and accesses have it; unique among the jobs in flight */ };
_Static_assert(sizeof(struct npu_cmdq_submit) == 32, "npu_cmdq_submit");

/* Ring the doorbell of a queue that has one: the firmware looks again at fences that the host wrote. ENOENT for an unknown queue. */
struct npu_cmdq_ring { uint32_t cmdq_id; uint32_t reserved; };

/* Who uses the device, and what it did: records of one kind, as many as fit. */
enum npu_info_kind { NPU_INFO_CONTEXTS = 1 /* struct npu_context_info of every open file, by SSID */, NPU_INFO_DEVICE = 2 /* one struct npu_device_info */ };
struct npu_get_info { uint64_t buffer_ptr; uint32_t buffer_bytes; /* [in] 0 asks for the size */ uint32_t kind; /* [in] */ uint32_t used_bytes; /* [out] */ uint32_t reserved; };
_Static_assert(sizeof(struct npu_get_info) == 24, "npu_get_info");
enum npu_context_state { NPU_CONTEXT_LIVE = 0, NPU_CONTEXT_LOST = 1 };
struct npu_context_info {
    uint32_t ssid; uint32_t pid; uint32_t uid; uint32_t state; /* enum npu_context_state */
    char     name[16];            /* of the process; what does not print is an escape, as \n */
    uint64_t memory_bytes;        /* of its buffer objects */
    uint32_t objects; uint32_t queues; uint32_t jobs_in_flight; uint32_t faults;
    uint64_t jobs_done; /* that have ended */ uint64_t jobs_failed; /* of them: without NPU_JOB_SUCCESS */
    uint64_t busy_ps;             /* device time between start and end of its jobs, summed over jobs */
};
_Static_assert(sizeof(struct npu_context_info) == 80, "npu_context_info");
struct npu_device_info {
    uint64_t now_ps; uint64_t memory_bytes; uint64_t memory_free_bytes;
    uint64_t jobs_done; uint64_t jobs_failed; uint64_t mmu_faults;
    uint32_t engine_resets; uint32_t full_resets; uint32_t lost_interrupts; uint32_t contexts;
    uint32_t module_loads; uint32_t reserved;
};
_Static_assert(sizeof(struct npu_device_info) == 72, "npu_device_info");
/* RECOVER: EPERM for who may not. ENGINE: reset of the engines, which ends the contexts whose task hangs; FULL: everything, all jobs end as ABORTED.
 * EOPNOTSUPP: the module parameter disable_recovery is 1; EIO: the device does not boot again. */
enum npu_recover_kind { NPU_RECOVER_FULL = 0, NPU_RECOVER_ENGINE = 1 };
struct npu_recover { uint32_t kind; uint32_t reserved; };
/* STATE_DUMP: what driver and firmware know, as text for people; also in the kernel's log. */
struct npu_state_dump { uint64_t buffer_ptr; uint64_t buffer_bytes; /* [in] 0 asks for the size */ uint64_t used_bytes; /* [out] */ };

/* ---- Emulator range --------------------------------------------------------------------------------- */
enum npu_schedule { NPU_SCHEDULE_TIMED = 0, NPU_SCHEDULE_SEED = 1 /* stretches task durations and holds jobs back, PRNG seeded by `seed` */ };
struct npu_emu_schedule { uint32_t kind; /* enum npu_schedule */ uint32_t reserved; uint64_t seed; };
struct npu_emu_counters { uint64_t buffer_ptr; /* [in] receives u64[count], by enum npu_pmu */ uint32_t count; uint32_t reserved; };
/* Copies trace records (struct npu_trace_record) out, oldest first, and drops them. size 0 asks for the size. */
struct npu_emu_trace_read { uint64_t buffer_ptr; uint64_t buffer_bytes; /* [in] */ uint64_t used_bytes; /* [out] written, or pending when buffer_bytes is 0 */ };
struct npu_emu_advance { uint64_t until_ps; }; /* moves the caller's clock: host work of that length */
/* Runs the device until it has raised an interrupt, which the driver has handled, or to `until_ps`; costs the caller no time and does not
 * move it. For who waits for several things at once. UINT64_MAX: until the device is idle. */
struct npu_emu_run {
    uint64_t until_ps;            /* [in] beyond the end of the clock as UINT64_MAX */
    uint64_t now_ps;              /* [out] device time */
    uint64_t next_ps;             /* [out] time of its next event; UINT64_MAX: it is idle */
    uint32_t interrupts;          /* [out] 1 when it stopped at an interrupt, else 0 */
    uint32_t edges;               /* [out] interrupts since the device is there, modulo 2^32 */
};
_Static_assert(sizeof(struct npu_emu_run) == 32, "npu_emu_run");
/* Tells how the last job of a command buffer stands; runs nothing, costs nothing, and the job still is one that nobody has waited for. ENOENT. */
struct npu_emu_job {
    uint32_t handle;              /* [in] command buffer */
    uint32_t finished;            /* [out] 1 when it has ended, or there is none */
    uint64_t done_ps;             /* [out] when the host learns of the end: the interrupt plus its cost */
    uint32_t job_status;          /* [out] enum npu_job_status, when it has finished */
    uint32_t reserved;
};
_Static_assert(sizeof(struct npu_emu_job) == 24, "npu_emu_job");
/* Fault injection, EPERM for who may not. ARM: one fault, which strikes at the `after`-th time (0: the next) from now on that its point is passed, once, or `count`
 * times in a row. DISARM: all that are armed are forgotten. QUERY tells how often a fault of a kind has struck at a point since the device is there. */
enum npu_fault_point {            /* where */
    NPU_POINT_BOOT_IMAGE = 0, NPU_POINT_BOOT_START = 1, NPU_POINT_BOOT_DONE = 2, NPU_POINT_OPEN = 3, NPU_POINT_ALLOC = 4 /* device memory */, NPU_POINT_MAP = 5 /* page tables */,
    NPU_POINT_REGISTER_DB = 6, NPU_POINT_RING_WRITE = 7, NPU_POINT_DOORBELL = 8, NPU_POINT_JOB_TAKE = 9 /* firmware takes a job */, NPU_POINT_COMMAND = 10 /* firmware opens a slot or a launch for a command, or writes to the job's memory */,
    NPU_POINT_TASK_DISPATCH = 11, NPU_POINT_DMA_TASK = 12, NPU_POINT_DPU_TASK = 13, NPU_POINT_SHAVE_TASK = 14, NPU_POINT_BARRIER = 15, NPU_POINT_JOB_DONE = 16 /* firmware reports it */,
    NPU_POINT_MESSAGE_REPLY = 17, NPU_POINT_IRQ = 18, NPU_POINT_WAIT = 19, NPU_POINT_QUEUE_DESTROY = 20, NPU_POINT_SSID_RELEASE = 21, NPU_POINT_CLOSE = 22, NPU_POINT_RESET = 23, NPU_POINT_COUNT = 24 };
enum npu_fault_kind {             /* what; EINVAL for a kind that cannot strike at the point (docs/recovery.md) */
    NPU_FAULT_NO_MEMORY = 1, NPU_FAULT_FW_CRASH = 2, NPU_FAULT_FW_SILENT = 3 /* the core runs no more and answers nothing */, NPU_FAULT_IRQ_LOST = 4, NPU_FAULT_UNPLUG = 5,
    NPU_FAULT_ENGINE_HANG = 6 /* the task never ends */, NPU_FAULT_MMU = 7 /* the access faults */, NPU_FAULT_MESSAGE_LOST = 8, NPU_FAULT_MESSAGE_TWICE = 9, NPU_FAULT_MESSAGE_GARBAGE = 10 /* bytes from `seed` */,
    NPU_FAULT_IMAGE_BITFLIP = 11 /* bit `seed` of the image; at BOOT_START of its header */, NPU_FAULT_BARRIER_LOST = 12 /* a post that does not arrive */ };
enum npu_inject_action { NPU_INJECT_ARM = 0, NPU_INJECT_DISARM = 1, NPU_INJECT_QUERY = 2 };
struct npu_emu_inject { uint32_t point; uint32_t kind; uint32_t after; uint32_t count; /* 0 as 1 */ uint64_t seed; uint32_t action; /* [in] enum npu_inject_action */ uint32_t struck; /* [out] of QUERY */ };
_Static_assert(sizeof(struct npu_emu_inject) == 32, "npu_emu_inject");
/* Reads or writes a register of the device's own blocks, those from NPU_REG_ID_MAGIC on, as a debugger does: a register that there is not reads all ones. EPERM to write, for
 * who may not; EINVAL for others, which are the driver's. */
enum npu_register_action { NPU_REGISTER_READ = 0, NPU_REGISTER_WRITE = 1 };
struct npu_emu_register { uint32_t offset; uint32_t action; /* enum npu_register_action */ uint32_t value; /* [in] of WRITE; [out] of READ */ uint32_t reserved; };
_Static_assert(sizeof(struct npu_emu_register) == 16, "npu_emu_register");
/* Lets a client of the memory system that has no engine here, such as a CPU, ask for memory from now on: bursts at times that `seed` decides. EPERM for who may not; EINVAL for
 * a client that is not there (at fidelity `fast` none is) or is the device itself, and for more than the links carry. */
struct npu_emu_traffic {
    uint32_t client;              /* in the order of the memory system */
    uint32_t write_permille;      /* of the bursts, 0..1000 */
    uint64_t bytes_per_second;    /* 0: no more */
    uint64_t burst_bytes;         /* contiguous; 1..NPU_MAX_TRAFFIC_BURST_BYTES */
    uint64_t address;             /* physical; bursts follow each other from here, below 2^40 */
    uint64_t span_bytes;          /* and begin again after so many bytes; at least a burst, at most 2^40 */
    uint64_t seed;
};
_Static_assert(sizeof(struct npu_emu_traffic) == 48, "npu_emu_traffic");
enum { NPU_MAX_TRAFFIC_BURST_BYTES = 1 << 20 };
enum npu_trace_kind { NPU_TRACE_FETCH = 0, /* core read a descriptor */ NPU_TRACE_DISPATCH = 1, /* core put it in a FIFO */ NPU_TRACE_START = 2, NPU_TRACE_END = 3,
    NPU_TRACE_BARRIER_LOAD = 4, NPU_TRACE_BARRIER_READY = 5, NPU_TRACE_BARRIER_RETIRE = 6, NPU_TRACE_DOORBELL = 7, NPU_TRACE_JOB_START = 8, NPU_TRACE_JOB_END = 9,
    NPU_TRACE_FENCE_WRITE = 10, NPU_TRACE_IRQ = 11, NPU_TRACE_BOOT = 12,
    NPU_TRACE_KERNEL_PICK = 13 /* core chose a unit; value: unit */, NPU_TRACE_CODE_LOAD = 14 /* instruction cache fill began; value: bytes */,
    NPU_TRACE_PREEMPT = 15 /* a job left its tiles, its state is saved */, NPU_TRACE_RESUME = 16 /* it has tiles again */,
    /* engine cycles that are over: the PMU counts their sums */
    NPU_TRACE_CANCEL = 17 /* a task is taken off its engine, or was never let go on; value: busy cycles */,
    NPU_TRACE_BARRIER_WAIT = 18 /* the FIFO of job_id in front of the engine waits no longer; value: cycles */,
    NPU_TRACE_CODE_LOADED = 19 /* instruction cache fill is over; value: cycles */,
    NPU_TRACE_MEM_PENDING = 20 /* of a task, a wait or a fill that is over; value: cycles with a DDR request out */,
    NPU_TRACE_MEM_STALL = 21 /* the part of it that waited for memory; value: cycles */ };
struct npu_trace_record {
    uint64_t time_ps; uint64_t cycle;   /* engine clock */
    uint16_t kind;                /* enum npu_trace_kind */
    uint8_t  engine;              /* enum npu_engine */
    uint8_t  unit;                /* DMA port, tile for DPU, tile << 4 | shave for SHAVE (physical) */
    uint32_t task_id;             /* as in the descriptor; barrier index for BARRIER_*, db for DOORBELL */
    uint32_t job_id; uint32_t reserved;
    uint64_t value;               /* START: bytes or MACs or 0; FENCE_WRITE: value; BARRIER_LOAD, _READY, _RETIRE: physical id; END: busy cycles */
};
_Static_assert(sizeof(struct npu_trace_record) == 40, "npu_trace_record");
/* Copies overflow records of the caller's jobs out, in the order of their first overflow, and drops them; as EMU_TRACE_READ.
 * A task that rounds finite values to infinity in fp16 has one, kept whether tracing is on or not. */
struct npu_emu_overflows { uint64_t buffer_ptr; uint64_t buffer_bytes; /* [in] */ uint64_t used_bytes; /* [out] written, or pending when buffer_bytes is 0 */ };
struct npu_overflow_record { uint32_t job_id; uint32_t task_id; /* as in the descriptor */ uint64_t count; /* values */ };
_Static_assert(sizeof(struct npu_overflow_record) == 16, "npu_overflow_record");
/* Keeps, from now on, or no more, which device memory the engines read and wrote for jobs of the caller. EINVAL for anything but 0 and 1, EOPNOTSUPP
 * on a device that computes no values. */
struct npu_emu_watch { uint32_t enable; uint32_t reserved; };
/* Copies access records of the caller's jobs out, in the order in which the accesses began, and drops them; as EMU_TRACE_READ. EOVERFLOW, once, when more
 * than NPU_MAX_ACCESS_RECORDS came between two reads: all of them are lost. */
enum { NPU_MAX_ACCESS_RECORDS = 1 << 20 };
struct npu_emu_accesses { uint64_t buffer_ptr; uint64_t buffer_bytes; /* [in] */ uint64_t used_bytes; /* [out] written, or pending when buffer_bytes is 0 */ };
struct npu_access_record {
    uint64_t time_ps;             /* when the task, or the segment of a program, began */
    uint64_t address;             /* device virtual, of the first byte */
    uint64_t run_bytes;           /* of each run */
    uint64_t stride;              /* from the start of a run to that of the next */
    uint32_t run_count; uint32_t write; /* 1: it writes, 0: it reads */
    uint32_t job_id; uint32_t task_id; /* as in npu_trace_record */
};
_Static_assert(sizeof(struct npu_access_record) == 48, "npu_access_record");
#endif
