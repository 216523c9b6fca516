"""A captured copy reads its staging memory again at each replay.

A copy was captured into a graph with the pinned memory that happened to be its source. For the capture that memory was used once; each replay
reads it again. The host meanwhile gives it new values, for the next replay or for something else, and a replay in flight takes those.
The fix: wait for a replay before the memory changes, or give each replay memory of its own by an update of the graph.

    catalogue: B32
    link: https://github.com/microsoft/onnxruntime/pull/32121
    schedule: lazy
    report: CAPTURED-BUFFER-CHANGED at first, second
    right: 1 2 3
    wrong: 3 3 3
"""

import sys

import libnpu


def main(fixed: bool) -> None:
    """Replay a graph with three inputs."""
    with libnpu.open() as device:
        stream, memory = device.create_stream(), device.alloc(64)
        staging, results = device.alloc_host(64), device.alloc_host(192)
        with stream.capture() as capture:
            stream.copy(memory, staging)
        replay = capture.graph.instantiate()
        for turn in range(3):
            staging.array[:] = turn + 1  # <- second
            replay.launch(stream)  # <- first
            stream.copy(results[64 * turn : 64 * turn + 64], memory)
            if fixed:
                stream.synchronize()
        stream.synchronize()
        print(*results.array[::64].tolist())


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
