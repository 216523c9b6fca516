"""A job fails, and the program looks at other things.

An asynchronous operation reports its failure to whoever waits for it next. A loop that only polls flags of its own and closes its streams
is never told: it hands out old results for hours, or the error shows at an unrelated call that is then blamed.
The fix: wait for the stream or ask it, look at the error, and begin anew.

    catalogue: B44
    link: https://github.com/NVIDIA/nvbench/issues/88
    schedule: timed
    report: LOST-ASYNC-ERROR at job
    right: failed
    wrong: 1
"""

import sys

import libnpu


def refuse() -> None:
    """Be work that fails."""
    raise ValueError("the input is no image")


def main(fixed: bool) -> None:
    """Decode in a host function, and print the result or that there is none."""
    with libnpu.open() as device:
        stream, result = device.create_stream(), device.to_device(bytes([1] * 64))
        stream.add_host_function(refuse)  # <- job
        failure = None
        if fixed:
            try:
                stream.synchronize()
            except libnpu.NpuError as error:
                failure = error
        stream.close()
        print("failed" if failure else int(result.read()[0]))


if __name__ == "__main__":
    main("fixed" in sys.argv[1:])
