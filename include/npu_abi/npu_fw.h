/* SPDX-License-Identifier: Apache-2.0
 * npu_fw.h - what driver and firmware say to each other: image, boot, messages, job queues, command buffers.
 *
 * Little endian. Reserved fields must be zero and are checked. Addresses named *_va are device virtual
 * addresses of SSID 0 (global) unless the comment says "job": then of the job's own SSID.
 */
#ifndef NPU_FW_H
#define NPU_FW_H
#include <stdint.h>
#if defined(__cplusplus) && !defined(_Static_assert)
#define _Static_assert static_assert
#endif

/* MAJOR changes when an old firmware or driver would misread a structure, MINOR when fields were added
 * in reserved places. The driver refuses an image with another MAJOR or a smaller MINOR than its own. */
enum { NPU_FW_API_BOOT = 0, NPU_FW_API_JSM = 1, NPU_FW_API_COUNT = 2,
       NPU_FW_BOOT_API_MAJOR = 1, NPU_FW_BOOT_API_MINOR = 0, NPU_FW_JSM_API_MAJOR = 1, NPU_FW_JSM_API_MINOR = 0 };

/* ---- Image and boot ------------------------------------------------------------------------------- */
#define NPU_FW_IMAGE_MAGIC  0x5746504e /* "NPFW" */
#define NPU_BOOT_MAGIC      0x00010000
#define NPU_FW_MAX_IMAGE_BYTES 0x1000000
struct npu_fw_header {
    uint32_t magic;               /* NPU_FW_IMAGE_MAGIC */
    uint32_t header_version;      /* 1 */
    uint32_t image_size;          /* bytes of the whole file, header included; at most NPU_FW_MAX_IMAGE_BYTES */
    uint32_t crc32;               /* of the file with this field zero */
    uint16_t api_version[8][2];   /* {major, minor} by enum NPU_FW_API_*; unused entries zero */
    uint32_t preemption_buffer_size; /* bytes that a preemption buffer has besides the CMX of all tiles (NPU_PARAM_PREEMPT_BUFFER_SIZE is the sum); 0 = no preemption */
    uint32_t release;             /* of the firmware: major << 16 | minor << 8 | patch; what it can do goes by it (enum npu_fw_since) */
    uint32_t reserved0[2];
    uint8_t  digest[32];          /* SHA-256 over the firmware's sources in file-name order */
    char     entry[128];          /* entry point, NUL-terminated; resolved by the boot ROM */
    char     version[128];        /* text for people */
    uint8_t  reserved[4096 - 352];
};
_Static_assert(sizeof(struct npu_fw_header) == 4096, "npu_fw_header");
enum npu_fw_since { NPU_FW_COHERENT_DMA = 0x020100 /* 2.1.0: it makes DMA look into the host's caches, where the page table says so */,
    NPU_FW_NOC_PRIORITY = 0x020200 /* 2.2.0: NPU_JSM_SET_NOC_PRIORITY */ };

struct npu_boot_params {
    uint32_t magic;               /* NPU_BOOT_MAGIC */
    uint32_t boot_type;           /* 0 cold, 1 warm: the firmware starts from nothing either way */
    uint32_t tile_config;         /* bit t set = tile t usable */
    uint32_t scheduling_mode;     /* 0 one queue per doorbell, in doorbell order */
    uint64_t ipc_tx_va;           /* driver to firmware: array of struct npu_ipc_slot */
    uint64_t ipc_rx_va;           /* firmware to driver: array of struct npu_ipc_slot */
    uint32_t ipc_tx_slots;
    uint32_t ipc_rx_slots;
    uint32_t frequency_hz;        /* engine clock; for who reads a memory dump, the firmware counts in cycles of its own */
    uint32_t reserved0;
    uint64_t system_time_ps;      /* host clock at boot; as frequency_hz */
    uint8_t  reserved[4096 - 56];
};
_Static_assert(sizeof(struct npu_boot_params) == 4096, "npu_boot_params");

/* ---- Messages ------------------------------------------------------------------------------------- */
/* A message lives in a slot of the sender's area; the sender sets status ALLOCATED, fills it and posts its
 * address in the FIFO register; the receiver sets status FREE when it has read it. The firmware takes the slots of its area in turn, from
 * the first at boot on, and posts them so: one between two that were posted got lost, and the driver sets it FREE. */
enum npu_ipc_status { NPU_IPC_FREE = 0, NPU_IPC_ALLOCATED = 1 };
enum npu_ipc_channel { NPU_IPC_CHAN_BOOT = 1, NPU_IPC_CHAN_ASYNC_CMD = 0, NPU_IPC_CHAN_GEN_CMD = 10, NPU_IPC_CHAN_JOB_RET = 11 };
struct npu_ipc_hdr {
    uint32_t data_size;           /* bytes of payload that follow, at most 128 */
    uint16_t channel;             /* enum npu_ipc_channel */
    uint8_t  status;              /* enum npu_ipc_status */
    uint8_t  reserved[57];        /* a message in which it is not zero is dropped */
};
_Static_assert(sizeof(struct npu_ipc_hdr) == 64, "npu_ipc_hdr");

enum npu_jsm_type {
    NPU_JSM_ENGINE_RESET = 0x1100, NPU_JSM_ENGINE_RESUME = 0x111b, NPU_JSM_REGISTER_DB = 0x1102, NPU_JSM_UNREGISTER_DB = 0x1103,
    NPU_JSM_QUERY_ENGINE_HB = 0x1104, NPU_JSM_SSID_RELEASE = 0x110e, NPU_JSM_SET_NOC_PRIORITY = 0x11e0, NPU_JSM_STATE_DUMP = 0x11ff,
    NPU_JSM_JOB_DONE = 0x2100, NPU_JSM_BOOT_DONE = 0x2101,
    NPU_JSM_ENGINE_RESET_DONE = 0x2200, NPU_JSM_ENGINE_RESUME_DONE = 0x221b, NPU_JSM_REGISTER_DB_DONE = 0x2202, NPU_JSM_UNREGISTER_DB_DONE = 0x2203,
    NPU_JSM_QUERY_ENGINE_HB_DONE = 0x2204, NPU_JSM_SSID_RELEASE_DONE = 0x220e, NPU_JSM_SET_NOC_PRIORITY_DONE = 0x22e0,
    NPU_JSM_STATE_DUMP_DONE = 0x22ff
};
enum { NPU_JSM_REPLY = 0x1100 }; /* a reply's type is its request's plus this: X_DONE = X + NPU_JSM_REPLY */
enum npu_jsm_result { NPU_JSM_OK = 0, NPU_JSM_INVALID = 1, NPU_JSM_UNKNOWN_TYPE = 2 };
struct npu_jsm_msg {
    uint32_t type;                /* enum npu_jsm_type */
    uint32_t request_id;          /* echoed in the reply */
    uint32_t result;              /* enum npu_jsm_result, in replies */
    uint32_t reserved0;
    uint8_t  payload[112];        /* one of the structures below */
};
_Static_assert(sizeof(struct npu_jsm_msg) == 128, "npu_jsm_msg");
struct npu_ipc_slot { struct npu_ipc_hdr hdr; struct npu_jsm_msg msg; };
_Static_assert(sizeof(struct npu_ipc_slot) == 192, "npu_ipc_slot");

struct npu_jsm_boot_done { uint16_t api_version[8][2]; /* as in struct npu_fw_header */ };
enum { NPU_PRIORITY_BANDS = 4 };  /* 0 idle, 1 normal, 2 focus, 3 realtime */
enum { NPU_PREEMPT_STATE_BYTES = 4096 }; /* the beginning of a preemption buffer: barriers; then the workspaces of the tiles */
struct npu_jsm_register_db {
    uint32_t db_idx; uint32_t host_ssid; uint64_t jobq_va; uint32_t jobq_size;
    uint32_t priority_band;       /* < NPU_PRIORITY_BANDS. At every step the firmware serves the highest band that has something to do, and its queues in turn.
                                   * A job of a higher band that waits for tiles takes those of a job of the lowest band that brought a preemption buffer: at the
                                   * next task boundary its CMX and barriers are saved there; it resumes when tiles are free. So that no band starves, a job that
                                   * has waited for core.starvation_cycles of the profile counts as of one band more, and again after each such time, until
                                   * its command ends; it then takes nobody's tiles. */
};
_Static_assert(sizeof(struct npu_jsm_register_db) == 24, "npu_jsm_register_db");
struct npu_jsm_unregister_db { uint32_t db_idx; uint32_t reserved; };
struct npu_jsm_job_done {
    uint32_t db_idx; uint32_t job_id; uint32_t job_status; /* enum npu_job_status */
    uint32_t host_ssid;
    uint64_t error_detail;        /* by status: DEADLOCK, BARRIER_UNDERFLOW: barrier id (of a kernel: NPU_BARRIER_NONE); CTX_VIOLATION: address; PARSING_ERR: enum npu_parse_error;
                                   * PROCESSING_ERR: enum npu_engine; SHAVE_FAULT: enum npu_shave_fault << 32 | pc (byte of the program);
                                   * ABORTED: enum npu_abort_reason, which the driver writes */
    uint64_t error_info;          /* by status: task index | list << 32 (lists as numbered in npu_mapped_inference: 0, 1 DMA ... 6 barriers);
                                   * of a kernel: block; of a refused command: its number in the buffer; or 0 */
    uint64_t start_ps; uint64_t end_ps; /* device time at which the job began and ended */
};
_Static_assert(sizeof(struct npu_jsm_job_done) == 48, "npu_jsm_job_done");
/* ENGINE_RESET stops the engines at the next task boundary. A task that does not end within core.drain_cycles of the profile, and waits for no other,
 * hangs: its job is taken off the engines; it ends as ABORTED at ENGINE_RESUME, if it is still there. The reply, which comes when nothing runs any more, names the contexts with jobs on the
 * engines; those whose task hung are to be ended. The firmware starts nothing until ENGINE_RESUME; then the jobs of the others go on from where they
 * stand, with their CMX and barriers: nothing is done twice, so work in place stays right. INVALID: between the two, or RESUME without RESET. */
struct npu_jsm_engine_reset { uint32_t engine_idx; uint32_t reserved; };
enum { NPU_MAX_IMPACTED = 8 };
struct npu_jsm_impacted { uint32_t host_ssid; uint32_t flags; /* enum npu_impacted_flag */ };
enum npu_impacted_flag { NPU_IMPACTED_GUILTY = 1 /* a task of it did not end; else it only lost its engines */ };
struct npu_jsm_engine_reset_done { uint32_t engine_idx; uint32_t impacted_count; /* <= NPU_MAX_IMPACTED */ struct npu_jsm_impacted impacted[8]; };
_Static_assert(sizeof(struct npu_jsm_engine_reset_done) == 72, "npu_jsm_engine_reset_done");
struct npu_jsm_engine_resume { uint32_t engine_idx; uint32_t reserved; };
struct npu_jsm_query_hb { uint32_t engine_idx; uint32_t reserved; };
/* heartbeat: grows with every task that ends, block that is placed, command and job that begins or ends; not with messages. */
struct npu_jsm_query_hb_done { uint32_t engine_idx; uint32_t reserved; uint64_t heartbeat; };
struct npu_jsm_ssid_release { uint32_t host_ssid; uint32_t reserved; };
/* SET_NOC_PRIORITY: the firmware writes NPU_REG_NOC_QOS_BASE of a client; what is under way keeps its place. It holds until the next reset of the device. */
struct npu_jsm_set_noc_priority { uint32_t client; /* < NPU_REG_NOC_CLIENTS */ uint32_t priority; /* < NPU_NOC_PRIORITIES */ };
_Static_assert(sizeof(struct npu_jsm_set_noc_priority) == 8, "npu_jsm_set_noc_priority");
/* STATE_DUMP: the firmware writes struct npu_fw_state, then a struct npu_fw_queue_state per queue, in the order of their doorbells. */
struct npu_jsm_state_dump { uint64_t buffer_va; uint32_t buffer_bytes; uint32_t reserved; };
struct npu_fw_state {
    uint64_t time_ps;             /* device time */
    uint64_t heartbeat;           /* as struct npu_jsm_query_hb_done */
    uint32_t queue_count;         /* registered; those whose records fit follow */
    uint32_t job_count;           /* taken from a ring and not ended, of all queues */
    uint32_t free_tiles;          /* bit t set = tile t belongs to no job */
    uint32_t reserved;
};
_Static_assert(sizeof(struct npu_fw_state) == 32, "npu_fw_state");
enum npu_job_stage {
    NPU_STAGE_NONE = 0, NPU_STAGE_COMMAND = 1, NPU_STAGE_TILES = 2 /* waits for tiles */, NPU_STAGE_BARRIERS = 3,
    NPU_STAGE_ENGINES = 4, NPU_STAGE_FENCE = 5, NPU_STAGE_UNITS = 6 /* a kernel's blocks */,
    NPU_STAGE_DRAIN = 7 /* leaves its tiles when its running tasks have ended */, NPU_STAGE_SAVE = 8 /* its CMX is copied away */,
    NPU_STAGE_SAVED = 9 /* waits for tiles to go on */, NPU_STAGE_RESTORE = 10
};
struct npu_fw_queue_state {
    uint32_t db_idx; uint32_t host_ssid;
    uint32_t head; uint32_t tail; /* of its ring */
    uint32_t job_id;              /* of its job, 0 = none; what follows is the job's */
    uint32_t stage;               /* enum npu_job_stage */
    uint32_t command;             /* index in its command buffer */
    uint32_t outstanding_tasks;   /* in FIFOs or running */
    uint32_t open_lists;          /* task lists with tasks that are in no FIFO yet */
    uint32_t retired_barriers;    /* every virtual barrier below this has retired */
    uint32_t blocking_barrier;    /* that a FIFO waits for, the lowest; NPU_BARRIER_NONE */
    uint32_t reserved;
};
_Static_assert(sizeof(struct npu_fw_queue_state) == 48, "npu_fw_queue_state");

enum npu_job_status {
    NPU_JOB_SUCCESS = 0, NPU_JOB_PARSING_ERR = 1, NPU_JOB_PREEMPTED = 3, NPU_JOB_ABORTED = 4,
    NPU_JOB_PROCESSING_ERR = 2,   /* an engine refused a descriptor that the firmware had let through; detail = enum npu_engine */
    NPU_JOB_CTX_VIOLATION = 5,    /* an access left the job's mappings or tiles */
    NPU_JOB_DEADLOCK = 0x10,      /* nothing left to run, tasks still waiting; detail = barrier id */
    NPU_JOB_BARRIER_UNDERFLOW = 0x11, NPU_JOB_SHAVE_FAULT = 0x12 /* a program stopped; detail says why and where */
};
/* Why a job was aborted. */
enum npu_abort_reason {
    NPU_ABORT_OTHER = 0,          /* its queue was taken away, an earlier job failed, or the firmware ended it */
    NPU_ABORT_HUNG = 1,           /* the watchdog found that it made no progress: its context is ended */
    NPU_ABORT_LOST = 2,           /* a fault or a hang of another job has ended its context */
    NPU_ABORT_RESET = 3,          /* the whole device was reset; its context lives on */
    NPU_ABORT_NOT_REPORTED = 4,   /* the firmware does not have it any more, and how it ended was not reported */
    NPU_ABORT_UNPLUGGED = 5       /* the device is gone */
};
/* Why a SHAVE program stopped (docs/shave-isa.md). */
enum npu_shave_fault {
    NPU_SHAVE_FAULT_ILLEGAL_INSTRUCTION = 1, /* opcode, type, flag or register that does not exist, or an unused field that is not zero */
    NPU_SHAVE_FAULT_BAD_PC = 2,           /* a jump to an address that is unaligned or outside the program */
    NPU_SHAVE_FAULT_BAD_TEXT = 3,         /* size of the program is zero or not a multiple of 16 */
    NPU_SHAVE_FAULT_VECTOR_LENGTH = 4,    /* a zero, negative or too large tile, or a result that exceeds the capacity */
    NPU_SHAVE_FAULT_SHAPE = 5,            /* operands that do not broadcast */
    NPU_SHAVE_FAULT_UNDEFINED_REGISTER = 6, /* a vector register that was never written */
    NPU_SHAVE_FAULT_DIVIDE_BY_ZERO = 7,   /* integer */
    NPU_SHAVE_FAULT_INDEX = 8,            /* gather, scatter or extract outside the limit */
    NPU_SHAVE_FAULT_WATCHDOG = 9,         /* more cycles, instructions, work or started operations than a program may have */
    NPU_SHAVE_FAULT_TRAP = 10,            /* the program asked for it */
    NPU_SHAVE_FAULT_ADDRESS = 11,         /* negative, beyond 48 bits, or a store that hits one place twice */
    NPU_SHAVE_FAULT_NEEDS_VALUES = 12,    /* without values: control flow, a scalar or a descriptor depends on data */
    NPU_SHAVE_FAULT_NEEDS_ENGINES = 13,   /* a program that starts DMA or DPU, where there are none (compiler, tools) */
    NPU_SHAVE_FAULT_BAD_DESCRIPTOR = 14,  /* an operation that was started is none that an engine can do */
    NPU_SHAVE_FAULT_BAD_PORT = 15,        /* no such DMA port */
    NPU_SHAVE_FAULT_NOT_COOPERATIVE = 16  /* `bar` in a program that was not launched with NPU_KERNEL_COOPERATIVE */
};
/* Why a command buffer or a MappedInference was refused. */
enum npu_parse_error {
    NPU_PARSE_OK = 0, NPU_PARSE_BAD_COMMAND_BUFFER = 1, NPU_PARSE_BAD_COMMAND = 2, NPU_PARSE_BAD_ADDRESS = 3,
    NPU_PARSE_BAD_MAPPED_INFERENCE = 4, NPU_PARSE_BAD_API_VERSION = 5, NPU_PARSE_BAD_COUNT = 6, NPU_PARSE_BAD_BARRIER = 7,
    NPU_PARSE_BAD_DMA = 8, NPU_PARSE_BAD_DPU = 9, NPU_PARSE_BAD_SHAVE = 10, NPU_PARSE_BAD_RESOURCES = 11, NPU_PARSE_RESERVED_NOT_ZERO = 12, NPU_PARSE_BAD_KERNEL = 13
};

/* ---- Job queue (4 KiB in SSID 0): a header and 63 slots; empty: head == tail, full: (tail + 1) % 63 == head -- */
enum { NPU_JOBQ_SIZE = 4096, NPU_JOBQ_SLOTS = 63 };
struct npu_job_queue_header {
    uint32_t head;                /* written by the firmware: next slot to read, < NPU_JOBQ_SLOTS */
    uint32_t tail;                /* written by the driver: next free slot, < NPU_JOBQ_SLOTS */
    uint32_t flags;               /* written by the driver: NPU_JOBQ_STOP_ON_FAILURE: after a failed job of this queue the firmware ends
                                   * every job that it takes from a queue of the same SSID as NPU_JOB_ABORTED, until SSID_RELEASE */
    uint32_t reserved[13];
};
enum { NPU_JOBQ_STOP_ON_FAILURE = 1 };
_Static_assert(sizeof(struct npu_job_queue_header) == 64, "npu_job_queue_header");
struct npu_job_queue_entry {
    uint64_t batch_buf_va;        /* job: struct npu_cmd_buffer_header, 64-byte aligned */
    uint32_t job_id;              /* host_ssid << 8 | sequence & 0xff */
    uint32_t flags;               /* zero */
    uint64_t doorbell_ps;         /* host clock; for who reads a memory dump */
    uint64_t preempt_va;          /* job: preemption buffer, 0 = the job cannot be preempted */
    uint32_t preempt_bytes;       /* of it */
    uint32_t reserved0;
    uint64_t reserved[3];
};
_Static_assert(sizeof(struct npu_job_queue_entry) == 64, "npu_job_queue_entry");

/* ---- Command buffer: header, then commands back to back, each a multiple of 8 bytes ------------------- */
enum { NPU_CMD_API_VERSION = 0x00010000, NPU_MAX_CMD_BUFFER_BYTES = 0x100000 /* chosen; header and commands */ };
struct npu_cmd_buffer_header {
    uint32_t cmd_buffer_size;     /* bytes, header included; at most NPU_MAX_CMD_BUFFER_BYTES */
    uint32_t cmd_offset;          /* of the first command, from the header */
    uint32_t api_version;         /* NPU_CMD_API_VERSION */
    uint32_t reserved0;
    uint64_t descriptor_heap_va;  /* job: base of DMA descriptors of COPY; 0 = none */
    uint64_t fence_heap_va;       /* job: base of fence values; 0 = none */
    uint64_t reserved1[4];
};
_Static_assert(sizeof(struct npu_cmd_buffer_header) == 64, "npu_cmd_buffer_header");
enum npu_cmd_type {
    NPU_CMD_NOP = 1, NPU_CMD_TIMESTAMP = 0x100, NPU_CMD_FENCE_WAIT = 0x101, NPU_CMD_FENCE_SIGNAL = 0x102, NPU_CMD_BARRIER = 0x103,
    NPU_CMD_MEMORY_FILL = 0x202, NPU_CMD_COPY = 0x302, NPU_CMD_INFERENCE_EXECUTE = 0x306,
    NPU_CMD_KERNEL_LAUNCH = 0x307, NPU_CMD_INFERENCE_DYNAMIC = 0x308 /* struct npu_cmd_inference; see below */
};
/* Commands of a buffer run one after the other. When one fails, the job has failed and the commands behind it are not run, except
 * that every FENCE_SIGNAL behind it is still carried out: a fence says that work is over, the job's status says how it went. Of a
 * buffer that is refused no command is run; the FENCE_SIGNALs in it are carried out as far as it can be read. */
struct npu_cmd_header { uint16_t type; uint16_t size; /* bytes, this header included */ uint32_t reserved; };
struct npu_cmd_fence { struct npu_cmd_header h; uint64_t offset; /* from fence_heap_va, 8-byte aligned */ uint64_t value; };
_Static_assert(sizeof(struct npu_cmd_fence) == 24, "npu_cmd_fence");
struct npu_cmd_timestamp { struct npu_cmd_header h; uint64_t va; /* job: receives device time in ps */ };
struct npu_cmd_fill { struct npu_cmd_header h; uint64_t start_va; uint64_t size; /* bytes, multiple of 4 */ uint32_t pattern; uint32_t reserved; };
struct npu_cmd_copy { struct npu_cmd_header h; uint64_t desc_offset; /* from descriptor_heap_va */ uint32_t desc_count; uint32_t reserved; };
struct npu_cmd_inference { struct npu_cmd_header h; uint64_t inference_id; /* the caller's, as doorbell_ps */ uint64_t mapped_inference_va; /* job: struct npu_mapped_inference */ };
_Static_assert(sizeof(struct npu_cmd_inference) == 24, "npu_cmd_inference");
/* INFERENCE_DYNAMIC runs the same task lists with a run-time scheduler instead of the walk: the core looks through the tasks that are left,
 * at core.ready_cycles of the profile for each one it looks at, and hands one to an idle engine when its barriers are ready; nothing waits in a FIFO. */

/* KERNEL_LAUNCH: run `grid` blocks of a SHAVE program. The firmware gives each block to the SHAVE with the fewest blocks outstanding (of
 * those the one that has most of the program in its instruction cache, then the one that ran the fewest blocks, then the lowest number).
 * The unit fills its instruction cache with the lines of the program that it lacks, then executes. At entry r1 = args_va, r2 = number of the
 * block, r3 = grid, r4 = address of the block's CMX (the window of npu_hw.h shows nothing else), r5 = its bytes: a tile's workspace over its SHAVEs, 64-byte aligned.
 * Blocks of several launches share a tile; a tile that an inference owns runs no blocks, and a tile that runs blocks belongs to no inference. */
enum { NPU_MAX_KERNEL_GRID = 1024, NPU_MAX_KERNEL_ARGS_BYTES = 4096, NPU_MAX_KERNEL_CODE_BYTES = 1 << 20 };
enum npu_kernel_flag { NPU_KERNEL_COOPERATIVE = 1 /* all blocks run at the same time, so grid <= number of SHAVEs; only then may the program use `bar` */ };
struct npu_cmd_kernel {
    struct npu_cmd_header h;
    uint64_t text_va;             /* job: first instruction, 16-byte aligned, below 4 GiB */
    uint64_t args_va;             /* job: argument block, 8-byte aligned, below 4 GiB; 0 iff args_bytes is 0 */
    uint64_t record_va;           /* job: receives struct npu_kernel_record[grid], 8-byte aligned; 0 = none */
    uint32_t code_bytes;          /* multiple of 16, 16..NPU_MAX_KERNEL_CODE_BYTES; all of it goes through the instruction cache */
    uint32_t args_bytes;          /* 0..NPU_MAX_KERNEL_ARGS_BYTES */
    uint32_t grid;                /* 1..NPU_MAX_KERNEL_GRID */
    uint32_t flags;               /* enum npu_kernel_flag */
};
_Static_assert(sizeof(struct npu_cmd_kernel) == 48, "npu_cmd_kernel");
struct npu_kernel_record {        /* device times of one block, in ps; written when the block has ended */
    uint64_t taken_ps;            /* the core began with the command */
    uint64_t picked_ps;           /* the core chose the unit */
    uint64_t load_ps;             /* the unit took the block and began to fill its instruction cache */
    uint64_t start_ps;            /* the program started */
    uint64_t end_ps;              /* it ended */
    uint32_t unit;                /* physical tile << 4 | SHAVE */
    uint32_t loaded_bytes;        /* code that was fetched from DDR */
    uint32_t cached_bytes;        /* code that was there */
    uint32_t reserved;
};
_Static_assert(sizeof(struct npu_kernel_record) == 56, "npu_kernel_record");
#endif
