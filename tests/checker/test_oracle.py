"""Random programs of streams, events, copies and host accesses, against an exact oracle: reachability in the whole graph."""

import itertools
import random
from dataclasses import dataclass, field

import numpy as np
import pytest

import libnpu
from libnpu.checker.watch import Checker
from libnpu.runtime import observer

WEIGHTS = {
    "graph": 0.7, "fill": 6, "copy": 6, "read": 2, "write": 2, "look": 1, "store": 1, "function": 1, "record": 4, "wait": 4, "synchronize": 2,
    "event_sync": 1, "query": 1, "notify": 2, "free": 0.5, "free_async": 0.5,
}  # fmt: skip
IN_PLACE = ("look", "store", "function")  # of pinned memory, buffer 0
USES = ("graph", "fill", "copy", "read", "write", "free", "free_async", *IN_PLACE)
STREAMS, BUFFERS, PARTS, PART = 3, 3, 4, 64


@dataclass
class Node:
    """What one statement of a program does: byte ranges (buffer, first part, end part, writes), and what it is behind."""

    accesses: list = field(default_factory=list)
    behind: set = field(default_factory=set)
    is_host: bool = False


@dataclass
class Program:
    """Statements, and what a host programmer would say of their order."""

    statements: list
    nodes: list


def generate(chance, length):
    """Return a random program that is valid, right or not."""
    statements = []
    for _ in range(length):
        kind = chance.choices(
            [*WEIGHTS],
            [*WEIGHTS.values()],
        )[0]
        stream, other = chance.randrange(STREAMS), chance.randrange(STREAMS)
        target, source = chance.sample(range(BUFFERS), 2)
        start = chance.randrange(PARTS)
        end = chance.randrange(start + 1, PARTS + 1)
        if kind in IN_PLACE:
            target, source = 0, 0
        statements.append((kind, stream, other, target, source, start, end))
    return statements


def oracle(statements, is_cuda):
    """Return the graph of what must happen before what, by number: statement i is node i; what else is behind it in its work
    lies between i and i + 1. Under `cuda` stream 0 is the legacy default stream.
    """
    nodes, last, host, freed = {}, {}, set(), set()
    events = {}

    def job(index, stream, *behind):
        others = [other for other in last if other == stream or (is_cuda and 0 in (stream, other))]
        node = nodes[index] = Node(behind={*host, *behind, *(last[other] for other in others)})
        last[stream] = index
        return node

    def launch(index, stream, target, source, start, end, *behind):
        """One of the graph of `capture`: two branches behind the first node, and a last one behind both."""
        part = target, start, end
        job(index, stream, *behind).accesses = [(*part, True)]
        nodes[index + 0.1] = Node([(source, start, end, True), (*part, False)], {*host, index})
        job(index + 0.2, stream).accesses = [(target, 0, 1, True)]
        job(index + 0.3, stream, index + 0.1).accesses = [(*part, True), (source, start, end, False)]
        return index + 0.3

    for index, (kind, stream, other, target, source, start, end) in enumerate(statements):
        nodes[index] = Node()
        if kind in USES and freed & {target, source}:
            pass
        elif kind == "graph":
            ended = launch(index, stream, target, source, start, end)
            launch(index + 0.5, other, target, source, start, end, ended)
        elif kind == "fill":
            job(index, stream).accesses = [(target, start, end, True)]
        elif kind == "copy":
            job(index, stream).accesses = [(target, start, end, True), (source, start, end, False)]
        elif kind in ("read", "write", "look", "store"):
            nodes[index] = Node([(target, start, end, kind in ("write", "store"))], set(host), True)
            host.add(index)
        elif kind == "function":
            job(index, stream).accesses = [(0, start, end, True)]
        elif kind == "free_async":
            job(index, stream).accesses = [(target, 0, PARTS, True)]
            freed.add(target)
        elif kind == "free":
            if is_cuda:
                host.update(last.values())
            nodes[index] = Node([(target, 0, PARTS, True)], set(host), True)
            host.add(index)
            freed.add(target)
        elif kind == "record":
            job(index, stream)
            events[other] = index
        elif kind == "wait":
            job(index, stream, *([events[other]] if other in events else []))
        elif kind == "synchronize" and stream in last:
            host.add(last[stream])
        elif kind == "event_sync" and other in events:
            host.add(events[other])
        elif kind == "notify":
            job(index, stream)
            job(index + 0.5, other, index)  # that waits for it
    return nodes


def races(statements, is_cuda):
    """Return the pairs of statements that are in conflict in no order, with the racing parts of memory."""
    nodes, before = oracle(statements, is_cuda), {}
    for number, node in nodes.items():
        before[number] = set(node.behind).union(*(before[other] for other in node.behind))
    found = {}
    for (one, first), (two, second) in itertools.combinations(nodes.items(), 2):
        if one in before[two] or (first.is_host and second.is_host):
            continue
        for (buffer, low, high, writes), (other, start, end, also) in itertools.product(
            first.accesses, second.accesses
        ):
            parts = range(max(low, start), min(high, end))
            if buffer == other and (writes or also) and parts:
                found.setdefault((int(one), int(two)), set()).update((buffer, part) for part in parts)
    return found


class Numbering(Checker):
    """A checker whose acts are numbered as the statements, and that keeps every pair."""

    def __init__(self):
        super().__init__()
        self.statement, self.pairs, self.fine = 0, {}, 0

    def _next_order(self):
        self.fine += 1
        return self.statement * 1000 + self.fine % 1000

    def _report(self, finding):
        super()._report(finding)
        if finding.made is not None and finding.rule != "UNINIT":
            one, two = sorted(act.order // 1000 for act in finding.acts)
            parts = range(finding.start // PART, -(-finding.end // PART))
            self.pairs.setdefault((one, two), set()).update((finding.made.order, part) for part in parts)


def store(checker, statement, part):
    """A host function: its stores are those of the statement that enqueued it."""
    outer, checker.statement = checker.statement, statement
    part[:] = 1
    checker.statement = outer


def capture(device, target, source, low, high):
    """Return an executable graph; `launch` above is what it does."""
    one, two, forks, joins = (
        device.create_stream(),
        device.create_stream(),
        device.create_event(),
        device.create_event(),
    )
    with one.capture() as captured:
        one.fill(target[low:high], 1)
        forks.record(one)
        two.wait_event(forks)
        two.copy(source[low:high], target[low:high])
        joins.record(two)
        one.fill(target[:PART], 2)
        one.wait_event(joins)
        one.copy(target[low:high], source[low:high])
    return captured.graph.instantiate()


def run(device, statements, checker):
    """Do what the statements say. `query` is a loop until everything has ended: as a synchronise."""
    streams = [device.default_stream if device.semantics.legacy_default_stream else device.create_stream()]
    streams += [device.create_stream() for _ in range(STREAMS - 1)]
    events = [device.create_event() for _ in range(STREAMS)]
    notify = device.create_notify()
    graphs, buffers, bytes_ = [], [], np.zeros(PARTS * PART, np.uint8)
    for number in range(BUFFERS):
        checker.statement = number  # so that `made` names the buffer
        buffers.append(device.alloc(PARTS * PART) if number else device.alloc_host(PARTS * PART))
        buffers[-1].write(bytes_)
    made = {allocation.made.order: n for n, allocation in enumerate(checker.memory())}
    freed = set()
    for number, (kind, stream, other, target, source, start, end) in enumerate(statements):
        checker.statement = number + BUFFERS
        low, high = start * PART, end * PART
        if kind in USES and freed & {target, source}:
            continue
        match kind:
            case "graph":
                graphs.append(capture(device, buffers[target], buffers[source], low, high))
                graphs[-1].launch(streams[stream])
                graphs[-1].launch(streams[other])
            case "fill":
                streams[stream].fill(buffers[target][low:high], number)
            case "copy":
                streams[stream].copy(buffers[target][low:high], buffers[source][low:high])
            case "read":
                buffers[target].read(np.uint8, high - low, low)
            case "write":
                buffers[target].write(bytes_[low:high], low)
            case "record":
                events[other].record(streams[stream])
            case "wait":
                streams[stream].wait_event(events[other])
            case "synchronize":
                streams[stream].synchronize()
            case "event_sync":
                events[other].synchronize()
            case "query":
                device.host_delay(1)
            case "notify":
                notify.record(streams[stream])
                notify.wait(streams[other])
            case "look":
                buffers[0].array[low:high].sum()
            case "store":
                buffers[0].array[low:high] = number
            case "function":
                streams[stream].add_host_function(store, checker, number + BUFFERS, buffers[0].array[low:high])
            case "free_async":
                buffers[target].free_async(streams[stream])
                freed.add(target)
            case "free":
                buffers[target].free()
                freed.add(target)
    device.synchronize()
    return made


def check(seed, is_cuda, length=14):
    """Run a random program of a seed under the checker; return the statements, and what each of both found."""
    statements = generate(random.Random(seed), length)
    checker = Numbering()
    observer.current = checker
    try:
        with libnpu.open("unit", semantics="cuda" if is_cuda else "ascend") as device:
            checker.statement = 0
            made = run(device, statements, checker)
            observer.current = None
    finally:
        observer.current = None
    checker.finish()
    found = {
        (one - BUFFERS, two - BUFFERS): {(made[order], part) for order, part in parts}
        for (one, two), parts in checker.pairs.items()
    }
    return statements, races(statements, is_cuda), found


def compare(seed, is_cuda):
    """Every pair that is found is a race, on bytes that race; and every byte that races is found."""
    statements, expected, found = check(seed, is_cuda)
    for pair, parts in found.items():
        wanted = expected.get(pair)
        assert wanted is not None, (seed, pair, [statements[i] for i in pair], statements)
        frees = any(statements[i][0].startswith("free") for i in pair)
        assert parts <= wanted or frees, (seed, pair)
    racing = set().union(*expected.values()) if expected else set()
    seen = set().union(*found.values()) if found else set()
    assert racing <= seen, (seed, racing - seen, expected, statements)
    return bool(expected)


@pytest.mark.parametrize("is_cuda", [False, True], ids=["ascend", "cuda"])
def test_random_programs_against_the_oracle(is_cuda):
    racy = [compare(seed, is_cuda) for seed in range(60)]
    assert 10 < sum(racy) < 60


@pytest.mark.slow
def test_many_random_programs_against_the_oracle():
    for seed in range(60, 2000):
        compare(seed, is_cuda=seed % 2 == 0)
