"""The proof against an oracle that tries every order: small random blobs, right ones and ones with an edge too few."""

import importlib.util
import random
from pathlib import Path

import pytest
from npu_abi import C
from npu_model import shave_isa

from libnpu.blob import Relocation, prove, verify

_spec = importlib.util.spec_from_file_location("oracle", Path(__file__).with_name("oracle.py"))
oracle = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(oracle)

CMX = C.NPU_CMX_BASE
NONE = C.NPU_BARRIER_NONE
CELL, CELLS = 4, 6  # bytes that are read and written at once; how many there are
ENGINES = ("dma0", "dma1", "shave0", "shave1")
FORM = {"start-after", "barrier-chain", "barrier-id"}  # rules that a blob may break and still run by luck
COPY = shave_isa.assemble(
    "ld.i64 r2, r1, 0\nld.i64 r3, r1, 8\nvld.i32 v0, r2, r0, r0, 0\nvst.i32 v0, r3, r0, r0, 0\nhalt\n"
)


def draw(rng):
    """Return random tasks in one order in which they can run, and barriers that agree with it; sometimes with an edge less."""
    count = rng.randint(2, 6)
    engines = [rng.randrange(len(ENGINES)) for _ in range(count)]
    users = []  # of each virtual barrier: id, producers, consumers
    latest = {}  # id -> the last task that uses it
    for _ in range(rng.randint(0, 4)):
        physical, cut = rng.randrange(2), rng.randint(1, count)
        low = latest.get(physical, -1) + 1
        if low < cut:
            producers = {i for i in range(low, cut) if rng.random() < 0.5} or {rng.randrange(low, cut)}
            consumers = {i for i in range(cut, count) if rng.random() < 0.5}
            users.append((physical, producers, consumers))
            latest[physical] = max(producers | consumers)
    if users and rng.random() < 0.5:
        rng.choice([ends for user in users for ends in user[1:]]).discard(rng.randrange(count))
    users = [user for user in users if user[1]]
    start_after = [-1] * count
    previous = {}
    for virtual, (physical, producers, consumers) in enumerate(users):
        for task in producers | consumers:
            start_after[task] = max(start_after[task], previous.get(physical, -1))
        previous[physical] = virtual
    if rng.random() < 0.2 and users:
        start_after[rng.randrange(count)] = rng.randrange(len(users))
    tasks = []
    for i, engine in enumerate(engines):
        waits, posts = ({u[0] for u in users if i in u[end]} for end in (2, 1))
        source = rng.randrange(-2, CELLS)  # below 0: constants
        tasks.append(oracle.Task(engine, waits, posts, start_after[i], {source} - {-1, -2}, {rng.randrange(CELLS)}))
    return tasks, [oracle.Barrier(physical, len(p), len(c)) for physical, p, c in users]


def blob_of(image, tasks, barriers, build_records, build_dma):
    """Make `image` of tasks; return the section and index of each."""
    rows = {"dma0": [], "dma1": [], "shave": []}
    image.relocations, image.text, arguments = [Relocation(".npu.tasks.shave_range", 0, ".text.shave", 0)], COPY, b""
    places = []
    for task in tasks:
        name = ENGINES[task.engine]
        part = rows[name if name.startswith("dma") else "shave"]
        section = ".npu.tasks." + (name if name.startswith("dma") else "shave_invocation")
        places.append(f"{section}[{len(part)}]")
        source, target = (min(cells, default=-1) for cells in (task.reads, task.writes))
        wait, post = (sum(1 << i for i in ids) for ids in (task.waits, task.posts))
        after = task.start_after if task.start_after >= 0 else NONE
        if name.startswith("dma"):
            if source < 0:
                image.relocations.append(Relocation(section, 128 * len(part), ".data.weights", 0))
            src = CMX + CELL * source if source >= 0 else 0
            part.append(build_dma(src, CMX + CELL * target, CELL, wait, post, start_after=after))
            continue
        if source < 0:
            image.relocations.append(Relocation(".data.shave_args", len(arguments), ".data.weights", 0))
        image.relocations.append(Relocation(section, 64 * len(part) + 4, ".data.shave_args", len(arguments), 4))
        arguments += (CMX + CELL * source if source >= 0 else 0).to_bytes(8, "little")
        arguments += (CMX + CELL * target).to_bytes(8, "little")
        part.append(
            {"args_bytes": 16, "shave": int(name[-1]), "barriers_wait_mask": wait, "barriers_post_mask": post}
            | {"sched_start_after": after}
        )
    image.shave_args = arguments
    configs = [
        {"real_id": b.id, "producer_count": b.producers, "consumer_count": b.consumers, "next_same_id": NONE}
        for b in barriers
    ]
    for index, config in enumerate(configs):
        same = [i for i in range(index + 1, len(configs)) if configs[i]["real_id"] == config["real_id"]]
        config["next_same_id"] = same[0] if same else NONE
    sections = {f".npu.tasks.{port}": rows[port] for port in ("dma0", "dma1")}
    sections |= {".npu.tasks.shave_invocation": rows["shave"], ".npu.barriers": configs}
    image.tasks = {name: build_records(name, *found) for name, found in sections.items() if found}
    if rows["shave"]:
        image.tasks[".npu.tasks.shave_range"] = build_records(".npu.tasks.shave_range", {"code_bytes": len(COPY)})
    else:
        image.relocations.pop(0)
    image.outputs = []
    return places


def in_lists(tasks):
    """Return tasks as INFERENCE hands them out: those of all SHAVEs are one list, where who may not start yet holds up the rest."""
    latest, found = {}, []
    for task in tasks:
        name = ENGINES[task.engine].rstrip("01") if ENGINES[task.engine].startswith("shave") else task.engine
        latest[name] = max(task.start_after, latest.get(name, -1))
        found.append(task._replace(start_after=latest[name]))
    return found


def first_uses(tasks, order):
    """Return the SHAVE tasks that read what nobody has written. DMA copies it, and then nobody has written the copy."""
    written, found = set(), set()
    for number in order:
        task = tasks[number]
        missing = task.reads - written
        if missing and ENGINES[task.engine].startswith("dma"):
            written -= task.writes
            continue
        if missing:
            found.add(number)
        written |= task.writes
    return found


def check(rng, image, build_records, build_dma):
    """Compare one blob. Returns what it was: form, stuck, racy or right."""
    tasks, barriers = draw(rng)
    places = blob_of(image, tasks, barriers, build_records, build_dma)
    names = {place: number for number, place in enumerate(places)}
    broken = {problem.rule for problem in verify(image)}
    if broken & FORM:
        return "form"
    stuck = False
    try:
        pairs, order = oracle.explore(tasks, barriers)
        oracle.explore(in_lists(tasks), barriers)
    except oracle.Stuck:
        stuck = True
    assert stuck == bool(broken - {"barrier-left"}), (tasks, barriers, broken)
    if broken:
        return "stuck" if stuck else "left"
    shared = {
        (a, b): (tasks[a].writes & (tasks[b].writes | tasks[b].reads)) | (tasks[a].reads & tasks[b].writes)
        for a, b in pairs
    }
    racy = {pair: cells for pair, cells in shared.items() if cells}
    problems = prove(image)
    found = {tuple(sorted((names[p.where], names[p.other]))) for p in problems if p.rule == "missing-barrier"}
    assert found <= racy.keys(), (tasks, barriers, found, racy)
    assert set().union(*(racy[pair] for pair in found)) == set().union(*racy.values()), (tasks, barriers)
    if racy:
        return "racy"
    unread = {names[p.where] for p in problems if p.rule == "read-before-write"}
    assert unread == first_uses(tasks, order), (tasks, barriers)
    return "right"


def compare(make, build_records, build_dma, seeds):
    kinds = {}
    for seed in seeds:
        kind = check(random.Random(seed), make(), build_records, build_dma)
        kinds[kind] = kinds.get(kind, 0) + 1
    return kinds


def test_the_proof_finds_what_trying_every_order_finds(make, build_records, build_dma):
    """Neither a race too many nor one too few, by bytes; nor a wait that has no end."""
    kinds = compare(make, build_records, build_dma, range(150))
    assert min(kinds.get(kind, 0) for kind in ("racy", "right")) >= 10, kinds


@pytest.mark.slow
def test_the_proof_finds_what_trying_every_order_finds_in_thousands_of_blobs(make, build_records, build_dma):
    kinds = compare(make, build_records, build_dma, range(1000, 6000))
    assert min(kinds.get(kind, 0) for kind in ("racy", "right", "stuck")) >= 50, kinds


def test_the_oracle_knows_simple_blobs():
    one, other = (oracle.Task(engine, set(), set(), -1, set(), set()) for engine in (0, 1))
    assert oracle.explore([one, one], []) == (set(), [0, 1])
    assert oracle.explore([one, other], [])[0] == {(0, 1)}
    post, wait = one._replace(posts={0}), other._replace(waits={0})
    assert oracle.explore([post, wait], [oracle.Barrier(0, 1, 1)])[0] == set()
    assert oracle.explore([post, other._replace(start_after=0)], [oracle.Barrier(0, 1, 0)])[0] == set()
    with pytest.raises(oracle.Stuck):
        oracle.explore([post, wait], [oracle.Barrier(0, 2, 1)])
