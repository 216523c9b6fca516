"""A kernel's workspace is released by the host while the kernel is still queued.

An operator asks for a workspace, enqueues its kernels and releases it at the end of the function. That was right while the function ended
with a synchronise. When it was removed for speed, the workspace went to the next operator, in another stream, and two kernels wrote one
memory.
The fix: release it in the order of the stream, or keep it until an event behind the kernels has come.

    catalogue: B27
    link: https://github.com/vllm-project/vllm-ascend/issues/13761
    schedule: seed:1
    report: XS-WAW at first, second
    report: XS-WAR at reader, second
    right: 1
    wrong: 2
"""

import sys

import libnpu


def main(fixed: bool) -> None:
    """Run two operators, each with a workspace, in two streams."""
    with libnpu.open() as device:
        one, two, done = device.create_stream(), device.create_stream(), device.create_event()
        workspaces, result = [device.alloc(256), device.alloc(256)], device.alloc_host(256)

        workspace = workspaces.pop()
        one.fill(workspace, 1)  # <- first
        one.copy(result, workspace)  # <- reader
        done.record(one)
        if not fixed:
            workspaces.append(workspace)  # released when it was enqueued, not when it has run

        other = workspaces.pop()
        two.fill(other, 2)  # <- second
        two.synchronize()
        done.synchronize()
        print(int(result.array[0]))


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
