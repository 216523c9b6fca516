"""Four layers on the whiteboard device: how many buffers a pipeline needs until its slowest stage alone sets the pace.

A layer is a copy into CMX (2 units), a matmul (3) and a vector instruction (1). With one buffer between two stages, the stage
before has to wait until the one behind it has read the buffer; with two (ping-pong) it fills one while the other is in use.
Nothing here says when a task runs: the task lists name barriers, and the engines' queues do the rest.

    python samples/python/pipeline.py [--layers N] [--stages DMA,DPU,SHAVE]
"""

import argparse
from collections.abc import Sequence

import numpy as np

import libnpu
from libnpu.blob import assemble, write

UNIT_PS = 10**6  # profile "unit": 1024 bytes, MACs or lanes take a microsecond, and nothing else takes time
CMX = 0x2E000000
INPUTS, OUTPUTS = CMX, CMX + 0x8000  # two buffers each
CASES = (
    ("one after the other", 1, 1, True),
    ("one input buffer, two output buffers", 1, 2, False),
    ("two input buffers, one output buffer", 2, 1, False),
    ("two of each: ping-pong", 2, 2, False),
)


def pipeline(layers: int, stages: Sequence[int], inputs: int, outputs: int, serial: bool = False) -> str:
    """Return the blob of a pipeline in text form; `inputs` and `outputs` are numbers of buffers, `stages` units of DMA, DPU, SHAVE.

    Barriers, one each per layer: 0 loaded (copy -> matmul), 1 computed (matmul -> vector), 2 read (matmul -> a later copy:
    the input buffer is free), 3 drained (vector -> a later matmul: the output buffer is free).
    """
    dma, dpu, shave = stages
    k = 4 * dpu  # 16 x k x 16 MACs are `dpu` units
    ahead = 1 if serial else outputs
    producers: list[str] = []
    number: dict[tuple[str, int], int] = {}

    def bits(*barriers: tuple[str, int]) -> str:
        return hex(sum(1 << number[b] for b in barriers if b in number))

    for layer in range(layers):
        kinds = ["loaded", "computed"]
        kinds += ["read"] if layer + inputs < layers and not serial else []
        kinds += ["drained"] if layer + ahead < layers else []
        for kind in kinds:
            number[kind, layer] = len(number)
            producers.append(
                f"  {number[kind, layer]}: next_same_id=none producer_count=1 consumer_count=1 real_id={number[kind, layer]}"
            )
    copies, invariants, variants, invocations = [], [], [], []
    for n in range(layers):
        act, out = INPUTS + n % inputs * 0x2000, OUTPUTS + n % outputs * 0x400
        free = ("drained", n - 1) if serial else ("read", n - inputs)
        copies.append(
            f'  {n}: transaction_src=@"in:x" transaction_dst={act:#x} transaction_length={1024 * dma} transaction_num_planes=1 '
            f"transaction_src_width={1024 * dma} transaction_dst_width={1024 * dma} sched_start_after=none task_id={3 * n} "
            f"barriers_wait_mask={bits(free)} barriers_post_mask={bits(('loaded', n))}"
        )
        waits = bits(("loaded", n)) if serial else bits(("loaded", n), ("drained", n - outputs))
        invariants.append(
            f"  {n}: act_addr={act:#x} wt_addr={act + 32 * k:#x} out_addr={out:#x} op=2 groups=1 in_x=16 in_y=1 in_z={k} "
            f"out_x=16 out_y=1 out_z=16 act_stride_x={2 * k} act_stride_y={32 * k} out_stride_x=32 out_stride_y=512 "
            f"kernel_x=1 kernel_y=1 stride_x=1 stride_y=1 dilation_x=1 dilation_y=1 ppe_scale=1.0 clamp_low=-inf clamp_high=inf "
            f"variant_first={n} variant_count=1 sched_start_after=none task_id={3 * n + 1} "
            f"barriers_wait_mask={waits} barriers_post_mask={bits(('computed', n), ('read', n))}"
        )
        variants.append(f"  {n}: size_x=16 size_y=1 size_z=16 invariant_index={n}")
        invocations.append(
            f"  {n}: sched_start_after=none task_id={3 * n + 2} "
            f"barriers_wait_mask={bits(('computed', n))} barriers_post_mask={bits(('drained', n))}"
        )
    return "\n".join(
        [
            'blob "pipeline" abi=1.0',
            'profile "unit"',
            f"resources tiles=1 cmx_bytes=65536 barriers={len(number)} scratch_bytes=0 macs={1024 * dpu * layers}",
            f'input "x" u8 [{1024 * dma}]',
            "section .npu.tasks.dma0",
            *copies,
            "section .npu.tasks.dpu_invariant",
            *invariants,
            "section .npu.tasks.dpu_variant",
            *variants,
            "section .npu.tasks.shave_range",
            "  0: text_va=@.text.shave code_bytes=80",
            "section .npu.tasks.shave_invocation",
            *invocations,
            "section .npu.barriers",
            *producers,
            "section .text.shave shave",
            f"li r2, {shave}",
            "li r3, 1024",
            "setvl r2, r3",
            "viota.i32 v0",
            "halt",
            "end",
        ]
    )


def run(text: str) -> tuple[int, dict[str, list[tuple[int, int]]], str]:
    """Run a pipeline for time only. Returns its length and, by engine, (start, end) of every layer, in units; and a timeline."""
    with libnpu.open("unit", compute=False, trace=True) as device:
        blob = device.load(write(assemble(text)))
        source = device.alloc(blob.inputs[0].size_bytes)
        with device.create_stream() as stream:
            device.primary.profiler.start()
            job = stream.launch(blob, {"x": source}, {})
            stream.synchronize()
            device.primary.profiler.stop()
        timeline = libnpu.timeline(device.primary)
        records = device.trace()
    spans: dict[str, list[tuple[int, int]]] = {}
    for code, engine in ((1, "DMA"), (2, "DPU"), (3, "SHAVE")):  # enum npu_engine
        mine = records[records["engine"] == code]
        times = [mine[mine["kind"] == kind]["time_ps"].astype(np.int64) - job.start_ps for kind in (2, 3)]  # START, END
        spans[engine] = [(int(a) // UNIT_PS, int(b) // UNIT_PS) for a, b in zip(*times, strict=True)]
    return (job.end_ps - job.start_ps) // UNIT_PS, spans, timeline


def chart(length: int, spans: dict[str, list[tuple[int, int]]]) -> list[str]:
    """Return a line per engine, a column per unit of time: the number of the layer that runs, or a dot."""
    lines = []
    for engine, layers in spans.items():
        row = ["."] * length
        for number, (start, end) in enumerate(layers):
            row[start:end] = str(number) * (end - start)
        lines.append(f"  {engine:5} {''.join(row)}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4, choices=range(1, 9))  # 4 barriers each, 32 ids
    parser.add_argument("--stages", default="2,3,1", metavar="DMA,DPU,SHAVE")
    options = parser.parse_args()
    stages = [int(units) for units in options.stages.split(",")]
    for title, inputs, outputs, serial in CASES:
        length, spans, timeline = run(pipeline(options.layers, stages, inputs, outputs, serial))
        print(f"{title}: {length} units")
        print("\n".join(chart(length, spans)))
    print(f"\nthe last one, host and stream:\n{timeline}", end="")


if __name__ == "__main__":
    main()
