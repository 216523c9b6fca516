"""The threads of the host as others have to know them: who takes part, what it does, and what it waits for."""

from __future__ import annotations

import os
import threading
import weakref
from enum import Enum, auto
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from libnpu.runtime.job import Job
    from libnpu.syscalls import Machine, Node

TASKS = Path("/proc/self/task")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class State(Enum):
    """What a participant does, as far as others have to know."""

    RUNNING = auto()  # in the program, or in a call that waits for its turn
    EXPECTED = auto()  # a member of a team whose thread has not entered yet
    BLOCKED = auto()  # in a wait for the device
    SUSPENDED = auto()  # said that it will be silent
    ASIDE = auto()  # was silent too long


ACTIVE = (State.RUNNING, State.EXPECTED)


class Target:
    """A job that somebody waits for, by its command buffer. `done_ps`: when the host learns of its end. `job`: what it is
    in the runtime, when it may be that the driver does not have it yet.
    """

    __slots__ = ("done_ps", "handle", "job", "node", "status", "taken")

    def __init__(self, node: Node, handle: int, job: Job | None = None) -> None:
        self.node = node
        self.handle = handle
        self.job = job
        self.done_ps: int | None = None
        self.status = 0  # enum npu_job_status, once it is done
        self.taken = False  # another thread took its end from the driver, or its command buffer is gone


class Wait:
    """What a blocked participant waits for: the first of `targets`, or the deadline.

    `patient`: it is none of the program's calls, so it is never told of a deadlock. `for_functions`: instead of all that, until no
    host function runs.
    """

    __slots__ = ("deadline_ps", "for_functions", "patient", "since_s", "targets", "woken")

    def __init__(
        self, targets: list[Target], deadline_ps: int, *, patient: bool = False, for_functions: bool = False
    ) -> None:
        self.targets = targets
        self.deadline_ps = deadline_ps
        self.patient = patient
        self.for_functions = for_functions
        self.woken = False
        self.since_s: float | None = None  # wall time since when nothing is left to happen


class Participant:
    """A thread. `depth` counts the calls that it is in; `function`: it runs a host function; `forbidden`: why it may not
    call now, "" while it may.
    """

    __slots__ = (
        "arrived", "awaited_since", "company", "condition", "depth", "drifted", "final", "forbidden", "function", "ident", "in_team",
        "machine", "moves", "native_id", "number", "raced", "seen_cpu_s", "seen_s", "silent_s", "sleeps", "state", "thread", "wait", "waits_for",
    )  # fmt: skip

    def __init__(self, number: int, state: State, condition: threading.Condition) -> None:
        self.number = number
        self.state = state
        self.condition = condition
        self.sleeps = False  # on `condition`
        self.ident = 0
        self.native_id = 0
        self.thread: threading.Thread | None = None
        self.depth = 0
        self.machine: Machine | None = None  # whose turn its outermost call has
        self.arrived = False  # it is about to take the lock
        self.awaited_since: float | None = None  # wall time since when others wait for it
        self.silent_s = 0.0  # how long it has been silent since then: asleep, or at work of its own
        self.seen_s = 0.0  # wall time of the last look at it
        self.seen_cpu_s = 0.0  # what it had computed by then
        self.raced: Participant | None = None  # turned up while this one ran
        self.function = False
        self.forbidden = ""
        self.in_team = False
        self.final: weakref.WeakKeyDictionary[Machine, int] = weakref.WeakKeyDictionary()  # where it was when removed
        self.drifted: weakref.WeakSet[Machine] = weakref.WeakSet()  # went on while it was blocked on another one
        self.moves: dict[Machine, int] = {}  # where it has come to since its last turn, other than by turns
        self.wait: Wait | None = None
        self.company: list[Participant] = []  # who ran when it became silent
        self.waits_for: Participant | None = None  # in its turn: who is behind it

    def bind(self) -> None:
        """Be the calling thread."""
        self.ident = get_ident()
        self.native_id = threading.get_native_id()
        thread = threading.current_thread()
        self.thread = None if isinstance(thread, threading._DummyThread) else thread

    @property
    def has_ended(self) -> bool:
        """Whether its thread is gone."""
        if not self.native_id:  # it has not begun
            return False
        if self.thread is not None:
            return not self.thread.is_alive()
        return not (TASKS / str(self.native_id)).exists()

    def usage(self) -> tuple[str, float]:
        """Return the state of its thread, a letter as in proc(5), and how many seconds it has computed in all."""
        try:
            text = (TASKS / str(self.native_id) / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it has not begun, or has ended
            return "X", 0.0
        state, *numbers = text[text.rindex(")") + 2 :].split()
        return state, (int(numbers[10]) + int(numbers[11])) / TICKS_PER_S

    def look_at(self, now_s: float, most_s: float) -> None:
        """Take note of how long it has been silent since the last look, `most_s` at most: this process may have been stopped.
        While it would go on and the system does not let it, other programs or a disk being in the way, it is not silent.
        """
        state, cpu_s = self.usage()
        if self.awaited_since is None:
            self.awaited_since, self.silent_s = now_s, 0.0
        else:
            ran_s = cpu_s - self.seen_cpu_s
            self.silent_s += min(now_s - self.seen_s if state not in "RD" else ran_s, most_s)
        self.seen_s, self.seen_cpu_s = now_s, cpu_s

    def rouse(self) -> None:
        """Let it look again, if it waits."""
        if self.sleeps:
            self.condition.notify()


def thread_name() -> str:
    """Return the calling thread's name, Python's or, of a thread that Python did not start, the system's."""
    thread = threading.current_thread()
    if isinstance(thread, threading._DummyThread):
        return (
            (TASKS / str(threading.get_native_id()) / "comm").read_text(encoding="utf-8", errors="replace").rstrip("\n")
        )
    return thread.name
