"""A bench for device and firmware tests: page tables, boot, one queue and hand-made descriptors, without the driver."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from npu_abi import C, dtype, ffi, new, pack, sizeof, view
from npu_device import Device

SSID = 2
GLOBAL_VA = C.NPU_VA_GLOBAL_BASE
IPC_TX, IPC_RX, JOBQ = GLOBAL_VA, GLOBAL_VA + 0x4000, GLOBAL_VA + 0x8000
IPC_SLOTS = 32
NONE = C.NPU_BARRIER_NONE
CMX = C.NPU_CMX_BASE
ICB_ALL = C.NPU_ICB_HOST_IPC_FIFO | C.NPU_ICB_MMU_EVENT | C.NPU_ICB_CORE_FAULT


class Rig:
    """A device with firmware booted and one queue (doorbell 1, SSID 2)."""

    def __init__(self, profile="unit", *, boot=True, register=True, **options):
        self.device = Device(profile, **options)
        self.bus, self.dram = self.device.bus, self.device.dram
        self.messages = []
        self.tables = {}
        self.next_va = {SSID: C.NPU_VA_LOW_BASE, SSID + 1: C.NPU_VA_LOW_BASE}
        self.places = {}
        self.context_pa = self._page()
        self.device.connect_irq(self._interrupt)
        self.job_count = 0
        self.tail = 0
        if boot:
            self.boot()
            if register:
                self.register_db(1, JOBQ)

    # ---- page tables ----

    def _page(self):
        pa = self.dram.alloc(4096)
        self.dram.view(pa, 4096)[:] = bytes(4096)
        return pa

    def _u64(self, pa, index, value=None):
        cell = self.dram.view(pa + 8 * index, 8).cast("Q")
        if value is not None:
            cell[0] = value
        return cell[0]

    def map(self, ssid, va, pa, nbytes, flags=0):
        """Map pages in the device's tables."""
        if not self._u64(self.context_pa, ssid) & 1:
            self._u64(self.context_pa, ssid, self._page() | C.NPU_PTE_VALID)
        for page in range(0, nbytes, 4096):
            table = self._u64(self.context_pa, ssid) & C.NPU_PTE_ADDR_MASK
            for shift in (39, 30, 21):
                index = (va + page) >> shift & 511
                if not self._u64(table, index) & 1:
                    self._u64(table, index, self._page() | C.NPU_PTE_TABLE | C.NPU_PTE_VALID)
                table = self._u64(table, index) & C.NPU_PTE_ADDR_MASK
            leaf = (pa + page) | C.NPU_PTE_AF | C.NPU_PTE_VALID | flags
            self._u64(table, (va + page) >> 12 & 511, leaf)

    def unmap(self, ssid, va):
        """Take the page at `va` out of the tables, then drop its translations, as a driver does."""
        table = self._u64(self.context_pa, ssid) & C.NPU_PTE_ADDR_MASK
        for shift in (39, 30, 21):
            table = self._u64(table, va >> shift & 511) & C.NPU_PTE_ADDR_MASK
        self._u64(table, va >> 12 & 511, 0)
        self.bus.write32(C.NPU_REG_MMU_TLBI_SSID, ssid)

    def alloc(self, data, ssid=SSID, va=None, flags=0):
        """Place bytes (or that many poison bytes) in a context; return the device virtual address."""
        nbytes = data if isinstance(data, int) else len(data)
        size = max(-(-nbytes // 4096) * 4096, 4096)
        pa = self.dram.alloc(size)
        if va is None:
            va = self.next_va[ssid]
            self.next_va[ssid] = va + size + 4096  # a hole behind each
        self.map(ssid, va, pa, size, flags)
        if not isinstance(data, int):
            self.dram.view(pa, size)[:nbytes] = bytes(data)
        self.places[ssid, va] = pa, size
        return va

    def memory(self, va, ssid=SSID):
        """Return the allocation that starts at `va`, as uint8."""
        pa, size = self.places[ssid, va]
        return np.frombuffer(self.dram.view(pa, size), np.uint8)

    # ---- boot and messages ----

    def boot(self, image=None, **params):
        for va in (IPC_TX, IPC_RX):
            self.alloc(bytes(IPC_SLOTS * sizeof("npu_ipc_slot")), 0, va)
        self.alloc(bytes(4096), 0, JOBQ)
        image = image or (Path(find_spec("npu_firmware").origin).parent / "npu_fw.bin").read_bytes()
        image_pa = self.dram.alloc(len(image))
        self.dram.view(image_pa, len(image))[:] = image
        fields = {
            "magic": C.NPU_BOOT_MAGIC, "tile_config": (1 << self.device.profile.tiles) - 1, "ipc_tx_va": IPC_TX, "ipc_rx_va": IPC_RX,
            "ipc_tx_slots": IPC_SLOTS, "ipc_rx_slots": IPC_SLOTS,
        } | params  # fmt: skip
        boot_params = new("npu_boot_params", **fields)
        params_pa = self.dram.alloc(4096)
        self.dram.view(params_pa, 4096)[:] = pack(boot_params)
        write = self.bus.write32
        write(C.NPU_REG_MMU_CDTAB_LO, self.context_pa & 0xFFFFFFFF)
        write(C.NPU_REG_MMU_CDTAB_HI, self.context_pa >> 32)
        write(C.NPU_REG_MMU_CR0, 1)
        write(C.NPU_REG_ICB_ENABLE, ICB_ALL)
        write(C.NPU_REG_GLOBAL_INT_MASK, 0)
        write(C.NPU_REG_BOOT_PARAMS_LO, params_pa & 0xFFFFFFFF)
        write(C.NPU_REG_BOOT_PARAMS_HI, params_pa >> 32)
        write(C.NPU_REG_BOOT_ENTRY_HI, image_pa >> 32)
        write(C.NPU_REG_BOOT_ENTRY_LO, image_pa & 0xFFFFFFFF | 1)
        self.run()
        return self.bus.read32(C.NPU_REG_BOOT_STATUS)

    def run(self):
        """Run until nothing is left to happen."""
        while (time := self.device.next_event_ps()) is not None:
            self.device.run_until_interrupt(time + 10**12)

    def _interrupt(self):
        while va := self.bus.read32(C.NPU_REG_HOST_IPC_FIFO):
            data = self.memory(IPC_RX, 0)
            offset = va - IPC_RX
            message = copied("npu_jsm_msg", data[offset + 64 : offset + 192].tobytes())
            data[offset + 6] = C.NPU_IPC_FREE
            self.messages.append(message)
        self.bus.write32(C.NPU_REG_ICB_CLEAR, ICB_ALL)

    def request(self, type_, payload=None, request_id=7):
        """Send a message and return the reply."""
        message = new("npu_jsm_msg", type=type_, request_id=request_id)
        if payload is not None:
            data = pack(payload)
            message.payload[0 : len(data)] = list(data)
        header = new("npu_ipc_hdr", data_size=128, channel=C.NPU_IPC_CHAN_GEN_CMD, status=C.NPU_IPC_ALLOCATED)
        self.memory(IPC_TX, 0)[:192] = np.frombuffer(pack(header) + pack(message), np.uint8)
        self.bus.write32(C.NPU_REG_CPU_IPC_FIFO, IPC_TX)
        count = len(self.messages)
        self.run()
        return next((m for m in self.messages[count:] if m.request_id == request_id), None)

    def payload(self, message, struct):
        return copied(struct, bytes(message.payload))

    def register_db(self, doorbell, jobq_va, ssid=SSID, band=0):
        return self.request(
            C.NPU_JSM_REGISTER_DB,
            new(
                "npu_jsm_register_db",
                db_idx=doorbell,
                host_ssid=ssid,
                jobq_va=jobq_va,
                jobq_size=4096,
                priority_band=band,
            ),
        )

    def abort(self):
        """Abort the jobs of doorbell 1, and register it again."""
        assert self.request(C.NPU_JSM_UNREGISTER_DB, new("npu_jsm_unregister_db", db_idx=1)).result == C.NPU_JSM_OK
        self.register_db(1, JOBQ)

    # ---- jobs ----

    def command_buffer(self, commands, **fields):
        """Place a command buffer of cffi command structures; return its address."""
        body = b"".join(pack(command) for command in commands)
        header = new(
            "npu_cmd_buffer_header", cmd_offset=64, cmd_buffer_size=64 + len(body), api_version=C.NPU_CMD_API_VERSION
        )
        for name, value in fields.items():
            setattr(header, name, value)
        return self.alloc(pack(header) + body)

    def enqueue(self, buffer_va, jobq=JOBQ, ssid=SSID, doorbell=1, ring=True, preempt=(0, 0)):
        """Put a job in a ring and ring its doorbell."""
        data = self.memory(jobq, 0)
        header = view("npu_job_queue_header", data[:64])
        self.job_count += 1
        entry = new("npu_job_queue_entry", batch_buf_va=buffer_va, job_id=ssid << 8 | self.job_count & 0xFF)
        entry.preempt_va, entry.preempt_bytes = preempt
        at = 64 + header.tail * 64
        data[at : at + 64] = np.frombuffer(pack(entry), np.uint8)
        header.tail = (header.tail + 1) % C.NPU_JOBQ_SLOTS
        if ring:
            self.bus.write32(C.NPU_REG_DOORBELL_BASE + C.NPU_DOORBELL_STRIDE * doorbell, 1)
        return entry.job_id

    def done(self):
        """Return struct npu_jsm_job_done of all jobs so far."""
        return [self.payload(m, "npu_jsm_job_done") for m in self.messages if m.type == C.NPU_JSM_JOB_DONE]

    def execute(self, buffer_va):
        """Run one job to its end; return its JOB_DONE."""
        self.enqueue(buffer_va)
        count = len(self.done())
        self.run()
        done = self.done()
        assert len(done) == count + 1
        return done[-1]

    def inference(self, blob):
        """Place an inference; return the address of a command buffer that executes it."""
        return self.command_buffer([infer(blob.place(self))])


def copied(struct, data):
    """Return a copy of a structure."""
    found = new(struct)
    ffi.memmove(found, data[: sizeof(struct)], sizeof(struct))
    return found


def infer(va):
    command = new("npu_cmd_inference", mapped_inference_va=va)
    command.h.type, command.h.size = C.NPU_CMD_INFERENCE_EXECUTE, sizeof("npu_cmd_inference")
    return command


class Blob:
    """Task lists under construction. Barriers are virtual and map one to one to physical ids."""

    def __init__(self, tiles=1):
        self.tiles = tiles
        self.dma = [[], []]
        self.invariants, self.variants, self.ranges, self.invocations = [], [], [], []
        self.barriers = []

    def barrier(self, producers=1, consumers=1, real_id=None):
        index = len(self.barriers)
        self.barriers.append({
            "next_same_id": NONE, "producer_count": producers, "consumer_count": consumers,
            "real_id": index if real_id is None else real_id,
        })  # fmt: skip
        return index

    @staticmethod
    def _sync(waits, posts, start_after, task_id):
        return {
            "barriers_wait_mask": sum(1 << b for b in waits), "barriers_post_mask": sum(1 << b for b in posts),
            "sched_start_after": start_after, "task_id": task_id,
        }  # fmt: skip

    def add_dma(self, src, dst, length, waits=(), posts=(), port=0, start_after=NONE, task_id=0, **fields):
        transaction = {
            "src": src,
            "dst": dst,
            "length": length,
            "num_planes": 1,
            "src_width": length,
            "dst_width": length,
        } | fields
        record = {f"transaction_{name}": value for name, value in transaction.items()}
        self.dma[port].append(record | self._sync(waits, posts, start_after, task_id))

    def add_matmul(self, act, weights, out, m, k, n, waits=(), posts=(), start_after=NONE, task_id=0, tile=0, **fields):
        """out[m, n] = act[m, k] @ weights[n, k].T in fp16."""
        record = {
            "act_addr": act, "wt_addr": weights, "out_addr": out, "in_x": m, "in_y": 1, "in_z": k, "out_x": m, "out_y": 1, "out_z": n,
            "act_stride_x": 2 * k, "act_stride_y": 2 * k * m, "out_stride_x": 2 * n, "out_stride_y": 2 * n * m, "groups": 1, "kernel_x": 1,
            "kernel_y": 1, "stride_x": 1, "stride_y": 1, "dilation_x": 1, "dilation_y": 1, "op": C.NPU_DPU_MATMUL,
            "act_dtype": C.NPU_DT_F16, "wt_dtype": C.NPU_DT_F16, "out_dtype": C.NPU_DT_F16, "ppe_scale": 1.0,
            "clamp_low": -np.inf, "clamp_high": np.inf, "variant_first": len(self.variants), "variant_count": 1, "tile": tile,
        }  # fmt: skip
        self.variants.append({"size_x": m, "size_y": 1, "size_z": n, "invariant_index": len(self.invariants)})
        self.invariants.append(record | fields | self._sync(waits, posts, start_after, task_id))

    def add_range(self, text_va, code_bytes):
        self.ranges.append({"text_va": text_va, "code_bytes": code_bytes})
        return len(self.ranges) - 1

    def add_shave(
        self, range_index, args_va=0, args_bytes=0, shave=0, waits=(), posts=(), start_after=NONE, task_id=0, tile=0
    ):
        record = {
            "range_index": range_index,
            "args_va": args_va,
            "args_bytes": args_bytes,
            "tile": tile,
            "shave": shave,
        }
        self.invocations.append(record | self._sync(waits, posts, start_after, task_id))

    def records(self):
        lists = [
            ("npu_dma_task", self.dma[0]), ("npu_dma_task", self.dma[1]), ("npu_dpu_invariant", self.invariants),
            ("npu_dpu_variant", self.variants), ("npu_shave_range", self.ranges),
            ("npu_shave_invocation", self.invocations), ("npu_barrier_config", self.barriers),
        ]  # fmt: skip
        found = []
        for struct, rows in lists:
            array = np.zeros(len(rows), dtype(struct))
            for i, row in enumerate(rows):
                for name, value in row.items():
                    array[name][i] = value
            found.append(array)
        return found

    def place(self, rig, **header):
        """Place all lists and the entry structure in the rig's memory; return the entry's address."""
        refs = []
        for array in self.records():
            raw = np.zeros(len(array) * array.dtype.itemsize, np.uint8).view(array.dtype)
            for name in array.dtype.names:
                raw[name] = array[name]
            refs.append({"va": rig.alloc(raw.tobytes()) if len(array) else 0, "count": len(array)})
        entry = new(
            "npu_mapped_inference", api_version=C.NPU_MI_API_VERSION, tile_count=self.tiles,
            barrier_count=max([b["real_id"] + 1 for b in self.barriers], default=0),
            dma_tasks=refs[:2], invariants=refs[2], variants=refs[3], shave_ranges=refs[4], shave_invocations=refs[5],
            barrier_configs=refs[6],
        )  # fmt: skip
        for name, value in header.items():
            setattr(entry, name, value)
        return rig.alloc(pack(entry))
