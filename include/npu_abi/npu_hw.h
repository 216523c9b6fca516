/* SPDX-License-Identifier: Apache-2.0
 * npu_hw.h - the hardware as a driver and a firmware see it: register map, MMU tables, address map.
 *
 * Registers are 32 bits wide and accept only aligned 32-bit accesses; any other access reads all ones,
 * drops the write and increments BAD_MMIO. Offsets are bytes from BAR0. RO: read only, RW: read and
 * write, WO: write only (reads zero), W1C: write one to clear. Offsets below 0x01a00000 follow the
 * public register files of a shipping device where it has such a register; the rest is this device's own.
 *
 * docs/device-spec.md shows what is here as tables; `python scripts/device_spec.py` makes it from this file's comments.
 */
#ifndef NPU_HW_H
#define NPU_HW_H
#include <stdint.h>
#if defined(__cplusplus) && !defined(_Static_assert)
#define _Static_assert static_assert
#endif

/* ---- Host side: identification, interrupts, boot -------------------------------------------------- */
enum npu_hw_reg {
    NPU_REG_HW_VERSION          = 0x00000108, /* RO  major 31:16, minor 15:0 */
    NPU_REG_ICB_STATUS          = 0x00010210, /* RO  pending interrupt causes, enum npu_icb */
    NPU_REG_ICB_CLEAR           = 0x00010220, /* W1C clears ICB_STATUS bits; HOST_IPC_FIFO re-raises while its FIFO holds a message */
    NPU_REG_ICB_ENABLE          = 0x00010240, /* RW  causes that drive the interrupt line; reset 0 */
    NPU_REG_HOST_IPC_FIFO       = 0x000200f4, /* RO  pops one message address (32-bit VA in SSID 0); 0 = empty */
    NPU_REG_HOST_IPC_FIFO_STAT  = 0x000200fc, /* RO  fill level 23:16 */
    NPU_REG_BOOT_ENTRY_LO       = 0x00040040, /* RW  physical address of the image 31:1, NPU_BOOT_ENTRY_DONE starts the core */
    NPU_REG_BOOT_ENTRY_HI       = 0x00040044, /* RW  address 63:32; written before LO */
    NPU_REG_BOOT_PARAMS_LO      = 0x00040048, /* RW  physical address of struct npu_boot_params 31:0 */
    NPU_REG_BOOT_PARAMS_HI      = 0x0004004c, /* RW  address 63:32 */
    NPU_REG_BOOT_STATUS         = 0x00040050, /* RO  enum npu_boot_status, set by the boot ROM */

    /* MMU (per-context translation) */
    NPU_REG_MMU_CR0             = 0x00200020, /* RW  NPU_MMU_ENABLE: translation; disabled = every DRAM access faults */
    NPU_REG_MMU_CDTAB_LO        = 0x00200080, /* RW  physical address of the context table 31:0, 4 KiB aligned */
    NPU_REG_MMU_CDTAB_HI        = 0x00200084, /* RW  63:32 */
    NPU_REG_MMU_TLBI_SSID       = 0x00200090, /* WO  drops cached translations of SSID 31:0 */
    NPU_REG_MMU_TLBI_ALL        = 0x00200094, /* WO  drops every cached translation */
    NPU_REG_MMU_EVT_COUNT       = 0x002000a0, /* RO  queued fault events, at most NPU_MMU_EVTQ_DEPTH */
    NPU_REG_MMU_EVT_CODE        = 0x002000a4, /* RO  head event: enum npu_mmu_event */
    NPU_REG_MMU_EVT_SSID        = 0x002000a8, /* RO  head event: context */
    NPU_REG_MMU_EVT_ADDR_LO     = 0x002000ac, /* RO  head event: device virtual address 31:0 */
    NPU_REG_MMU_EVT_ADDR_HI     = 0x002000b0, /* RO  63:32 */
    NPU_REG_MMU_EVT_INFO        = 0x002000b4, /* RO  head event: bit 0 write, 15:8 engine (enum npu_engine) */
    NPU_REG_MMU_EVT_POP         = 0x002000b8, /* WO  drops the head event */

    NPU_REG_CPU_IPC_FIFO        = 0x010200f0, /* WO  posts a message address (32-bit VA in SSID 0) to the core */
    NPU_REG_DOORBELL_BASE       = 0x01300000, /* WO  doorbell n at BASE + 0x1000 * n, n = 1..255; NPU_DOORBELL_SET */

    /* Buttress: power and platform */
    NPU_REG_GLOBAL_INT_MASK     = 0x01800008, /* RW  bit 0 masks the interrupt line; reset 1 */
    NPU_REG_PLL_FREQ_HZ         = 0x01800148, /* RO  engine clock in Hz */
    NPU_REG_TILE_FUSE           = 0x01800150, /* RO  bit t set = tile t disabled */
    NPU_REG_NPU_STATUS          = 0x01800154, /* RO  enum npu_status_bit */
    NPU_REG_IP_RESET            = 0x01800160, /* WO  NPU_IP_RESET_TRIGGER: core stopped, engines and CMX cleared */

    /* This device's own blocks */
    NPU_REG_ID_MAGIC            = 0x01a00000, /* RO  NPU_HW_MAGIC */
    NPU_REG_LIVENESS            = 0x01a00004, /* RW  reads the complement of what was written */
    NPU_REG_BAD_MMIO            = 0x01a00008, /* RO  refused accesses since reset */
    NPU_REG_PMU_CTRL            = 0x01a03000, /* RW  enum npu_pmu_ctrl; reset EN */
    NPU_REG_PMU_COUNTER_BASE    = 0x01a03200, /* RO  counter n: LO at +8n (latches HI), HI at +8n+4; enum npu_pmu */
    NPU_REG_DMA_STATUS_BASE     = 0x01a04000, /* RO  port p at + 0x100 * p: enum npu_dma_status, fill 15:8; +4 tasks done */
    NPU_REG_BARRIER_BASE        = 0x01a05000, /* RO  id i at + 8 * i: producers 15:0, consumers 31:16; +4 enum npu_barrier_status */
    NPU_REG_TILE_BASE           = 0x01a06000, /* RO  tile t at + 8 * t: DPU busy 0, SHAVE busy 15:8; +4 tasks done */

    /* Network on chip and DDR controller (without ports, links, channels and counters at fidelity `fast`) */
    NPU_REG_NOC_PORTS           = 0x01a08000, /* RO  ports of routers 15:0, credits of each 31:16 */
    NPU_REG_NOC_CLIENTS         = 0x01a08004, /* RO  clients of the memory system, in its order */
    NPU_REG_NOC_CYCLES_LO       = 0x01a08008, /* RO  cycles that the network has run 31:0; latches HI */
    NPU_REG_NOC_CYCLES_HI       = 0x01a0800c, /* RO  63:32 */
    NPU_REG_NOC_LINKS           = 0x01a08010, /* RO  links between routers, both directions counted, in the memory system's order */
    NPU_REG_NOC_QOS_BASE        = 0x01a08100, /* RO  client c at + 4 * c: its priority 2:0 at every port, a higher one goes first; reset: the memory system's. The management core alone writes it */
    NPU_REG_NOC_CREDIT_BASE     = 0x01a09000, /* RO  port p at + 0x10 * p: credit_occupancy, credits in use 15:0, most ever 31:16; +4 client 7:0, hop 15:8, way back 16; +8 LO (latches HI), +12 HI: in use, summed over cycles */
    NPU_REG_NOC_CLIENT_BASE     = 0x01a09800, /* RO  client c at + 0x40 * c: counter n: LO at +8n (latches HI), HI at +8n+4; enum npu_noc_client_counter */
    NPU_REG_NOC_LINK_BASE       = 0x01a09c00, /* RO  link l at + 0x20 * l: counter n: LO at +8n (latches HI), HI at +8n+4; enum npu_noc_link_counter */
    NPU_REG_DDRC_CHANNELS       = 0x01a0a000, /* RO  channels */
    NPU_REG_DDRC_COUNTER_BASE   = 0x01a0b000  /* RO  channel c at + 0x100 * c: counter n: LO at +8n (latches HI), HI at +8n+4; enum npu_ddrc_counter */
};
enum {
    NPU_BAR0_SIZE = 0x02000000, NPU_DOORBELL_STRIDE = 0x1000, NPU_NUM_DOORBELLS = 256, NPU_DMA_STATUS_STRIDE = 0x100,
    NPU_NOC_CREDIT_STRIDE = 0x10, NPU_NOC_CLIENT_STRIDE = 0x40, NPU_NOC_LINK_STRIDE = 0x20, NPU_DDRC_COUNTER_STRIDE = 0x100,
    NPU_NOC_PRIORITIES = 8
};
/* Bits of registers. */
enum { NPU_BOOT_ENTRY_DONE = 1 << 0, NPU_MMU_ENABLE = 1 << 0, NPU_DOORBELL_SET = 1 << 0, NPU_IP_RESET_TRIGGER = 1 << 0 };
enum npu_status_bit { NPU_STATUS_READY = 1 << 0, NPU_STATUS_IDLE = 1 << 1 };
enum npu_pmu_ctrl { NPU_PMU_CTRL_EN = 1 << 0, NPU_PMU_CTRL_FREEZE = 1 << 1, NPU_PMU_CTRL_CLR = 1 << 2 /* clears itself */ };
enum npu_dma_status { NPU_DMA_STATUS_BUSY = 1 << 0, NPU_DMA_STATUS_ERR = 1 << 1 /* a task faulted since reset */ };
enum npu_barrier_status { NPU_BARRIER_STATUS_VALID = 1 << 0, NPU_BARRIER_STATUS_UNDERFLOW = 1 << 1 };
#define NPU_HW_MAGIC 0x4550554e /* "NUPE", little endian bytes 4e 55 50 45 */

enum npu_icb { NPU_ICB_HOST_IPC_FIFO = 1 << 4, NPU_ICB_MMU_EVENT = 1 << 5, NPU_ICB_CORE_FAULT = 1 << 6 };
enum npu_boot_status {
    NPU_BOOT_OFF = 0, NPU_BOOT_RUNNING = 1,
    NPU_BOOT_BAD_IMAGE = 2,   /* header magic, sizes or checksum */
    NPU_BOOT_BAD_DIGEST = 3,  /* the image does not match the firmware it names */
    NPU_BOOT_BAD_PARAMS = 4,
    NPU_BOOT_CRASHED = 5
};
enum npu_engine { NPU_ENGINE_CORE = 0, NPU_ENGINE_DMA = 1, NPU_ENGINE_DPU = 2, NPU_ENGINE_SHAVE = 3 };

/* PMU counters, 64 bits, by index. Cycles are engine-clock cycles. Three different things are asked of an engine kind: unit_active, the cycles in which
 * its units run a task, is _BUSY; mem_pending, those in which requests to DDR are out, is _MEM_PENDING, and they may be hidden behind work: _MEM_STALL
 * is the part that is not; mac_util is DPU_MACS over DPU_MAC_SLOTS. Energies are what the hardware profile says of each operation and byte. */
enum npu_pmu {
    NPU_PMU_CYCLES = 0,         /* cycles since reset or CLR */
    NPU_PMU_DMA_BUSY = 1,       /* port-cycles with a transfer in progress, summed over ports */
    NPU_PMU_DMA_DDR_READ = 2,   /* bytes */
    NPU_PMU_DMA_DDR_WRITE = 3,  /* bytes */
    NPU_PMU_DMA_CMX_READ = 4,   /* bytes */
    NPU_PMU_DMA_CMX_WRITE = 5,  /* bytes */
    NPU_PMU_DPU_BUSY = 6,       /* cycles with a task executing, summed over DPUs */
    NPU_PMU_DPU_MACS = 7,       /* multiply-accumulates that the task needs */
    NPU_PMU_SHAVE_BUSY = 8,     /* cycles with a task executing, summed over SHAVEs */
    NPU_PMU_SHAVE_INSNS = 9,    /* instructions retired */
    NPU_PMU_BARRIER_WAIT = 10,  /* cycles in which a FIFO head waited for a barrier, summed over engines */
    NPU_PMU_CORE_BUSY = 11,     /* cycles in which the management core worked */
    NPU_PMU_TASKS = 12,         /* tasks completed */
    NPU_PMU_DOORBELLS = 13,     /* doorbells rung */
    NPU_PMU_IRQS = 14,          /* rising edges of the interrupt line */
    NPU_PMU_TLB_MISS = 15,      /* walks of the page tables */
    NPU_PMU_SRAM_READ = 16,     /* bytes of operands that DPU and SHAVE read from CMX */
    NPU_PMU_SRAM_WRITE = 17,    /* bytes that DPU and SHAVE wrote to CMX */
    NPU_PMU_CODE_LOAD = 18,     /* bytes that instruction caches fetched from DDR for kernels */
    NPU_PMU_CODE_LOAD_CYCLES = 19, /* cycles in which a SHAVE filled its instruction cache, summed over SHAVEs */
    NPU_PMU_SNOOPS = 20,        /* lines of 64 bytes of pages with NPU_PTE_SNOOP that DMA ports asked the host's caches for */
    NPU_PMU_DPU_MAC_SLOTS = 21, /* multiply-accumulates that the arrays offered in their busy cycles, for the operand types of their tasks */
    NPU_PMU_SHAVE_LANE_OPS = 22, /* elements of vector instructions; one of a special function counts for each cycle that it has its lane */
    NPU_PMU_SHAVE_DDR_READ = 23, /* bytes of operands that SHAVE read from elsewhere than CMX */
    NPU_PMU_SHAVE_DDR_WRITE = 24, /* bytes that SHAVE wrote elsewhere than to CMX */
    NPU_PMU_DMA_MEM_PENDING = 25, /* port-cycles with a transfer in progress that has a side in DDR: part of DMA_BUSY */
    NPU_PMU_DPU_MEM_PENDING = 26, /* cycles of a task, or of a FIFO head that waits for a barrier, while a DDR request of its job is out, summed over DPUs */
    NPU_PMU_SHAVE_MEM_PENDING = 27, /* the same of SHAVEs, and cycles in which they fill their instruction caches */
    NPU_PMU_DMA_MEM_STALL = 28, /* the part of DMA_MEM_PENDING beyond what the ports would need if DDR answered at once and at their rate */
    NPU_PMU_DPU_MEM_STALL = 29, /* the part of DPU_MEM_PENDING in which the FIFO head waited */
    NPU_PMU_SHAVE_MEM_STALL = 30, /* the part of SHAVE_MEM_PENDING in which FIFO head or program waited, or an instruction cache was filled */
    NPU_PMU_ENERGY_DPU = 31,    /* fJ: multiply-accumulates */
    NPU_PMU_ENERGY_SHAVE = 32,  /* fJ: lane operations */
    NPU_PMU_ENERGY_CMX = 33,    /* fJ: bytes read and written in CMX */
    NPU_PMU_ENERGY_NOC = 34,    /* fJ: bytes moved between the NPU and DDR, DDR_MOVED */
    NPU_PMU_ENERGY_DDR = 35,    /* fJ: the same bytes in DDR */
    NPU_PMU_ENERGY_STATIC = 36, /* fJ: idle power over time; the sum of 31 to 36 is the energy of the device */
    NPU_PMU_DDR_MOVED = 37,     /* bytes of the whole accesses of DDR of which those are parts that ports, instruction caches and SHAVEs asked for */
    NPU_PMU_COUNT = 38
};

/* Counters of a client of the network on chip, 64 bits, since the start. Cycles are those of the network. */
enum npu_noc_client_counter {
    NPU_NOC_BYTES_ASKED = 0,        /* that its transfers, or its traffic, are about */
    NPU_NOC_BYTES_MOVED = 1,        /* whole accesses of DDR, of which they are parts */
    NPU_NOC_STALL_CREDIT = 2,       /* cycles in which it sent nothing because the first port had no credit for it */
    NPU_NOC_STALL_WINDOW = 3,       /* because as many of its requests were outstanding as may be */
    NPU_NOC_CLIENT_COUNTER_COUNT = 4
};

/* Counters of a link, one direction, 64 bits, since the start. */
enum npu_noc_link_counter {
    NPU_NOC_LINK_FLITS = 0,         /* that it moved, one a cycle at most */
    NPU_NOC_LINK_STALL_CREDIT = 1,  /* flits that could not move in a cycle: no credit at the next port */
    NPU_NOC_LINK_STALL_QUEUE = 2,   /* the controller had no room */
    NPU_NOC_LINK_STALL_ARBITRATION = 3, /* another client had the link */
    NPU_NOC_LINK_COUNTER_COUNT = 4
};

/* Counters of a channel of the DDR controller, 64 bits, since the start. Cycles are those of the network. */
enum npu_ddrc_counter {
    NPU_DDRC_READS = 0,         /* accesses */
    NPU_DDRC_WRITES = 1,        /* accesses */
    NPU_DDRC_HITS = 2,          /* accesses to an open page */
    NPU_DDRC_MISSES = 3,        /* to a bank without one */
    NPU_DDRC_CONFLICTS = 4,     /* to a bank with another one open */
    NPU_DDRC_ACTIVATES = 5,     /* commands */
    NPU_DDRC_PRECHARGES = 6,    /* commands */
    NPU_DDRC_REFRESHES = 7,     /* commands */
    NPU_DDRC_TURNAROUNDS = 8,   /* changes between reads and writes */
    NPU_DDRC_BUSY_CYCLES = 9,   /* something to do, or data on the pins */
    NPU_DDRC_REFRESH_CYCLES = 10, /* in a refresh */
    NPU_DDRC_IDLE_CYCLES = 11,  /* the rest of all cycles */
    NPU_DDRC_COUNTER_COUNT = 12
};

/* ---- MMU tables in DRAM --------------------------------------------------------------------------- */
/* Context table: NPU_NUM_SSIDS entries of 8 bytes, the physical address of the root table, bit 0 VALID.
 * Four levels of 512 entries of 8 bytes index bits 47:39, 38:30, 29:21 and 20:12 of a 48-bit address.
 * A table entry is a physical address | TABLE | VALID; a leaf is a physical address | AF | VALID [| RO]. */
enum {
    NPU_PAGE_SHIFT = 12, NPU_PAGE_SIZE = 4096, NPU_VA_BITS = 48, NPU_NUM_SSIDS = 66,
    NPU_SSID_GLOBAL = 0, NPU_SSID_FIRST_USER = 2,      /* 1 is reserved */
    NPU_PTE_VALID = 1 << 0, NPU_PTE_TABLE = 1 << 1, NPU_PTE_SNOOP = 1 << 2 /* device accesses look into the host's caches */,
    NPU_PTE_RO = 1 << 7, NPU_PTE_AF = 1 << 10, NPU_MMU_EVTQ_DEPTH = 16
};
#define NPU_PTE_ADDR_MASK 0x0000fffffffff000
enum npu_mmu_event {
    NPU_MMU_EVT_BAD_SSID = 0x08, NPU_MMU_EVT_TRANSLATION = 0x10, NPU_MMU_EVT_ADDR_SIZE = 0x11,
    NPU_MMU_EVT_PERMISSION = 0x13, NPU_MMU_EVT_CMX_RANGE = 0x40 /* outside the tiles of the job */
};

/* ---- Address map of a job ------------------------------------------------------------------------- */
/* Engines address 48-bit device virtual addresses. The window below is CMX: tile t of the *job* starts at
 * NPU_CMX_BASE + t * NPU_CMX_TILE_STRIDE and holds cmx_workspace_bytes (hardware profile); the job slot's
 * window registers map job tiles to physical tiles. Every other address goes through the MMU. */
#define NPU_CMX_BASE        0x2e000000
#define NPU_CMX_TILE_STRIDE 0x00200000
#define NPU_CMX_END         0x30000000
/* Device virtual ranges that the driver hands out, by buffer-object flag. */
#define NPU_VA_LOW_BASE     0x80000000 /* SHAVE text and arguments: below 4 GiB (32-bit relocations) */
#define NPU_VA_LOW_END      0x100000000
#define NPU_VA_USER_BASE    0x100000000
#define NPU_VA_USER_END     0x4000000000
#define NPU_VA_GLOBAL_BASE  0x80000000 /* SSID 0: firmware, messages, job queues */
#define NPU_VA_GLOBAL_END   0xa0000000
#endif
