/* SPDX-License-Identifier: Apache-2.0
 * npu_blob.h - what a compiled model is: the ELF container, its metadata, and the task descriptors that the
 * firmware walks. Written by the compiler, read by the loader, the firmware and the tools.
 *
 * Little endian, no packing, explicit zero padding (reserved*, checked by the firmware). CMX addresses are
 * in the window of npu_hw.h and relative to the job's tiles; barrier ids are relative to the job's window.
 */
#ifndef NPU_BLOB_H
#define NPU_BLOB_H
#include <stdint.h>
#include "npu.h" /* enum npu_dtype, NPU_MAX_DIMS, NPU_NAME_BYTES */
#if defined(__cplusplus) && !defined(_Static_assert)
#define _Static_assert static_assert
#endif

/* ---- ELF ------------------------------------------------------------------------------------------ */
/* ELF64, little endian, e_type = NPU_ELF_TYPE, e_machine = NPU_ELF_MACHINE. The symbol
 * `MappedInference` (STT_OBJECT, global) is the entry of a compiled model. A kernel library has .npu.kernels and .text.shave instead: no
 * tensors, no task lists, and one STT_FUNC symbol "kernel:" + name per kernel. Its profile is "any": SHAVE programs run on every device. Sections, in file order, absent when empty:
 *   .note.npu.abi          note, owner "NPU", type 1: u32 {major, minor}
 *   .npu.platform          struct npu_platform_info
 *   .npu.netdesc           struct npu_net_desc, then struct npu_io_desc[input_count + output_count]
 *   .npu.mapped_inference  struct npu_mapped_inference                      ALLOC
 *   .npu.tasks.dma0/.dma1  struct npu_dma_task[]                            ALLOC
 *   .npu.tasks.dpu_invariant / .dpu_variant                                  ALLOC
 *   .npu.tasks.shave_range / .shave_invocation                               ALLOC
 *   .npu.barriers          struct npu_barrier_config[]                      ALLOC
 *   .text.shave            SHAVE programs, struct npu_shv_insn[]            ALLOC | EXECINSTR, below 4 GiB
 *   .data.shave_args       SHAVE argument blocks                             ALLOC, below 4 GiB
 *   .data.weights          constants                                         ALLOC; NOBITS in a plan, which has no values
 *   .bss.scratch           spills and intermediate tensors                   ALLOC | WRITE, NOBITS
 *   .npu.io.input / .npu.io.output   NOBITS; one STT_OBJECT symbol per tensor (its offset and size); bound per launch
 *   .rela.*                relocations with addend, one section per patched section
 *   .npu.kernels           struct npu_kernel_table, struct npu_kernel_desc[kernel_count], struct npu_kernel_param[param_count]
 *   .npu.debug             JSON for people and tools: layer names by task, statistics of the compiler
 *   .npu.digest            32 bytes: SHA-256 over name, type, size and content of every other section in index order
 */
enum { NPU_ELF_MACHINE = 0x4e50, NPU_ELF_TYPE = 0xfe01, NPU_ELF_OSABI = 0,
       NPU_BLOB_ABI_MAJOR = 1, NPU_BLOB_ABI_MINOR = 0, NPU_NOTE_ABI = 1 };
enum npu_section_flag { NPU_SHF_IO_INPUT = 0x00200000, NPU_SHF_IO_OUTPUT = 0x00400000, NPU_SHF_LOW = 0x01000000 /* place below 4 GiB */ };
/* S: symbol's device address, A: addend. 64: 8 bytes S + A. 32: 4 bytes S + A, must fit. */
enum npu_reloc { NPU_R_64 = 1, NPU_R_32 = 2 };

struct npu_platform_info {
    char     profile[64];         /* name of the hardware profile that it was compiled for */
    uint32_t tile_count;          /* tiles that a job needs */
    uint32_t cmx_bytes;           /* highest CMX byte used in any tile, + 1 */
    uint32_t barrier_count;       /* physical barriers that a job needs, <= 64 */
    uint32_t reserved;
};
_Static_assert(sizeof(struct npu_platform_info) == 80, "npu_platform_info");
struct npu_net_desc {
    char     name[NPU_NAME_BYTES];
    uint32_t input_count; uint32_t output_count; uint32_t submit_count; /* 1 */ uint32_t reserved0;
    uint64_t weight_bytes; uint64_t scratch_bytes; uint64_t macs; uint64_t reserved1;
};
_Static_assert(sizeof(struct npu_net_desc) == 176, "npu_net_desc");
struct npu_io_desc {              /* tensors are dense and row-major, in the type and order of the source model */
    char     name[NPU_NAME_BYTES];/* NUL-terminated; the ELF symbol is "in:" or "out:" + name */
    uint32_t dtype;               /* enum npu_dtype */
    uint32_t rank;                /* <= NPU_MAX_DIMS; 0 = scalar */
    uint64_t dims[NPU_MAX_DIMS];
    uint64_t size_bytes;
    uint64_t offset;              /* in its io section, 64-byte aligned */
};
_Static_assert(sizeof(struct npu_io_desc) == 216, "npu_io_desc");

/* ---- Synchronisation ------------------------------------------------------------------------------ */
/* Virtual barriers are the entries of the barrier configuration array; several share one physical id in array
 * order. A barrier is ready when its producers reached zero; each waiting task takes one consumer when it
 * starts; at zero producers and zero consumers it retires and the firmware loads next_same_id. */
#define NPU_BARRIER_NONE 0xffffffff
enum { NPU_MAX_BARRIER_IDS = 64, NPU_MAX_BARRIER_COUNT = 255 };
struct npu_barrier_dep {
    uint64_t wait_mask;           /* physical ids that must be ready before the task starts */
    uint64_t post_mask;           /* physical ids that lose one producer when the task has ended */
};
struct npu_sched_barrier {
    uint32_t start_after;         /* the task may enter a FIFO once every virtual barrier <= this index has retired; NONE = at once */
    uint32_t reserved;
};
struct npu_barrier_config {
    uint32_t next_same_id;        /* index of the next virtual barrier on real_id, > own index; NONE = last */
    uint16_t producer_count;      /* 1..NPU_MAX_BARRIER_COUNT: tasks whose post_mask names it */
    uint16_t consumer_count;      /* 0..NPU_MAX_BARRIER_COUNT: tasks whose wait_mask names it */
    uint8_t  real_id;             /* < barrier_count of the inference */
    uint8_t  reserved[3];
};
_Static_assert(sizeof(struct npu_barrier_config) == 12, "npu_barrier_config");

/* ---- DMA ------------------------------------------------------------------------------------------ */
/* Moves `length` bytes per plane, num_planes planes. Within a plane the source is read as rows of src_width
 * bytes, src_stride apart, and written as rows of dst_width bytes, dst_stride apart; both widths divide length.
 * Plane p starts at p * {src,dst}_plane_stride. 1-D: both widths equal length. Strides may be zero (source) or negative. */
struct npu_dma_descriptor {
    uint64_t src; uint64_t dst;   /* CMX window or device virtual address */
    uint32_t length; uint32_t num_planes;  /* >= 1 */
    int32_t  src_plane_stride; int32_t dst_plane_stride;
    uint32_t src_width; int32_t src_stride;
    uint32_t dst_width; int32_t dst_stride;
    uint32_t cfg;                 /* reserved for the burst length: zero, which is the profile's */
    uint32_t reserved[7];
};
_Static_assert(sizeof(struct npu_dma_descriptor) == 80, "npu_dma_descriptor");
struct npu_dma_task {
    struct npu_dma_descriptor transaction;
    struct npu_barrier_dep barriers;
    struct npu_sched_barrier sched;
    uint32_t task_id;             /* index in .npu.debug's task names */
    uint32_t reserved[5];
};
_Static_assert(sizeof(struct npu_dma_task) == 128, "npu_dma_task");

/* ---- DPU: one invariant (what is computed) and its variants (workloads: which part of the output) --------- */
/* Tensors are [Y][X][Z], Z (channels) dense; stride_y and stride_x are bytes. All operands in CMX.
 * Weights are dense [out_z][kernel_y][kernel_x][in_z / groups] (CONV), [kernel_y][kernel_x][out_z] (DWCONV).
 * MATMUL: act is [1][in_x = M][in_z = K], weights [out_z = N][K]. CONV and MATMUL share everything else.
 * WEIGHTS_4BIT, of CONV and MATMUL of integers: weights are dense 4-bit integers, two to a byte, the first in the lower half; of wt_dtype I8
 * in two's complement, of U8 0..15. The filter of a channel has an even number of them.
 * Result: acc (float64 for float types, rounded to float32; int32 for integer types), then the PPE:
 *   acc of CONV, DWCONV and MATMUL of integers + offset of the channel's weight table entry, wrapped to int32, if there is one;
 *   v = acc * scale + bias, scale and bias from the weight table entry of the channel when wt_table_addr != 0,
 *   else ppe_scale and ppe_bias; each operation rounds to float32; then ppe_fn; then clamp [clamp_low, clamp_high];
 *   then for integer outputs round to nearest even, + out_zero_point, saturating; else conversion to out_dtype, to nearest even
 *   (float overflow becomes infinity). ELTWISE: acc = act op act2. AVGPOOL: acc = sum over the window inside the
 *   tensor (or kernel area with COUNT_PAD) divided by the count, rounded once to float32. MAXPOOL: padding never wins. */
enum npu_dpu_op { NPU_DPU_CONV = 0, NPU_DPU_DWCONV = 1, NPU_DPU_MATMUL = 2, NPU_DPU_MAXPOOL = 3, NPU_DPU_AVGPOOL = 4, NPU_DPU_ELTWISE_ADD = 5, NPU_DPU_ELTWISE_MUL = 6 };
enum npu_ppe_fn { NPU_PPE_NONE = 0, NPU_PPE_RELU = 1, NPU_PPE_LRELU = 2 /* v < 0: v * lrelu_slope */ };
enum npu_dpu_flag { NPU_DPU_FLAG_COUNT_PAD = 1, NPU_DPU_FLAG_WEIGHTS_4BIT = 2 };
struct npu_dpu_invariant {
    uint32_t act_addr; uint32_t act2_addr;            /* act2: ELTWISE only */
    uint32_t wt_addr;  uint32_t wt_table_addr;        /* 0 = none */
    uint32_t out_addr; uint32_t reserved0;
    uint32_t in_x; uint32_t in_y; uint32_t in_z;      /* elements */
    uint32_t out_x; uint32_t out_y; uint32_t out_z;
    uint32_t act_stride_x; uint32_t act_stride_y;     /* bytes */
    uint32_t act2_stride_x; uint32_t act2_stride_y;   /* bytes; 0 broadcasts */
    uint32_t out_stride_x; uint32_t out_stride_y;     /* bytes */
    uint32_t groups;                                  /* CONV: >= 1, divides in_z and out_z */
    uint8_t  kernel_x; uint8_t kernel_y; uint8_t stride_x; uint8_t stride_y;
    uint8_t  dilation_x; uint8_t dilation_y; uint8_t op; uint8_t flags;
    uint8_t  act_dtype; uint8_t wt_dtype; uint8_t out_dtype; uint8_t ppe_fn;
    int32_t  act_zero_point; int32_t wt_zero_point; int32_t out_zero_point;  /* integer types */
    float    ppe_scale; float ppe_bias; float clamp_low; float clamp_high; float lrelu_slope; /* clamp: -inf, +inf = none */
    struct npu_barrier_dep barriers;
    struct npu_sched_barrier sched;
    uint32_t variant_first; uint32_t variant_count;   /* >= 1 */
    uint32_t tile;                                    /* job tile whose DPU runs it */
    uint32_t task_id;
    uint32_t mpe_grid;                                /* enum npu_mpe_grid */
    uint32_t out_tiles;                               /* bit t set = the output also goes to job tile t, at the place that out_addr has in its tile */
    uint32_t reserved1[22];
};
_Static_assert(sizeof(struct npu_dpu_invariant) == 256, "npu_dpu_invariant");
/* Output block (x * y pixels, z channels) that the MAC array works on at a time, as profiled workloads name them. */
enum npu_mpe_grid { NPU_MPE_16X16 = 0 /* 4x4 pixels in 16x16 */, NPU_MPE_8X16 = 1, NPU_MPE_4X16 = 2 };
struct npu_dpu_variant {
    uint32_t start_x; uint32_t start_y; uint32_t start_z;  /* first output element */
    uint32_t size_x; uint32_t size_y; uint32_t size_z;     /* >= 1 */
    uint16_t pad_left; uint16_t pad_right; uint16_t pad_top; uint16_t pad_bottom; /* of the whole input, elements */
    uint32_t invariant_index;
    uint32_t reserved[7];
};
_Static_assert(sizeof(struct npu_dpu_variant) == 64, "npu_dpu_variant");
struct npu_dpu_weight_entry { float scale; float bias; int32_t offset; uint32_t reserved; }; /* weight table: one per output channel; offset: of integers alone */
_Static_assert(sizeof(struct npu_dpu_weight_entry) == 16, "npu_dpu_weight_entry");

/* ---- SHAVE ---------------------------------------------------------------------------------------- */
struct npu_shv_insn { uint8_t op; uint8_t type; uint8_t d; uint8_t a; uint8_t b; uint8_t c; uint16_t flags; int32_t imm; int32_t imm2; };
_Static_assert(sizeof(struct npu_shv_insn) == 16, "npu_shv_insn"); /* docs/shave-isa.md */
struct npu_shave_range {          /* a program */
    uint64_t text_va;             /* first instruction, 16-byte aligned, below 4 GiB */
    uint32_t code_bytes;          /* multiple of 16 */
    uint32_t reserved;
};
_Static_assert(sizeof(struct npu_shave_range) == 16, "npu_shave_range");
struct npu_shave_invocation {     /* one task of one SHAVE */
    uint32_t range_index;
    uint32_t args_va;             /* argument block; r1 at entry. 0 = none */
    uint32_t args_bytes;
    uint16_t tile; uint16_t shave; /* job tile, SHAVE of that tile */
    struct npu_barrier_dep barriers;
    struct npu_sched_barrier sched;
    uint32_t task_id;
    uint32_t reserved[5];
};
_Static_assert(sizeof(struct npu_shave_invocation) == 64, "npu_shave_invocation");

/* ---- Kernels: SHAVE programs that are launched by name with run-time arguments ----------------------- */
/* The argument block has 8 bytes per parameter, in order: a device address (BUFFER), a signed integer (INT), or a float in the low four bytes (FLOAT). */
struct npu_kernel_table { uint32_t kernel_count; uint32_t param_count; uint32_t reserved[2]; };
struct npu_kernel_desc {
    char     name[NPU_NAME_BYTES];/* NUL-terminated, unique */
    uint32_t text_offset;         /* of its first instruction in .text.shave, multiple of 64 */
    uint32_t code_bytes;          /* multiple of 16 */
    uint32_t param_first; uint32_t param_count;
    uint32_t flags;               /* enum npu_kernel_flag (npu_fw.h) that every launch of it has */
    uint32_t max_grid;            /* most blocks that make sense; 0 = any number */
    uint32_t reserved[2];
};
_Static_assert(sizeof(struct npu_kernel_desc) == 160, "npu_kernel_desc");
struct npu_kernel_param {
    char     name[NPU_NAME_BYTES];
    uint32_t kind;                /* enum npu_arg_kind */
    uint32_t direction;           /* enum npu_arg_direction; scalars: IN */
    uint32_t dtype;               /* enum npu_dtype of a buffer's elements; scalars: I64, F32 */
    uint32_t reserved;
};
_Static_assert(sizeof(struct npu_kernel_param) == 144, "npu_kernel_param");

/* ---- MappedInference: the entry ------------------------------------------------------------------- */
enum { NPU_MAX_DMA_PORTS = 2, NPU_MAX_TILES = 8, NPU_MAX_SHAVES_PER_TILE = 4, NPU_MI_API_VERSION = 0x00010000, NPU_MAX_TASKS = 1 << 20 };
struct npu_task_ref { uint64_t va; uint64_t count; };  /* of an array; va 0 iff count 0 */
struct npu_mapped_inference {
    uint32_t api_version;         /* NPU_MI_API_VERSION */
    uint32_t tile_count;          /* tiles needed, 1..NPU_MAX_TILES */
    uint32_t barrier_count;       /* physical barrier ids needed, 0..NPU_MAX_BARRIER_IDS */
    uint32_t reserved0;
    struct npu_task_ref dma_tasks[NPU_MAX_DMA_PORTS]; /* one list per port */
    struct npu_task_ref invariants;        /* one list; each goes to the DPU of its tile */
    struct npu_task_ref variants;
    struct npu_task_ref shave_ranges;
    struct npu_task_ref shave_invocations; /* one list; each goes to its SHAVE */
    struct npu_task_ref barrier_configs;
    uint64_t reserved[16];
};
_Static_assert(sizeof(struct npu_mapped_inference) == 256, "npu_mapped_inference");
#endif
