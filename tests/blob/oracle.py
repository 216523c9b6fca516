"""What a device may do with a small blob, found by trying everything. Shares no code with the proof.

Tasks are (engine, waits, posts, start_after) with physical ids, in list order by engine; barriers are (id, producers, consumers).
A task may start when the one before it on its engine has ended, the barriers loaded on the ids that it waits for are ready, and
every barrier up to its start_after has retired. Every state that can be reached is visited.
"""

from collections import namedtuple

Task = namedtuple("Task", "engine waits posts start_after reads writes")  # reads, writes: sets of bytes
Barrier = namedtuple("Barrier", "id producers consumers")
WAITING, RUNNING, ENDED = range(3)


class Stuck(Exception):
    """A state in which nothing can happen before all tasks have ended, or in which a count goes below zero."""


def explore(tasks, barriers):
    """Return the pairs (a, b), a < b, of which neither has always ended when the other starts, and one legal order. Raises Stuck."""
    before = [[False] * len(tasks) for _ in tasks]  # [a][b]: b has been seen to start while a had not ended
    first = {}
    for index, barrier in enumerate(barriers):
        first.setdefault(barrier.id, index)
    start = (
        (WAITING,) * len(tasks),
        tuple((b.producers, b.consumers) for b in barriers),
        tuple(sorted(first.items())),
        (False,) * len(barriers),
    )
    seen, todo = {start}, [start]
    while todo:
        state = todo.pop()
        following = [*_steps(tasks, barriers, state)]
        if not following and any(s != ENDED for s in state[0]):
            raise Stuck(state)
        for task, after in following:
            if after[0][task] == RUNNING:
                for other, status in enumerate(after[0]):
                    before[other][task] |= status != ENDED
            if after not in seen:
                seen.add(after)
                todo.append(after)
    count = len(tasks)
    pairs = {(a, b) for b in range(count) for a in range(b) if before[a][b] and before[b][a]}
    return pairs, sorted(range(count), key=lambda b: sum(not before[a][b] for a in range(count) if a != b))


def _steps(tasks, barriers, state):
    status, counts, loaded, retired = state
    current = dict(loaded)
    for number, task in enumerate(tasks):
        if status[number] == RUNNING:
            yield number, _change(barriers, state, number, ENDED, task.posts, 0)
        elif status[number] == WAITING:
            earlier = all(status[i] == ENDED for i in range(number) if tasks[i].engine == task.engine)
            ready = all(i in current and counts[current[i]][0] == 0 for i in task.waits)
            if earlier and ready and all(retired[: task.start_after + 1]):
                yield number, _change(barriers, state, number, RUNNING, task.waits, 1)


def _change(barriers, state, number, becomes, ids, which):
    status, counts, loaded, retired = state
    status, counts, current, retired = list(status), [*map(list, counts)], dict(loaded), list(retired)
    status[number] = becomes
    for physical in ids:
        virtual = current.get(physical)
        if virtual is None or counts[virtual][which] == 0:
            raise Stuck(f"task {number} finds nothing on id {physical}")
        counts[virtual][which] -= 1
        while virtual is not None and counts[virtual] == [0, 0]:
            retired[virtual] = True
            del current[physical]
            virtual = next((v for v in range(virtual + 1, len(barriers)) if barriers[v].id == physical), None)
            if virtual is not None:
                current[physical] = virtual
    return tuple(status), tuple(map(tuple, counts)), tuple(sorted(current.items())), tuple(retired)
