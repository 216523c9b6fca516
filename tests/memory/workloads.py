"""Small memory systems and what clients ask of them, at random, for hypothesis; and how both models run it."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import strategies as st
from npu_model.memory import load_memory
from npu_model.memory_cycles import Background, CycleMemory

from tests.memory.reference import ReferenceMemory

DONE = 10**7  # ps: more than these workloads take, unless background traffic is too heavy
CHANNEL = ("reads", "writes", "hits", "misses", "conflicts", "activates", "precharges", "refreshes", "turnarounds",
           "busy_cycles", "refresh_cycles", "idle_cycles", "data_ticks")  # fmt: skip
CLIENT = (
    "bytes_asked",
    "bytes_moved",
    "accesses_issued",
    "accesses_done",
    "stall_credit",
    "stall_window",
    "stall_data",
)
LINK = ("flits", "stall_credit", "stall_queue", "stall_arbitration")


def changed(system, dram=None, noc=None, clients=None):
    """A memory system with fields replaced; `clients` by name, or one dict for all."""
    replace = msgspec.structs.replace
    by_name = clients or {}
    return replace(
        system,
        dram=replace(system.dram, **dram or {}),
        noc=replace(system.noc, **noc or {}),
        clients=[replace(client, **by_name.get(client.name, {})) for client in system.clients],
    )


@st.composite
def systems(draw):
    """Small ones, so that every queue, port and window fills up."""
    few = st.integers(1, 4)

    def pick(*values):
        return draw(st.sampled_from(values))

    def client():
        return {
            "keep_flits": draw(few),
            "request_accesses": pick(1, 2, 5, 16),
            "requests": draw(few),
            "priority": pick(0, 0, 3),
            "latency_ns": pick(0.0, 99.9),
        }

    return changed(
        load_memory("edge-soc"),
        {
            "channels": draw(few),
            "banks": pick(1, 2, 3, 8),
            "page_bytes": pick(256, 2048),
            "chained_bursts": pick(1, 2, 4),
            "interleave_bytes": pick(128, 256, 1024),
            "bank_xor": draw(st.booleans()),
            "trefi_ns": pick(0.0, 900.5, 3900.0),
            "trfc_ns": pick(0.0, 280.0, 280.0),
            "queue_depth": pick(1, 2, 8),
            "age_limit_cycles": pick(1, 30, 1000),
        },
        {
            "clock_hz": pick(1_600_000_000, 975_000_000),
            "flit_bytes": pick(16, 32, 48, 64),
            "hop_cycles": draw(few),
            "credit_return_cycles": draw(few),
            "credits": pick(1, 2, 7, 16),
            "duplex": draw(st.booleans()),
        },
        {name: client() for name in ("npu_dma", "npu_code", "cpu")},
    )


def sides():
    run = st.tuples(st.integers(0, 1 << 14), st.integers(1, 1500))
    return st.lists(run, max_size=4)


def submissions(cancels):
    """(client, not before, reads, writes, pace, what happens to it and when)."""
    times = st.integers(0, 400_000)
    ends = st.sampled_from(["", "", "cancel", "pause"]) if cancels else st.just("")
    submission = st.tuples(st.integers(0, 1), times, sides(), sides(), st.integers(0, 10**6), ends, times)
    return st.lists(submission.filter(lambda s: s[2] or s[3]), min_size=1, max_size=5)


def backgrounds():
    """None, or traffic of the CPU."""
    return st.none() | st.builds(
        Background,
        client=st.just("cpu"),
        bytes_per_second=st.integers(10**8, 40 * 10**9),
        burst_bytes=st.sampled_from([32, 256, 300]),
        write_share=st.sampled_from([0.0, 0.3, 1.0]),
        span_bytes=st.sampled_from([1024, 1 << 16]),
        seed=st.integers(0, 2**64 - 1),
    )


def changes():
    """(ps, client or traffic, priority): a client gets another priority, or traffic of any client begins or ends."""
    traffic = st.builds(
        Background,
        client=st.sampled_from(["npu_dma", "npu_code", "cpu"]),
        bytes_per_second=st.sampled_from([0, 10**9, 30 * 10**9]),
        burst_bytes=st.sampled_from([64, 500]),
        write_share=st.sampled_from([0.0, 0.5]),
        address=st.integers(0, 1 << 14),
        seed=st.integers(0, 2**64 - 1),
    )
    return st.lists(st.tuples(st.integers(0, 800_000), st.integers(0, 2) | traffic, st.integers(0, 7)), max_size=4)


def script(submissions, changes):
    """Calls in the order of their times: (ps, what, index). What is paused goes on 300 ns later."""
    calls = [(at, "change", index) for index, (at, *_) in enumerate(changes)]
    for index, (_, at, _, _, _, end, after) in enumerate(submissions):
        calls.append((at // 2, "submit", index))  # ahead of its time
        if end:
            calls.append((at + after, end, index))
        if end == "pause":
            calls.append((at + after + 300_000, "resume", index))
    return sorted(calls, key=lambda call: call[0])


def as_runs(side):
    return np.array(side, np.int64).reshape(-1, 2)


def run_compiled(system, submissions, background, until_ps=DONE, changes=()):
    """Return ((index, ps) of each end in order, all counters as plain data, the memory)."""
    memory = CycleMemory(system)
    if background is not None:
        memory.set_background(background)
    numbers, ends = {}, []

    def advance(until):
        while (end := memory.advance(until)) is not None:
            index = numbers.pop(end[0])
            ends.append((index, end[1]))

    for at, what, index in script(submissions, changes):
        advance(at)
        if what == "change":
            _, which, priority = changes[index]
            if isinstance(which, Background):
                memory.set_background(which)
            else:
                memory.set_priority(which, priority)
            continue
        client, begin, reads, writes, pace, _, _ = submissions[index]
        number = next((n for n, i in numbers.items() if i == index), None)
        if what == "submit":
            numbers[memory.submit(client, begin, as_runs(reads), as_runs(writes), pace)] = index
        elif number is None:
            continue
        elif what == "cancel":
            memory.cancel(number)
            del numbers[number]
        elif what == "pause":
            memory.pause(number)
        else:
            memory.resume(number, at)
    advance(until_ps)
    return ends, compiled_counters(memory), memory


def compiled_counters(memory):
    c, system = memory.counters, memory.system
    ports = {}
    for direction in range(2):
        for number, client in enumerate(system.clients):
            for hop in range(len(client.route)):
                port = c.ports[(direction * 8 + number) * 8 + hop]
                ports[direction, number, hop] = (port.occupancy, port.in_use, port.most)
    return {
        "cycles": c.cycles,
        "channels": [{name: getattr(c.channels[i], name) for name in CHANNEL} for i in range(system.dram.channels)],
        "clients": [{name: getattr(c.clients[i], name) for name in CLIENT} for i in range(len(system.clients))],
        "links": [{name: getattr(c.links[i], name) for name in LINK} for i in range(len(memory.links))],
        "ports": ports,
    }


def run_reference(system, submissions, background, until_ps, changes=()):
    """The same with the reference."""
    memory = ReferenceMemory(system)

    def set_background(b):
        memory.set_background(
            system.client(b.client), b.bytes_per_second, b.burst_bytes, b.write_share, b.address, b.span_bytes, b.seed
        )

    if background is not None:
        set_background(background)
    transfers, ends = {}, []

    def advance(until):
        while (end := memory.advance(until)) is not None:
            transfer, tick = end
            ends.append((transfer.name, -(-tick * 10**12 // memory.hz)))
            transfers.pop(transfer.name)

    for at, what, index in script(submissions, changes):
        advance(at)
        if what == "change":
            _, which, priority = changes[index]
            if isinstance(which, Background):
                set_background(which)
            else:
                memory.priority[which] = priority
            continue
        client, begin, reads, writes, pace, _, _ = submissions[index]
        if what == "submit":
            transfers[index] = memory.submit(index, client, begin, reads, writes, pace)
        elif index not in transfers:
            continue
        elif what == "cancel":
            memory.cancel(transfers.pop(index))
        elif what == "pause":
            memory.pause(transfers[index])
        else:
            memory.resume(transfers[index], at)
    advance(until_ps)
    return ends, {
        "cycles": memory.now,
        "channels": [{name: ch.count[name] for name in CHANNEL} for ch in memory.channels],
        "clients": [{name: count[name] for name in CLIENT} for count in memory.count],
        "links": [{name: memory.link_count[link][name] for name in LINK} for link in memory.order],
        "ports": {key: (port.occupancy, port.in_use, port.most) for key, port in memory.ports.items()},
    }
