"""What the tests of graphs share."""

import numpy as np


def first(buffer):
    return float(buffer.read(np.float32)[0])


def fork(context, add, x, y, out_a, out_b, out):
    """Captures out = (x + y) + (y + y), the sums in two streams. Returns (graph, streams)."""
    one, two = context.create_stream(), context.create_stream()
    begin, joined = context.create_event(), context.create_event()
    with one.capture() as capture:
        begin.record(one)
        two.wait_event(begin)
        add.launch(one, x, y, out_a, 256, grid=1)
        add.launch(two, y, y, out_b, 256, grid=1)
        joined.record(two)
        one.wait_event(joined)
        add.launch(one, out_a, out_b, out, 256, grid=1)
    return capture.graph, (one, two)
