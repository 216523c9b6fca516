"""Capture a sequence once, launch it often: the host submits it as a whole.

    python samples/python/graph_replay.py

While a stream is captured nothing runs; what is enqueued becomes a node of a graph. A launch of the executable graph does all
of it, reads memory as it is then, and costs the host one submit for each branch. Another stream joins the capture by an event
and becomes a branch.
"""

from __future__ import annotations

import numpy as np

import libnpu

COUNT, PAIRS = 4096, 10


def main() -> None:
    with libnpu.open() as device, device.alloc_host(4 * COUNT) as x:
        context, add = device.primary, device.kernel("add")
        stream, side = device.create_stream(), device.create_stream()
        fork, join = device.create_event(), device.create_event()
        sums, result = [device.alloc(x.size) for _ in range(2)], device.alloc(x.size)

        def work() -> None:
            """PAIRS times x in each of two streams, then the sum of both: result = 2 * PAIRS * x."""
            fork.record(stream)
            side.wait_event(fork)
            for branch, total in zip((stream, side), sums, strict=True):
                branch.fill(total, 0)
            for _ in range(PAIRS):
                for branch, total in zip((stream, side), sums, strict=True):
                    add.launch(branch, total, x, total, COUNT)
            join.record(side)
            stream.wait_event(join)
            add.launch(stream, *sums, result, COUNT)

        def timed(enqueue: object, value: float) -> tuple[float, float]:
            """Set x, enqueue, wait and check. Returns the host's time for that, and for all of it, in us."""
            x.array.view(np.float32)[:] = value
            begin = device.now_ps
            enqueue()  # type: ignore[operator]
            enqueued = device.now_ps
            stream.synchronize()
            done = device.now_ps
            if not (result.read(np.float32) == 2 * PAIRS * value).all():
                raise SystemExit(f"this is not so: the result is {2 * PAIRS} x")
            return (enqueued - begin) / 1e6, (done - begin) / 1e6

        one_by_one = timed(work, 1.0)
        with stream.capture() as capture:
            work()
        graph = capture.graph
        with graph.instantiate() as executable:
            context.profiler.start()
            replay = [timed(lambda: executable.launch(stream), value) for value in (1.0, 2.0, 3.0)][-1]
            context.profiler.stop()
        print(
            f"{len(graph.nodes)} nodes, one by one: the host enqueues for {one_by_one[0]:.3f} us; done after {one_by_one[1]:.3f} us"
        )
        print(
            f"{len(graph.nodes)} nodes as a graph:  the host enqueues for {replay[0]:.3f} us; done after {replay[1]:.3f} us"
        )
        print(libnpu.timeline(context), end="")
    if not replay[0] < one_by_one[0] / 5:
        raise SystemExit("this is not so: one submit for each branch is cheaper than one for each operation")
    if not replay[1] < one_by_one[1]:
        raise SystemExit("this is not so: the graph is done earlier")


if __name__ == "__main__":
    main()
