"""Every wait of a blob that nothing else implies must show when it is missing: wrong bytes, or a report, under some timing.

The test reads the barriers of a compiled blob, computes which waits queue order, other waits and barrier reuse already imply,
removes each of the others from the descriptors, one at a time, and runs the edited blob under `timed` and up to 20 seeds.
"""

import copy
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from npu_abi import C
from onnx import TensorProto, helper, numpy_helper

import libnpu
from libnpu.blob import write
from libnpu.compiler import CompileOptions, compile_model

LISTS = {
    ".npu.tasks.dma0": lambda task: ("dma", 0),
    ".npu.tasks.dma1": lambda task: ("dma", 1),
    ".npu.tasks.dpu_invariant": lambda task: ("dpu", int(task["tile"])),
    ".npu.tasks.shave_invocation": lambda task: ("shave", int(task["tile"]), int(task["shave"])),
}


def model():
    rng = np.random.default_rng(7)

    def weights(name, *shape):
        scale = 1 / np.sqrt(np.prod(shape[1:]))
        return numpy_helper.from_array((rng.standard_normal(shape) * scale).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("HardSwish", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w1"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "b"], ["d"]),
        helper.make_node("Sigmoid", ["d"], ["e"]),
        helper.make_node("Conv", ["e", "w2"], ["f"]),
        helper.make_node("Mul", ["f", "b"], ["g"]),
        helper.make_node("Conv", ["g", "w3"], ["y"], pads=[1, 1, 1, 1]),
    ]
    graph = helper.make_graph(
        nodes,
        "edges",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 20, 20])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 20, 20])],
        [
            weights("w0", 32, 8, 3, 3),
            weights("w1", 32, 32, 3, 3),
            weights("w2", 32, 32, 1, 1),
            weights("w3", 8, 32, 3, 3),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def queues(image):
    """Tasks as (section, index) by queue, in the order in which the firmware hands them out."""
    found = {}
    for section, queue_of in LISTS.items():
        for i, task in enumerate(image.tasks.get(section, ())):
            found.setdefault(queue_of(task), []).append((section, i))
    return found


def users(image):
    """For each virtual barrier its producers and consumers, found by running the lists without time.

    Which virtual barrier a mask bit means depends on what is loaded on that id; in a correct blob that is the same
    under every timing, so any legal order tells.
    """
    barriers = image.tasks[".npu.barriers"]
    members = [([], []) for _ in barriers]
    loaded = {}
    for k, barrier in enumerate(barriers):
        loaded.setdefault(int(barrier["real_id"]), k)
    left = [[int(b["producer_count"]), int(b["consumer_count"])] for b in barriers]
    retired = set()

    def settle(real):
        k = loaded[real]
        if left[k] == [0, 0]:
            retired.add(k)
            loaded[real] = int(barriers["next_same_id"][k])

    waiting = queues(image)
    moved = True
    while moved:
        moved = False
        for items in waiting.values():
            if not items:
                continue
            section, i = items[0]
            task = image.tasks[section][i]
            after = int(task["sched_start_after"])
            if after != C.NPU_BARRIER_NONE and not all(k in retired for k in range(after + 1)):
                continue
            waits = [r for r in range(64) if int(task["barriers_wait_mask"]) >> r & 1]
            if any(left[loaded[r]][0] for r in waits):
                continue
            for r in waits:
                members[loaded[r]][1].append((section, i))
                left[loaded[r]][1] -= 1
                settle(r)
            for r in range(64):
                if int(task["barriers_post_mask"]) >> r & 1:
                    members[loaded[r]][0].append((section, i))
                    left[loaded[r]][0] -= 1
                    settle(r)
            items.pop(0)
            moved = True
    assert not any(waiting.values()), "the lists do not run to their end"
    return members


def implied(image, members, barrier, consumer):
    """Whether every producer of `barrier` must have ended before `consumer` starts even if it does not wait for it."""
    after = {}  # event -> events that must come before it; events: ("start" | "end" | "enter", task), ("retire", barrier)

    def order(first, then):
        after.setdefault(then, set()).add(first)

    tasks = {}
    for section in LISTS:
        previous = None
        for i, task in enumerate(image.tasks.get(section, ())):
            me = (section, i)
            tasks[me] = task
            order(("enter", me), ("start", me))
            order(("start", me), ("end", me))
            if previous is not None:
                order(("enter", previous), ("enter", me))
            previous = me
            last = int(task["sched_start_after"])
            if last != C.NPU_BARRIER_NONE:
                for k in range(last + 1):
                    order(("retire", k), ("enter", me))
    for items in queues(image).values():
        for a, b in itertools.pairwise(items):
            order(("end", a), ("start", b))
    for k, (producers, consumers) in enumerate(members):
        for p in producers:
            order(("end", p), ("retire", k))
        for c in consumers:
            if (k, c) == (barrier, consumer):
                continue
            order(("start", c), ("retire", k))
            for p in producers:
                order(("end", p), ("start", c))
    seen, stack = set(), [("start", consumer)]
    while stack:
        event = stack.pop()
        for before in after.get(event, ()):
            if before not in seen:
                seen.add(before)
                stack.append(before)
    return all(("end", p) in seen for p in members[barrier][0])


def without(image, members, barrier, consumer):
    edited = copy.deepcopy(image)
    section, i = consumer
    real = int(edited.tasks[".npu.barriers"]["real_id"][barrier])
    edited.tasks[section]["barriers_wait_mask"][i] &= ~np.uint64(1 << real)
    edited.tasks[".npu.barriers"]["consumer_count"][barrier] -= 1
    return write(edited)


def outcome(blob_bytes, inputs, seed):
    with libnpu.open() as device:
        if seed is not None:
            device.set_schedule(seed=seed)
        with device.load(blob_bytes) as blob:
            try:
                return b"".join(array.tobytes() for array in blob.run(inputs).values())
            except libnpu.NpuError as error:
                return str(error)


def check_every_wait(source, options, inputs):
    compiled = compile_model(source, options)
    image = compiled.image
    members = users(image)
    right = outcome(compiled.blob, inputs, None)
    assert all(outcome(compiled.blob, inputs, seed) == right for seed in range(5))
    edges = [(k, c) for k, (_, consumers) in enumerate(members) for c in consumers]
    skipped = [edge for edge in edges if implied(image, members, *edge)]
    checked = [edge for edge in edges if edge not in skipped]
    invisible = []
    for barrier, consumer in checked:
        blob = without(image, members, barrier, consumer)
        if not any(outcome(blob, inputs, seed) != right for seed in (None, *range(20))):
            invisible.append((barrier, members[barrier][0], consumer))
    print(f"{len(edges)} waits; implied by others: {skipped}; removed one at a time: {checked}")
    assert len(checked) > 20
    assert invisible == []
    return compiled


def test_a_wait_for_an_earlier_task_of_the_same_queue_is_implied_and_one_of_another_queue_is_not():
    tasks = {
        section: np.full(count, (C.NPU_BARRIER_NONE,), [("sched_start_after", "u4")])
        for section, count in ((".npu.tasks.dma0", 2), (".npu.tasks.dma1", 1))
    }
    first, second, other = (".npu.tasks.dma0", 0), (".npu.tasks.dma0", 1), (".npu.tasks.dma1", 0)
    image = SimpleNamespace(tasks=tasks)
    assert implied(image, [([first], [second])], 0, second)
    assert not implied(image, [([first], [other])], 0, other)
    # through another wait: other waits for second, so its wait for first is implied
    assert implied(image, [([first], [other]), ([second], [other])], 0, other)


def test_every_wait_that_nothing_implies_is_visible_when_it_is_removed():
    inputs = {"x": np.random.default_rng(3).standard_normal((1, 8, 20, 20)).astype(np.float32)}
    check_every_wait(model(), CompileOptions(tiles=1, cmx_bytes=72 << 10), inputs)


@pytest.mark.slow
def test_so_is_every_wait_of_a_blob_that_spills(skips):
    inputs = {"x": np.random.default_rng(3).standard_normal((1, 16, 20, 20)).astype(np.float32)}
    compiled = check_every_wait(skips, CompileOptions(tiles=1, cmx_bytes=52 << 10), inputs)
    assert compiled.report["spill_out_bytes"] > 0


@pytest.mark.long
@pytest.mark.timeout(600)
def test_so_is_every_wait_of_a_blob_of_many_tiles():
    inputs = {"x": np.random.default_rng(3).standard_normal((1, 8, 20, 20)).astype(np.float32)}
    check_every_wait(model(), CompileOptions(tiles=1, cmx_bytes=40 << 10, precision="fp32"), inputs)
