"""The scheduler and its barriers, on random programs: what runs out of order must compute what in order computes."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_abi import C
from npu_model.footprint import Box, overlaps
from npu_model.profile import load_profile

from libnpu.compiler.program import Access, Buffer, DdrKind, DdrTensor, DmaPayload, Engine, Ref, TileOp, TileProgram
from libnpu.compiler.schedule import (
    CmxAllocator,
    DoesNotFit,
    FeasibleMemoryScheduler,
    assign_barriers,
    byte_dependences,
    dependences,
    kept_dependences,
    reduce_dependences,
    synchronise,
    unordered_pairs,
)
from libnpu.compiler.schedule.dependences import Touch
from libnpu.compiler.schedule.synchronise import touches

PROFILE = load_profile("npu-37xx")


def access(target, size=None, offset=0):
    return Access(target, offset, target.size_bytes if size is None else size)


def op(name, engine, reads, writes, cost=1000):
    return TileOp(name, name, engine, cost, reads, writes, DmaPayload(Ref(reads[0].target), Ref(writes[0].target), 64))


def layered(layers, weight_bytes, act_bytes, costs=(2000, 3000, 1000), shave=True):
    """A chain of layers: load weights, DPU, SHAVE; every tenth result is also added ten layers later."""
    ops, ddr = [], [DdrTensor("x", act_bytes, DdrKind.INPUT)]
    current = Buffer("act0", act_bytes)
    ops.append(op("load x", Engine.DMA, [access(ddr[0])], [access(current)], costs[0]))
    kept = current
    for n in range(layers):
        weights = DdrTensor(f"w{n}", weight_bytes, DdrKind.WEIGHTS)
        ddr.append(weights)
        buffer, out, act = Buffer(f"w{n}", weight_bytes), Buffer(f"c{n}", act_bytes), Buffer(f"s{n}", act_bytes)
        ops.append(op(f"load {n}", Engine.DMA, [access(weights)], [access(buffer)], costs[0]))
        ops.append(op(f"conv {n}", Engine.DPU, [access(current), access(buffer)], [access(out)], costs[1]))
        if shave:
            reads = [access(out)] + ([access(kept)] if n % 10 == 9 else [])
            ops.append(op(f"act {n}", Engine.SHAVE, reads, [access(act)], costs[2]))
            current = act
        else:
            current = out
        if n % 10 == 9:
            kept = current
    result = DdrTensor("y", act_bytes, DdrKind.OUTPUT)
    ddr.append(result)
    ops.append(op("store", Engine.DMA, [access(current)], [access(result)], costs[0]))
    return TileProgram("chain", ops, ddr, bytearray())


@st.composite
def programs(draw):
    """Random straight-line programs over a few DDR tensors and buffers, with partial and strided accesses."""
    count = draw(st.integers(1, 40))
    rng = random.Random(draw(st.integers(0, 2**32)))
    ddr = [DdrTensor(f"d{i}", 512, DdrKind.WEIGHTS if i < 2 else DdrKind.SCRATCH) for i in range(5)]
    buffers = [Buffer(f"b{i}", rng.choice([30, 64, 100, 192, 256])) for i in range(rng.randint(1, 12))]
    written = []
    ops = []

    def some(target):
        size = target.size_bytes
        if rng.random() < 0.5:
            return Access(target, 0, size)
        if rng.random() < 0.5:
            offset = rng.randrange(size)
            return Access(target, offset, rng.randint(1, size - offset))
        width = rng.randint(1, 16)
        stride = rng.randint(width, 32)
        return Access(target, rng.randint(0, 8), width, (((size - 24) // stride or 1, stride),))

    for i in range(count):
        fresh = [b for b in buffers if b not in written]
        if not written or (fresh and rng.random() < 0.4):
            target = rng.choice(fresh)
            written.append(target)
            ops.append(op(f"load{i}", Engine.DMA, [some(rng.choice(ddr))], [access(target)], rng.randint(1, 5000)))
        elif rng.random() < 0.3:
            ops.append(
                op(
                    f"store{i}",
                    Engine.DMA,
                    [some(rng.choice(written))],
                    [some(rng.choice(ddr[2:]))],
                    rng.randint(1, 5000),
                )
            )
        else:
            target = rng.choice(buffers)
            first = target not in written
            reads = [some(b) for b in rng.sample(written, min(len(written), rng.randint(1, 2)))]
            if first:
                written.append(target)
            engine = rng.choice([Engine.DPU, Engine.SHAVE])
            ops.append(op(f"c{i}", engine, reads, [access(target) if first else some(target)], rng.randint(1, 5000)))
    return TileProgram("random", ops, ddr, bytearray())


def bytes_of(box_access, base):
    """Byte addresses of an access, in order."""
    addresses = [base + box_access.offset]
    for count, stride in box_access.dims:
        addresses = [a + i * stride for a in addresses for i in range(count)]
    return [a + k for a in addresses for k in range(box_access.width)]


def execute(op_, memory, place):
    """Each written byte becomes a value that depends on the operation, its place and everything read."""
    seen = []
    for a in op_.reads:
        space, base = place(a.target)
        seen += [memory.get((space, x), 0) for x in bytes_of(a, base)]
    copy = op_.name.startswith(("spill", "load"))
    out = {}
    for a in op_.writes:
        space, base = place(a.target)
        for k, x in enumerate(bytes_of(a, base)):
            out[space, x] = seen[k % len(seen)] if copy else (hash((op_.name, k, tuple(seen))) & 0xFFFF)
    return out


def fresh_memory(program):
    return {(t, x): t.offset + 31 * x + len(t.name) for t in program.ddr for x in range(t.size_bytes)}


def in_order(program):
    memory = fresh_memory(program)
    for one in program.ops:
        memory.update(execute(one, memory, lambda target: (target, 0)))
    return {k: v for k, v in memory.items() if isinstance(k[0], DdrTensor)}


def on_device(program, schedule, plan, rng):
    """Run queues, barriers and `start_after` with random durations: reads at the start, writes at the end."""
    memory = fresh_memory(program)
    queues = {}
    for i, s in enumerate(schedule.ops):
        queues.setdefault(s.queue, []).append(i)
    heads = dict.fromkeys(queues, 0)
    loaded, retired = {}, set()
    for k, b in enumerate(plan.barriers):
        if b.real_id not in loaded:
            loaded[b.real_id] = [k, len(b.producers), len(b.consumers)]
    time, running = 0, []
    total = 0
    while total < len(schedule.ops):
        started = True
        while started:
            started = False
            for queue, items in queues.items():
                if heads[queue] >= len(items) or any(r[2] == queue for r in running):
                    continue
                i = items[heads[queue]]
                after = plan.start_after[i]
                if after != C.NPU_BARRIER_NONE and any(k not in retired for k in range(after + 1)):
                    continue
                waits = [b for b in range(64) if plan.wait_masks[i] >> b & 1]
                if any(loaded[b][1] for b in waits):
                    continue
                for b in waits:
                    loaded[b][2] -= 1
                    settle(loaded, retired, plan, b)
                s = schedule.ops[i]

                def place(target, s=s):
                    return ("cmx", s.addresses[target]) if isinstance(target, Buffer) else (target, 0)

                running.append((time + rng.choice([1, 10, 1000, 100000]), i, queue, execute(s.op, memory, place)))
                heads[queue] += 1
                started = True
        assert running, "deadlock"
        running.sort(key=lambda r: (r[0], r[1]))
        time, i, _, out = running.pop(0)
        memory.update(out)
        total += 1
        for b in range(64):
            if plan.post_masks[i] >> b & 1:
                loaded[b][1] -= 1
                assert loaded[b][1] >= 0
                settle(loaded, retired, plan, b)
    homes = set(program.ddr)
    return {k: v for k, v in memory.items() if k[0] in homes}


def settle(loaded, retired, plan, b):
    k, producers, consumers = loaded[b]
    assert consumers >= 0
    if not producers and not consumers:
        retired.add(k)
        following = plan.barriers[k].next_same_id
        if following != C.NPU_BARRIER_NONE:
            assert following > k
            loaded[b] = [following, len(plan.barriers[following].producers), len(plan.barriers[following].consumers)]


def used_while_leaving(schedule):
    """Return the operations that use a buffer while it is spilled."""
    return [
        s.op.name
        for out in schedule.ops
        for s in schedule.ops
        if out.kind == "spill_out"
        and s is not out
        and out.addresses.keys() & s.addresses.keys()
        and s.start_ps < out.end_ps
        and out.start_ps < s.end_ps
    ]


@settings(max_examples=60)
@given(programs(), st.integers(768, 2048), st.integers(0, 8), st.integers(8, 64), st.randoms(use_true_random=False))
def test_any_timing_of_the_schedule_computes_what_program_order_computes(program, cmx, limit, ids, rng):
    schedule = FeasibleMemoryScheduler(program, PROFILE, cmx, limit).run()
    assert used_while_leaving(schedule) == []
    plan = synchronise(schedule, ids)
    assert unordered_pairs(schedule, plan) == []
    assert on_device(program, schedule, plan, rng) == in_order(program)


@settings(max_examples=10)
@given(st.integers(400, 900), st.integers(0, 40))
def test_a_chain_that_must_spill_still_computes_the_same(cmx, limit):
    program = layered(24, 90, 100)
    schedule = FeasibleMemoryScheduler(program, PROFILE, cmx, limit).run()
    plan = synchronise(schedule, 16)
    assert unordered_pairs(schedule, plan) == []
    assert on_device(program, schedule, plan, random.Random(cmx)) == in_order(program)
    assert schedule.peak_cmx_bytes <= cmx
    assert schedule.spill_in_bytes >= schedule.spill_out_bytes
    assert used_while_leaving(schedule) == []


def test_small_cmx_spills_and_large_cmx_does_not():
    program = layered(24, 900, 1000)
    assert FeasibleMemoryScheduler(program, PROFILE, 64 << 10).run().spill_out_bytes == 0
    assert FeasibleMemoryScheduler(program, PROFILE, 3200, 1).run().spill_out_bytes > 0


def test_a_larger_level_limit_is_never_slower():
    program = layered(30, 4096, 2048, costs=(2_500_000, 3_000_000, 1_000_000))
    spans = [FeasibleMemoryScheduler(program, PROFILE, 64 << 10, limit).run().makespan_ps for limit in range(7)]
    assert spans == sorted(spans, reverse=True)
    assert spans[0] > spans[3]


def test_an_operation_that_cannot_fit_is_named_with_its_bytes():
    program = layered(2, 3000, 1000)
    with pytest.raises(DoesNotFit, match=r"conv 0 needs 5056 bytes .*there are 4096"):
        FeasibleMemoryScheduler(program, PROFILE, 4096).run()


@given(st.lists(st.tuples(st.integers(1, 700), st.booleans(), st.integers(0, 10)), max_size=60))
def test_allocations_never_overlap_and_gaps_come_back(requests):
    allocator = CmxAllocator(8192, 64)
    live = {}
    for n, (size, top, frees) in enumerate(requests):
        address = allocator.alloc(size, top)
        if address is not None:
            assert address % 64 == 0 and address + size <= 8192
            assert all(address + size <= a or a + s <= address for a, s in live.values())
            live[n] = (address, size)
        for key in list(live)[:frees]:
            allocator.free(*live.pop(key))
    for a, s in live.values():
        allocator.free(a, s)
    assert allocator.free_bytes == 8192 and allocator.alloc(8192) == 0


@settings(max_examples=30)
@given(programs(), st.integers(768, 2048))
def test_looking_at_bytes_only_where_no_order_is_known_keeps_the_same_orders(program, cmx):
    ops = FeasibleMemoryScheduler(program, PROFILE, cmx).run().ops
    queues = sorted({one.queue for one in ops})
    queue_of = [queues.index(one.queue) for one in ops]
    accesses = [touches(one) for one in ops]
    assert kept_dependences(accesses, queue_of) == reduce_dependences(byte_dependences(accesses), queue_of)


@given(st.integers(0, 2**32), st.integers(1, 4))
@settings(max_examples=12)
def test_accesses_that_are_forgotten_change_no_order(seed, queues):
    """Ranges of one space on a few queues, one of which ends early; forgetting is tried after every other access."""
    generator = random.Random(seed)
    accesses, queue_of = [], []
    for number in range(120):
        start = generator.randrange(0, 4000, 8)
        box = Box(start, generator.randint(1, 400), ())
        accesses.append([Touch("tensor", box, generator.random() < 0.5)])
        queue_of.append(generator.randrange(queues + 1 if number < 20 else queues))
    expected = reduce_dependences(byte_dependences(accesses), queue_of)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dependences, "_SOME", 2)
        assert kept_dependences(accesses, queue_of) == expected


@given(st.integers(0, 2**32), st.sampled_from([64, 96, 4096]), st.integers(90, 110))
@settings(max_examples=12)
def test_orders_of_boxes_at_one_distance_are_those_of_their_bytes(seed, pitch, count):
    """Many boxes of one pitch, with whole rows, ranges across rows and boxes of other strides between them."""
    generator = random.Random(seed)
    accesses = []
    for _ in range(count):
        column = generator.randrange(0, pitch, 8)
        rows, start = generator.randint(1, 9), generator.randrange(60) * pitch
        box = generator.choice((
            *[Box(start + column, min(pitch - column, generator.randint(1, pitch // 2)), ((rows, pitch),))] * 12,
            Box(start + column, generator.randint(1, 3 * pitch), ()),
            Box(start, pitch // 2, ((2, 4 * pitch), (2, pitch))),
            Box(start + column, 8, ((3, 24),)),
        ))  # fmt: skip
        accesses.append([Touch("tensor", box, generator.random() < 0.6)])
    ordered = []
    for number, before in enumerate(byte_dependences(accesses)):
        ordered.append(before.union(*(ordered[other] for other in before)))
        for other in range(number):
            (one,), (two,) = accesses[other], accesses[number]
            conflict = (one.write or two.write) and overlaps(one.box, two.box)
            assert not (conflict and other not in ordered[number])
            assert not (other in before and not conflict)


def test_reduction_drops_what_queue_order_and_other_orders_imply():
    # queue 0: a, c; queue 1: b, d.  d after a (implied by b after a and queue order), d after c, c after b.
    assert reduce_dependences([set(), {0}, {1}, {0, 2}], [0, 1, 0, 1]) == [[], [0], [1], [2]]


def test_consumers_of_the_same_producers_share_a_barrier():
    plan = assign_barriers([[], [], [0, 1], [0, 1]], [0, 0, 10, 10], [5, 6, 12, 12], 4)
    assert [(b.producers, b.consumers) for b in plan.barriers] == [((0, 1), (2, 3))]
    assert plan.wait_masks == [0, 0, 1, 1] and plan.post_masks == [1, 1, 0, 0]


def test_ids_are_reused_after_retirement_and_start_after_names_it():
    # two independent pairs, one after the other, one id
    plan = assign_barriers([[], [0], [], [2]], [0, 10, 20, 30], [5, 15, 25, 35], 1)
    assert [b.real_id for b in plan.barriers] == [0, 0]
    assert plan.barriers[0].next_same_id == 1
    assert plan.start_after == [C.NPU_BARRIER_NONE, C.NPU_BARRIER_NONE, 0, 0]
