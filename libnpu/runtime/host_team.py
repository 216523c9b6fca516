"""What a program says about its threads: teams, silence, and the order of calls, recorded and replayed.

Teams are threads that take part from the same moment on, whatever order the machine starts them in.
They begin at the owner's position, and nobody gets past it until all have entered, so the order of
their calls is the same in every run. The owner is suspended until the end; then it is where the last one came to.
While there is a team, the others wait for `TEAM_GRACE_S` for a thread that computes between its calls, or that blocks on
something else than the API: members that wait for each other should do so by events, or leave the team.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.arguments import whole
from libnpu.runtime.host_order import Recorder, Replay
from libnpu.runtime.host_participants import ACTIVE, Participant, State
from libnpu.runtime.host_threads import HOST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libnpu.syscalls import Machine

MAX_THREADS = 1024  # chosen
OWNER = "its team has not ended"


class Team:
    """Made by the owner, `begin`; a context manager that ends it. Each thread enters with a rank of its own."""

    def __init__(self, machine: Machine, count: int) -> None:
        """Announce `count` threads on the clock of a machine. Raises INVALID_VALUE, BAD_STATE in a team or for the owner of one, NOT_PERMITTED in a
        host function.
        """
        if not 0 < count <= MAX_THREADS:
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"a team of {count} threads; 1 to {MAX_THREADS} are allowed")
        with HOST.lock:
            _check_no_team()
            with HOST.inside() as owner:
                catch_up(owner)
                self._owner = owner
                self._members = [HOST.add(State.EXPECTED) for _ in range(count)]
                self._positions: dict[Machine, int] = {}  # the furthest of those who have left
                if owner not in machine.positions:
                    HOST.set_position(owner, machine, machine.now_ps)
                for member in self._members:
                    member.in_team = True
                    machine.positions[member] = machine.begun_ps[member] = HOST.position(owner, machine)
                owner.state, owner.forbidden = State.SUSPENDED, OWNER
                self._outer: dict[Participant, Participant | None] = {}

    def enter(self, rank: int) -> None:
        """Take part as number `rank` of the team. Raises INVALID_VALUE for a rank that is taken or too large, BAD_STATE
        in a team, for the owner and after the end, NOT_PERMITTED in a host function.
        """
        rank = whole(rank, "rank")
        with HOST.lock:
            HOST.check_not_forked()
            _check_no_team()
            HOST.check_permitted()
            if self._owner.forbidden != OWNER:
                raise NpuError(C.NPU_ERROR_BAD_STATE, "the team has ended")
            if not 0 <= rank < len(self._members):
                raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"rank {rank} of a team of {len(self._members)}")
            member = self._members[rank]
            if member.native_id:
                raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"rank {rank} has entered already")
            outer = HOST.known()
            if outer is not None:
                outer.state = State.SUSPENDED
            late = member.state is State.ASIDE
            member.bind()
            member.state = State.RUNNING
            self._outer[member] = outer
            HOST.be(member)
            if late:
                HOST.come_back(member)
            HOST.notify()

    def leave(self) -> None:
        """Take part no longer. Raises BAD_STATE when the calling thread is not in the team."""
        with HOST.lock:
            HOST.check_not_forked()
            member = HOST.known()
            if member is None or member not in self._outer:
                raise NpuError(C.NPU_ERROR_BAD_STATE, "the thread is not in the team")
            if member.raced is not None:
                HOST.disorder(f"thread {member.number} left while thread {member.raced.number} ended its silence")
            self._drop(member)
            HOST.be(self._outer.pop(member))
            if not any(other in HOST.participants for other in self._members):
                self._expect_owner()
            HOST.notify()

    def end(self) -> None:
        """Go on as the owner, where the last thread came to. Raises BAD_STATE for another thread, and while a thread is in
        the team; then nothing has changed. Twice is allowed.
        """
        with HOST.lock:
            HOST.check_not_forked()
            owner = self._owner
            if HOST.known() is not owner:
                raise NpuError(C.NPU_ERROR_BAD_STATE, "only the thread that began a team may end it")
            inside = [rank for rank, who in enumerate(self._members) if who in self._outer and not who.has_ended]
            if inside:
                raise NpuError(C.NPU_ERROR_BAD_STATE, f"the threads of rank {inside} are in the team")
            if owner.forbidden != OWNER:
                return
            for member in self._members:
                self._drop(member)
            self._expect_owner()
            owner.forbidden, owner.in_team = "", False
            self._positions.clear()
            HOST.switch(owner)
            HOST.update_solo()
            HOST.notify()

    def abandon(self) -> None:
        """End the team, whatever its threads do: its device has ended. They go on, each by itself, and so does the owner."""
        with HOST.lock:
            owner = self._owner
            if owner.forbidden != OWNER:
                return
            for member in self._members:
                member.in_team = False
                if member not in self._outer:
                    HOST.remove(member)
                elif (outer := self._outer.pop(member)) is not None:  # its thread stays the member that it is
                    HOST.remove(outer)
            owner.forbidden, owner.in_team = "", False  # it stays suspended until its next call
            self._positions.clear()
            HOST.notify()

    def __enter__(self) -> Team:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.end()
        except NpuError:
            if kind is None:
                raise

    def _expect_owner(self) -> None:
        """Let everybody wait for the owner, where the last thread came to: nobody is left who could go on before it."""
        owner = self._owner
        owner.state, owner.in_team = State.RUNNING, True
        for machine, position in self._positions.items():
            if owner in machine.positions:
                HOST.skip_to(owner, machine, position)

    def _drop(self, member: Participant) -> None:
        HOST.remove(member)
        for machine, position in member.final.items():
            if machine in member.drifted:  # it never learned of that
                continue
            self._positions[machine] = max(self._positions.get(machine, 0), position)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Say that the calling thread makes no calls in a `with` block: nobody waits for it. Behind the block it goes on
    where the devices are. Raises NOT_PERMITTED in a host function.
    """
    suspend()
    try:
        yield
    finally:
        resume()


def suspend() -> None:
    """Begin to be silent (`silent`)."""
    with HOST.inside() as me:
        catch_up(me)
        me.company = [who for who in HOST.participants if who is not me and who.state in (*ACTIVE, State.BLOCKED)]
        me.state = State.SUSPENDED


def resume() -> None:
    """End `suspend`; a call does the same."""
    with HOST.inside() as me:
        if me.state is State.SUSPENDED:
            HOST.come_back(me)


@contextlib.contextmanager
def recorded(path: str | os.PathLike[str]) -> Iterator[None]:
    """Record the order of all threads' calls, of all devices, in a `with` block. Raises FILE."""
    record(path)
    try:
        yield
    finally:
        with HOST.lock:
            recorder, HOST.recorder = HOST.recorder, None
            if recorder is not None:
                recorder.close()


def record(path: str | os.PathLike[str]) -> None:
    """Record the order of calls from now on. Raises FILE."""
    with HOST.inside():
        HOST.leave_solo()
        HOST.recorder = Recorder(path, *HOST.numbers())


@contextlib.contextmanager
def replayed(path: str | os.PathLike[str]) -> Iterator[None]:
    """Force the recorded order upon the calls of a `with` block. Raises FILE; a call that departs from the order raises
    BAD_STATE, and the order is free from there on.
    """
    replay(path)
    try:
        yield
    finally:
        with HOST.lock:
            HOST.replay = None
            HOST.notify()


def replay(path: str | os.PathLike[str], *, is_of_process: bool = False) -> None:
    """Force the recorded order from now on; `is_of_process` as in `Replay`. Raises FILE."""
    with HOST.inside():
        HOST.leave_solo()
        HOST.replay = Replay(path, *HOST.numbers(), is_of_process=is_of_process)


def _check_no_team() -> None:
    me = HOST.known()
    if me is not None and (me.in_team or me.forbidden == OWNER):
        raise NpuError(C.NPU_ERROR_BAD_STATE, "the thread is in a team, or has begun one")


def obey_environment() -> None:
    """Do what NPU_ORDER_RECORD and NPU_ORDER_REPLAY, paths, ask of the process, once. Raises FILE."""
    replay_of_process = functools.partial(replay, is_of_process=True)
    for variable, action in (("NPU_ORDER_REPLAY", replay_of_process), ("NPU_ORDER_RECORD", record)):
        path = os.environ.get(variable)
        if path and variable not in _obeyed:
            _obeyed.add(variable)
            action(path)


_obeyed: set[str] = set()


def catch_up(me: Participant) -> None:
    """Bring the devices to the position of a participant that is about to be silent."""
    HOST.leave_solo()
    for machine in sorted(HOST.machines, key=lambda machine: machine.number):
        node = machine.any_node()
        if node is not None and me in machine.positions:
            outer, me.machine = me.machine, machine
            try:
                HOST.take_turn(me, node)
            finally:
                me.machine = outer
            node.catch_up()
