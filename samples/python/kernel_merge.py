"""Many small kernels against one: what a launch costs, and how to pay it once.

    python samples/python/kernel_merge.py

Thirty-two steps on a small vector, three ways: a launch for each, all of them in one command list, and one kernel that does
all of them. The list saves submits, the merged kernel saves loads of instructions and passes over the data as well. The last
lines show when loading the instructions takes longer than executing them: for much code of which little is executed.
"""

from __future__ import annotations

import numpy as np
from npu_abi import C

import libnpu
from libnpu.blob import KernelParam, KernelSource, kernel_library

STEPS, UNROLLED, COUNT = 32, 16, 64
SHOWN = 5  # lines at each end of a timeline

HEAD = """
    ldm r6, r1, 0, 3          # r6 = memory, r7 = count, r8 = steps
    li r9, 1
    li r10, 4                 # bytes of an element
    setvl r9, r7
    vld.f32 v0, r6, r0, r10, 0
"""
TAIL = """
done:
    vst.f32 v0, r6, r0, r10, 0
    halt
"""


def step(number: int) -> str:
    """One step in UNROLLED parts: x = x * 0.5 + number, again and again."""
    part = "    vmul.f32.s v0, v0, f1\n    vadd.f32.s v0, v0, f2\n"
    leave = f"    li r11, {number + 1}\n    beq r8, r11, done\n"
    return f"    fli f1, 0.5\n    fli f2, {number}.0\n" + part * UNROLLED + leave


def library() -> bytes:
    """The blob of the kernels step0 ... and of `merged`."""
    params = (
        KernelParam("memory", int(C.NPU_ARG_BUFFER), int(C.NPU_ARG_INOUT), int(C.NPU_DT_F32)),
        KernelParam("count", int(C.NPU_ARG_INT), int(C.NPU_ARG_IN), int(C.NPU_DT_I64)),
        KernelParam("steps", int(C.NPU_ARG_INT), int(C.NPU_ARG_IN), int(C.NPU_DT_I64)),
    )
    texts = {f"step{n}": HEAD + step(n) + TAIL for n in range(STEPS)}
    texts["merged"] = HEAD + "".join(map(step, range(STEPS))) + TAIL
    return kernel_library("steps", {name: KernelSource(text, params, max_grid=1) for name, text in texts.items()})


def expected() -> float:
    """What the steps make of 1, in fp32."""
    x = np.float32(1)
    for number in range(STEPS):
        for _ in range(UNROLLED):
            x = x * np.float32(0.5) + np.float32(number)
    return float(x)


def run(way: str) -> tuple[int, int, int, float, list[str]]:
    """Run the steps in one way on a new device. Returns submits, loads of instructions, their bytes, the time in us, and the
    lines of the timeline.
    """
    with libnpu.open(trace=True) as device:
        steps, memory, stream = device.load(library()), device.alloc(4 * COUNT), device.create_stream()
        memory.write(np.ones(COUNT, np.float32))
        device.trace()
        device.primary.profiler.start()
        before, begin_ps = device.counters(), device.now_ps
        if way == "merged":
            steps["merged"].launch(stream, memory, COUNT, STEPS)
        elif way == "launches":
            for n in range(STEPS):
                steps[f"step{n}"].launch(stream, memory, COUNT, STEPS)
        else:
            with device.primary.create_command_list() as commands:
                for n in range(STEPS):
                    commands.append(steps[f"step{n}"], memory, COUNT, STEPS)
                commands.close()
                commands.submit(stream)
        stream.synchronize()
        total_us = (device.now_ps - begin_ps) / 1e6
        device.primary.profiler.stop()
        timeline = libnpu.timeline(device.primary).splitlines()
        count = {name: value - before[name] for name, value in device.counters().items()}
        if not (memory.read(np.float32) == expected()).all():
            raise SystemExit("this is not so: every way computes the same")
        loads = int((device.trace()["kind"] == int(C.NPU_TRACE_CODE_LOAD)).sum())
    return count["DOORBELLS"], loads, count["CODE_LOAD"], total_us, timeline


def main() -> None:
    print(f"{STEPS} steps on {COUNT} numbers     submits  loads  code loaded      time")
    found = {way: run(way) for way in ("launches", "command list", "merged")}
    for way, (submits, loads, loaded, total_us, _) in found.items():
        print(f"{way:24} {submits:7} {loads:6} {loaded:10} B {total_us:8.3f} us")
    for way, (*_, timeline) in found.items():
        more = len(timeline) - 2 * SHOWN
        shown = timeline if more < 0 else [*timeline[:SHOWN], f"    ... {more} lines more ...", *timeline[-SHOWN:]]
        print(f"\n{way}", *shown, sep="\n")
    if [submits for submits, *_ in found.values()] != [STEPS, 1, 1]:
        raise SystemExit(f"this is not so: {STEPS} submits become one")
    if [loads for _, loads, *_ in found.values()] != [STEPS, STEPS, 1]:
        raise SystemExit(f"this is not so: {STEPS} loads become one in the merged kernel")
    if not found["merged"][3] < found["command list"][3] < found["launches"][3]:
        raise SystemExit("this is not so: each way is faster than the one before")

    with libnpu.open() as device:
        merged, memory = device.load(library())["merged"], device.to_device(np.ones(16384, np.float32))
        print(f"\nmerged has {merged.code_bytes} bytes of code      load   execute")
        for steps, count in ((1, COUNT), (STEPS, COUNT), (STEPS, 256 * COUNT)):
            device.alloc(4096).free()  # empties the instruction caches
            job = merged.launch(None, memory, count, steps)
            job.wait()
            load_ps, execute_ps = job.steps.load_ps, job.steps.execute_ps
            print(f"{steps:2} steps on {count:5} numbers        {load_ps / 1e6:8.3f}  {execute_ps / 1e6:8.3f} us")
            if (load_ps > execute_ps) != (steps == 1):
                raise SystemExit("this is not so: the load takes longest when little is executed, and only then")


if __name__ == "__main__":
    main()
