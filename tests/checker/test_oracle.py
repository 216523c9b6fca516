"""Random programs of streams, events, copies and host accesses, against an exact oracle: reachability in the whole graph, which small
programs prove by all their legal orders. Right ones are silent, and with an edge less they are reported where that makes a race.
"""

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
    "event_sync": 1, "query": 1, "notify": 2, "free": 0.5, "free_async": 0.5, "copy_2d": 2, "pool": 0.7, "lend": 0.25,
}  # fmt: skip
IN_PLACE = ("look", "store", "function")  # of pinned memory, buffer 0
USES = ("graph", "fill", "copy", "copy_2d", "pool", "lend", "read", "write", "free", "free_async", *IN_PLACE)
PAIRS = ("graph", "pool", "lend", "notify")  # of two streams
STREAMS, BUFFERS, PARTS, PART = 3, 3, 4, 64
EVENTS = 3  # that random programs have; what makes one right has events of its own


def context_of(stream, is_split):
    """Two contexts share device memory and events: the last stream is the second one's."""
    return int(is_split and stream == STREAMS - 1)


def home_of(statement, is_split):
    """Return the context of the memory that a statement uses."""
    kind, stream = statement[:2]
    return 0 if kind in IN_PLACE else context_of(stream, is_split)


def is_meant(statement, is_split):
    """Whether a statement can be made: pinned memory is the first context's, and some things are of one context."""
    kind, stream, other, target, source = statement[:5]
    there = context_of(stream, is_split)
    if kind in PAIRS and there != context_of(other, is_split):
        return False
    return not there or kind not in USES or kind in IN_PLACE or 0 not in (target, source)


@dataclass
class Node:
    """What one statement of a program does: byte ranges (buffer, first part, end part, writes), and what it is behind. `frees`: in its
    context alone, the memory stays where another one has it.
    """

    accesses: list = field(default_factory=list)
    behind: set = field(default_factory=set)
    is_host: bool = False
    frees: bool = False
    context: int = 0


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


def oracle(statements, is_cuda, told=(), is_split=False, *, waits_work=False):
    """Return the graph of what must happen before what, by number: statement i is node i; what else is behind it in its work
    lies between i and i + 1. Under `cuda` stream 0 is the legacy default stream. `told`: (i, j) when the host function of statement i
    has told the host before statement j that it was called. `waits_work`: a wait for an event comes behind the legacy default stream as work
    does; one for what is over or was never recorded is none, so a program may not rely on it.
    """
    nodes, last, host, freed = {}, {}, set(), set()
    events = {}

    def job(index, stream, *behind, is_work=True):
        context = context_of(stream, is_split)
        among = [other for other in last if context_of(other, is_split) == context]
        others = [other for other in among if other == stream or (is_cuda and is_work and 0 in (stream, other))]
        node = nodes[index] = Node(behind={*host, *behind, *(last[other] for other in others)}, context=context)
        last[stream] = index
        return node

    def launch(index, stream, target, source, start, end, *behind):
        """One of the graph of `capture`: two branches behind the first node, and a last one behind both."""
        part = target, start, end
        job(index, stream, *behind).accesses = [(*part, True)]
        context = context_of(stream, is_split)
        nodes[index + 0.1] = Node([(source, start, end, True), (*part, False)], {*host, index}, context=context)
        job(index + 0.2, stream).accesses = [(target, 0, 1, True)]
        job(index + 0.3, stream, index + 0.1).accesses = [(*part, True), (source, start, end, False)]
        return index + 0.3

    for index, statement in enumerate(statements):
        kind, stream, other, target, source, start, end = statement
        context = home_of(statement, is_split)
        nodes[index] = Node(context=context)
        host.update(function for function, first in told if first == index)
        if not is_meant(statement, is_split) or (kind in USES and freed & {(context, target), (context, source)}):
            pass
        elif kind == "graph":
            ended = launch(index, stream, target, source, start, end)
            launch(index + 0.5, other, target, source, start, end, ended)
        elif kind == "fill":
            job(index, stream).accesses = [(target, start, end, True)]
        elif kind == "copy":
            job(index, stream).accesses = [(target, start, end, True), (source, start, end, False)]
        elif kind == "copy_2d":
            rows = [(part, part + 1) for part in range(start, PARTS, 2)]
            node = job(index, stream)
            node.accesses = [(buffer, *row, buffer == target) for row in rows for buffer in (target, source)]
        elif kind == "pool":
            made = BUFFERS + index
            job(index, stream).accesses = [(made, 0, PARTS, True)]
            job(index + 0.1, stream).accesses = [(target, start, end, True), (made, start, end, False)]
            node = job(index + 0.2, other)
            node.accesses, node.frees = [(made, 0, PARTS, True)], True
        elif kind == "lend":
            made = BUFFERS + index
            job(index, other, is_work=False).accesses = [(made, 0, PARTS, True)]  # the allocation, no command
            node = job(index + 0.1, stream)
            node.accesses = [(made, start, end, True), (source, start, end, False)]
            job(index + 0.2, stream)  # the free, which is behind the copy
        elif kind in ("read", "write", "look", "store"):
            writes = kind in ("write", "store")
            nodes[index] = Node([(target, start, end, writes)], set(host), True, context=context)
            host.add(index)
        elif kind == "function":
            node = job(index, stream)
            node.accesses, node.context = [(0, start, end, True)], context
        elif kind == "free_async":
            node = job(index, stream)
            node.accesses, node.frees = [(target, 0, PARTS, True)], True
            freed.add((context, target))
        elif kind == "free":
            if is_cuda:
                host.update(node for other, node in last.items() if context_of(other, is_split) == context)
            nodes[index] = Node([(target, 0, PARTS, True)], set(host), True, True, context)
            host.add(index)
            freed.add((context, target))
        elif kind == "record":
            job(index, stream)
            events[other] = index
        elif kind == "wait" and (waits_work or other in events):
            job(index, stream, *([events[other]] if other in events else []), is_work=waits_work)
        elif kind == "synchronize" and stream in last:
            host.add(last[stream])
        elif kind == "event_sync" and other in events:
            host.add(events[other])
        elif kind == "notify":
            job(index, stream)
            job(index + 0.5, other, index)  # that waits for it
    return nodes


def ancestors(nodes):
    """Return what must happen before each node."""
    before = {}
    for number, node in nodes.items():
        before[number] = set(node.behind).union(*(before[other] for other in node.behind))
    return before


def races(statements, is_cuda, told=(), is_split=False, *, waits_work=False):
    """Return the pairs of statements that are in conflict in no order, with the racing parts of memory."""
    nodes = oracle(statements, is_cuda, told, is_split, waits_work=waits_work)
    before = ancestors(nodes)
    found = {}
    for (one, first), (two, second) in itertools.combinations(nodes.items(), 2):
        if one in before[two] or (first.is_host and second.is_host):
            continue
        if (first.frees or second.frees) and first.context != second.context:
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
        self.statement, self.pairs, self.fine, self.told = 0, {}, 0, []

    def _next_order(self):
        self.fine += 1
        return self.statement * 1000 + self.fine % 1000

    def _report(self, finding):
        super()._report(finding)
        if finding.made is not None and finding.rule != "UNINIT":
            one, two = sorted(act.order // 1000 for act in finding.acts)
            parts = range(finding.start // PART, -(-finding.end // PART))
            self.pairs.setdefault((one, two), set()).update((finding.made.order // 1000, part) for part in parts)


def store(checker, statement, part):
    """A host function: its stores are those of the statement that enqueued it."""
    outer, checker.statement = checker.statement, statement
    checker.told.append((statement - BUFFERS, outer - BUFFERS))
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


def run(device, statements, checker, is_split=False):
    """Do what the statements say. `query` is a loop until everything has ended: as a synchronise."""
    checker.statement = 0
    contexts = [device.primary, device.create_context()] if is_split else [device.primary]
    streams = [device.default_stream if device.semantics.legacy_default_stream else device.create_stream()]
    streams += [contexts[context_of(number, is_split)].create_stream() for number in range(1, STREAMS)]
    count = max([EVENTS, *(other + 1 for _, _, other, *_ in statements)])
    events = [[device.create_event(timing=not is_split, interprocess=is_split) for _ in range(count)]]
    notifies = [context.create_notify() for context in contexts]
    graphs, buffers, bytes_ = [], [[]], np.zeros(PARTS * PART, np.uint8)
    for number in range(BUFFERS):
        checker.statement = number  # so that `made` names the buffer
        buffers[0].append(device.alloc(PARTS * PART) if number else device.alloc_host(PARTS * PART))
        buffers[0][-1].write(bytes_)
    if is_split:
        events.append([contexts[1].open_ipc_event(event.ipc_handle()) for event in events[0]])
        buffers.append([buffers[0][0]])  # which is the first context's
        for checker.statement in range(1, BUFFERS):
            buffers[1].append(contexts[1].open_ipc_memory(buffers[0][checker.statement].ipc_handle()))
    freed = set()
    for number, statement in enumerate(statements):
        kind, stream, other, target, source, start, end = statement
        checker.statement = number + BUFFERS
        low, high = start * PART, end * PART
        context = home_of(statement, is_split)
        if not is_meant(statement, is_split) or (kind in USES and freed & {(context, target), (context, source)}):
            continue
        memory = buffers[context]
        match kind:
            case "graph":
                graphs.append(capture(contexts[context], memory[target], memory[source], low, high))
                graphs[-1].launch(streams[stream])
                graphs[-1].launch(streams[other])
            case "fill":
                streams[stream].fill(memory[target][low:high], number)
            case "copy":
                streams[stream].copy(memory[target][low:high], memory[source][low:high])
            case "copy_2d":
                rows = (PARTS - start + 1) // 2
                streams[stream].copy_2d(memory[target][low:], 2 * PART, memory[source][low:], 2 * PART, PART, rows)
            case "pool":
                scratch = contexts[context].alloc_async(PARTS * PART, streams[stream])
                streams[stream].fill(scratch, number)
                streams[stream].copy(memory[target][low:high], scratch[low:high])
                scratch.free_async(streams[other])
            case "lend":
                scratch = contexts[context].alloc_async(PARTS * PART, streams[other])
                streams[stream].copy(scratch[low:high], memory[source][low:high])
                scratch.free_async(streams[stream])
            case "read":
                memory[target].read(np.uint8, high - low, low)
            case "write":
                memory[target].write(bytes_[low:high], low)
            case "record":
                events[context][other].record(streams[stream])
            case "wait":
                streams[stream].wait_event(events[context][other])
            case "synchronize":
                streams[stream].synchronize()
            case "event_sync":
                events[context][other].synchronize()
            case "query":
                device.host_delay(1)
            case "notify":
                notifies[context].record(streams[stream])
                notifies[context].wait(streams[other])
            case "look":
                buffers[0][0].array[low:high].sum()
            case "store":
                buffers[0][0].array[low:high] = number
            case "function":
                streams[stream].add_host_function(store, checker, number + BUFFERS, buffers[0][0].array[low:high])
            case "free_async":
                memory[target].free_async(streams[stream])
                freed.add((context, target))
            case "free":
                memory[target].free()
                freed.add((context, target))
    for context in contexts:
        context.synchronize()


def check(statements, is_cuda, is_split=False):
    """Run a program under the checker; return what the oracle finds when the host knows of a host function before, and when behind,
    the statement in which it was called, and waits are work, and are none; and what the checker finds.
    """
    checker = Numbering()
    observer.current = checker
    try:
        with libnpu.open("unit", semantics="cuda" if is_cuda else "ascend") as device:
            run(device, statements, checker, is_split)
            observer.current = None
    finally:
        observer.current = None
    checker.finish()
    found = {(one - BUFFERS, two - BUFFERS): parts for (one, two), parts in checker.pairs.items()}
    told = [[(i, max(i + 1, j + late)) for i, j in checker.told] for late in (0, 1)]
    least = races(statements, is_cuda, told[0], is_split, waits_work=True)
    most = races(statements, is_cuda, told[1], is_split)
    return least, most, found


def compare(statements, is_cuda, is_split=False):
    """Every pair that is found is a race, on bytes that race; and every pair that races is found, on all its bytes. Return whether any does."""
    least, most, found = check(statements, is_cuda, is_split)
    for pair, parts in found.items():
        wanted = most.get(pair)
        assert wanted is not None, (pair, [statements[i] for i in pair], statements)
        frees = any(statements[i][0] in ("free", "free_async", "pool", "lend") for i in pair)
        assert parts <= wanted or frees, (pair, statements)
    for pair, racing in least.items():
        assert racing <= found.get(pair, set()), (pair, [statements[i] for i in pair], statements)
    return bool(least)


def random_program(seed, length=14):
    return generate(random.Random(seed), length)


def repaired(statements, is_cuda, is_split=False):
    """Return a program with waits that leave nothing in no order, and where those are."""
    statements, waits = list(statements), []
    while found := races(statements, is_cuda, (), is_split):
        one, two = min(found, key=lambda pair: (pair[1], pair[0]))
        if (
            one == two
        ):  # which no wait between statements changes: the branches of a graph, memory of a pool freed in another stream
            kind, stream, other, target, source, _, end = statements[one]
            both = (stream, stream) if kind in ("pool", "lend") else (stream, other)
            statements[one] = (kind, *both, target, source, 1, max(end, 2))
            continue
        event = max([EVENTS - 1, *(other for _, _, other, *_ in statements)]) + 1
        (kind, stream, other, *_), (later, reader, *_) = statements[one], statements[two]
        record = ("record", other if kind == "graph" else stream, event, 0, 1, 0, 1)
        by_host = later in ("read", "write", "look", "store", "free")
        wait = ("event_sync" if by_host else "wait", 0 if by_host else reader, event, 0, 1, 0, 1)
        statements[two:two] = [wait]
        statements[one + 1 : one + 1] = [record]
        waits = [at + (at > one) + (at + (at > one) > two) for at in waits] + [two + 1]
    return statements, [at for at, (_, _, event, *_) in enumerate(statements) if at in waits and event >= EVENTS]


VARIANTS = pytest.mark.parametrize(
    ("is_cuda", "is_split"), [(False, False), (True, False), (False, True), (True, True)], ids=["ascend", "cuda", "ascend-2", "cuda-2"]
)  # fmt: skip


@VARIANTS
def test_random_programs_against_the_oracle(is_cuda, is_split):
    racy = [compare(random_program(seed), is_cuda, is_split) for seed in range(30)]
    assert 5 < sum(racy) < 30


@VARIANTS
def test_right_programs_are_silent_and_with_an_edge_less_they_are_not(is_cuda, is_split):
    removed = 0
    for seed in range(12):
        statements, waits = repaired(random_program(seed), is_cuda, is_split)
        assert check(statements, is_cuda, is_split)[2] == {}, seed
        if waits:
            gone = random.Random(seed).choice(waits)
            removed += compare([*statements[:gone], *statements[gone + 1 :]], is_cuda, is_split)
    assert removed > 3


def legal_orders(nodes):
    """Yield all orders in which each node comes behind what it must come behind."""
    waiting = {number: set(node.behind) for number, node in nodes.items()}

    def orders(done, left):
        if not left:
            yield tuple(done)
        for number in left:
            if waiting[number] <= set(done):
                yield from orders([*done, number], [other for other in left if other != number])

    yield from orders([], [*nodes])


@VARIANTS
def test_the_oracle_is_what_all_legal_orders_of_small_programs_say(is_cuda, is_split):
    """Two nodes are in no order exactly when there are legal orders of both kinds."""
    for seed in range(40):
        nodes = oracle(random_program(seed, 5), is_cuda, (), is_split)
        if len(nodes) > 8:
            continue
        before, seen = ancestors(nodes), set()
        for order in legal_orders(nodes):
            seen.update(itertools.combinations(order, 2))
        for one, two in itertools.combinations(nodes, 2):
            assert ((two, one) in seen) == (one not in before[two]), seed
            assert (one, two) in seen


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(60, 2000, 388))
def test_many_random_programs_against_the_oracle(first):
    for seed in range(first, first + 388):
        compare(random_program(seed), is_cuda=seed % 2 == 0, is_split=seed % 3 == 0)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, 10000, 1000))
def test_ten_thousand_right_programs_are_silent(first):
    for seed in range(first, first + 1000):
        statements, _ = repaired(random_program(seed), seed % 2 == 0, seed % 3 == 0)
        assert check(statements, seed % 2 == 0, seed % 3 == 0)[2] == {}, seed


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, 600, 100))
def test_many_right_programs_with_each_edge_less(first):
    for seed in range(first, first + 100):
        statements, waits = repaired(random_program(seed), seed % 2 == 0, seed % 3 == 0)
        for gone in waits:
            compare([*statements[:gone], *statements[gone + 1 :]], seed % 2 == 0, seed % 3 == 0)
