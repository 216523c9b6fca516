"""A stream waits for a record that another stream makes behind work of the first one.

Each step of a graph waits until its parameters are there, which a second stream says. That stream was told to wait for the step before it
updates parameters, by an event that is recorded behind the wait: each of the two comes behind the other, and neither ever comes.
The fix: update and say so first, then wait for the step.

    catalogue: B20
    link: https://github.com/vllm-project/vllm-ascend/pull/4233
    schedule: timed
    report: DEADLOCK at first, second, wait
    right: 6
    wrong: deadlock
"""

import sys

from npu_abi import C

import libnpu


def main(fixed: bool) -> None:
    """Run a step that waits for its parameters."""
    with libnpu.open() as device:
        steps, updates, updated = device.create_stream(), device.create_stream(), device.primary.create_notify()
        before, done = device.create_event(), device.create_event()
        parameters, result = device.alloc(64), device.alloc_host(64)
        before.record(steps)
        updated.wait(steps)  # <- first
        steps.copy(result, parameters)
        done.record(steps)
        updates.wait_event(before if fixed else done)  # <- second
        updates.fill(parameters, 6)
        updated.record(updates)
        try:
            steps.synchronize()  # <- wait
        except libnpu.NpuError as error:
            if error.result != C.NPU_ERROR_BARRIER_DEADLOCK:
                raise
            print("deadlock")
        else:
            print(int(result.array[0]))


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
