"""Waits for the device, the one place where a call lets others go on; and what becomes of them when all are blocked."""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING, Any

from libnpu.runtime.host_order import FUNCTION, GOES_ON
from libnpu.runtime.host_participants import ACTIVE, Participant, State, Target, Wait
from libnpu.runtime.host_turns import Turns
from libnpu.runtime.time import FOR_EVER_PS, NEVER_PS

if TYPE_CHECKING:
    from libnpu.syscalls import Machine, Node

DEADLOCK_GRACE_S = 2.0  # chosen: a thread set aside may still do what the blocked ones wait for
HELD_GRACE_S = (
    0.5  # chosen: how long all threads are asleep before a host function is let go that a schedule holds back
)
FUNCTION_GRACE_S = 1.0  # chosen: how long a host function may be silent that is to return before the program goes on


class Waits(Turns):
    """The waits of all participants."""

    def wait(self, node: Node, request: Any, deadline_ps: int) -> int:
        """As `Node.wait`."""
        me = self.me()
        machine = node.machine
        target = Target(node, request.arg.handle)
        if deadline_ps > machine.now_ps:
            self.block(me, node, Wait([target], deadline_ps))
        if target.taken:
            return -errno.EAGAIN
        request.arg.handle, request.arg.deadline_ps = target.handle, deadline_ps
        ret = node.try_ioctl(request)
        if ret == 0:
            self.take(node, target.handle)
        return ret

    def wait_ahead(self, node: Node, handle: int, deadline_ps: int) -> None:
        """As `Node.wait_ahead`."""
        me, machine = self.me(), node.machine
        before_ps = machine.now_ps
        self.block(me, node, Wait([Target(node, handle)], deadline_ps))
        machine.note_blocked(before_ps)

    def wait_for_first(self, node: Node, targets: list[Target]) -> None:
        """Block the calling thread, which is in a call, until one of `targets`, of one machine, is done, or nothing is
        left to happen: then none is.
        """
        machine, me = node.machine, self.me()
        for target in targets:
            self._look_at(target)
        if all(target.done_ps is None for target in targets):
            before_ps = machine.now_ps
            self.block(me, node, Wait(targets, FOR_EVER_PS))
            machine.note_blocked(before_ps)
            for target in targets:
                self._look_at(target)

    def wait_for_functions(self, node: Node) -> None:
        """Let the calling thread, which is in a call, go on when the host functions of the machine have returned that can run by now,
        or are silent: one may wait for what the thread does next.
        """
        me = self.me()
        if me.number >= 0 and me.wait is None:
            self.block(me, node, Wait([], FOR_EVER_PS, patient=True, for_functions=True))

    def block(self, me: Participant, node: Node, wait: Wait) -> None:
        """Return at the turn of `me` when one of the targets is done, or the deadline has passed, or nothing that
        could bring it about is left: then the driver will say so.
        """
        machine = node.machine
        me.wait = wait
        me.state = State.BLOCKED
        machine.positions[me] = machine.now_ps
        try:
            self._wake(node)
            replayed = False
            while not wait.woken and not replayed:
                if self.replay is not None and not machine.is_closed:
                    replayed = self.replay_turn(me, node, GOES_ON)
                else:
                    self._progress(me, node, wait)
            me.state = State.RUNNING
            if self.replay is None:
                self._follow(me, machine)
            if not replayed:
                self.take_turn(me, node)  # meanwhile another thread may take the end of the job: `take`
        finally:
            me.wait = None
            me.state = State.RUNNING

    def block_on_any(self, me: Participant, wait: Wait) -> None:
        """As `block`, for a thread of host functions, which is in no call."""
        self.switch(me)
        me.depth = 1
        machine = wait.targets[0].node.machine
        while not wait.woken or (self.replay is not None and not machine.is_closed):
            if self.replay is not None and not machine.is_closed:
                if self.replay_turn(me, wait.targets[0].node, FUNCTION):
                    self._look_at_all(wait)
                    return
                continue
            nodes = {target.node.machine: target.node for target in wait.targets}
            first = None
            for used, node in nodes.items():
                ahead = self._first(used)
                first = first or ahead
                if self._wake(node) or (node.is_usable and self._step(node, self._bound(ahead, used))):
                    break
            else:
                self._rouse_unsure()
                self._pause(me, first)
                self._let_go(me, wait)
        self._note_turn(me, wait.targets[0].node, FUNCTION)
        self._look_at_all(wait)

    def _let_go(self, me: Participant, wait: Wait) -> None:
        """Let the first held job of `wait` go when all threads have been asleep for a while: one of them may wait for its function, by
        means of its own.
        """
        now_s = time.monotonic()
        asleep = all(
            who.state is State.ASIDE and who.usage()[0] not in "RD" for who in self.participants if who is not me
        )
        wait.since_s = (wait.since_s or now_s) if asleep else None
        held = next((target.job for target in wait.targets if target.job and not target.job.submitted), None)
        if wait.since_s is not None and now_s - wait.since_s > HELD_GRACE_S and held is not None:
            held.stream.context.dispatcher.let_go(held)
            wait.since_s = None
            me.wait, me.state = wait, State.BLOCKED

    def _look_at_all(self, wait: Wait) -> None:
        """Find out which targets are done by now, whoever was woken first."""
        for target in wait.targets:
            self._look_at(target)

    def _progress(self, me: Participant, node: Node, wait: Wait) -> None:
        """Step the device, or wait for who may not be overtaken, or give up."""
        machine = node.machine
        first = self._first(machine)
        if not node.is_usable:
            wait.woken = True
            return
        bound = self._bound(first, machine)
        if self._step(node, bound):
            wait.since_s = None
            return
        if wait.for_functions:
            running = (who for who in self.participants if who.number < 0 and who.state in ACTIVE)
            other = next((who for who in running if who in machine.positions), None)
            wait.woken = other is None
            if other is not None:
                self._pause(me, other, least_s=FUNCTION_GRACE_S)
            return
        other = first if bound < NEVER_PS else None
        if other is None:
            other = next((who for who in self.participants if who.state in ACTIVE), None)
        if other is not None:
            wait.since_s = None
            if other.function and wait.deadline_ps >= FOR_EVER_PS and self._is_idle:
                self._pause(me, other, patient=True)  # there is nothing that it could be too late for
                return
        elif self._is_dead(wait):
            self._give_up()
            return
        self._pause(me, other)

    def _give_up(self) -> None:
        """End all waits of the program, where the last of all threads has come to: when it got there in real time is nobody's
        business. They have their turns as any others who run.
        """
        for who in self.participants:
            wait = who.wait
            if wait is not None and not wait.patient and not wait.woken:
                machine = wait.targets[0].node.machine
                self._wake_at(who, machine, self.furthest_ps(machine))

    def _is_dead(self, wait: Wait) -> bool:
        """Whether nobody is left who could end this wait. Nobody runs, and nothing is left to happen on its machine."""
        now_s = time.monotonic()
        wait.since_s = wait.since_s or now_s
        if self._rouse_unsure():
            return False
        aside = [who for who in self.participants if who.state is State.ASIDE]
        for who in aside:
            if not who.depth and who.has_ended:
                self.remove(who)
            elif who.function or who.arrived:
                return False  # a function takes the time that it takes
        return not aside or now_s - wait.since_s > DEADLOCK_GRACE_S

    def _rouse_unsure(self) -> bool:
        """Let those look who have not found out yet that nothing is left to happen; whether there are any."""
        waiting = [(who, who.wait) for who in self.participants if who.wait is not None and not who.wait.patient]
        unsure = [who for who, wait in waiting if wait.since_s is None]
        for who in unsure:
            who.rouse()
        return bool(unsure)

    def _follow(self, me: Participant, machine: Machine) -> None:
        """On other machines that others use, a thread that was blocked is where the device is by now: whenever that is."""
        for other in self.machines:
            if other is not machine and me in other.positions:
                node = other.any_node()
                if node is not None and (device_ps := self.device_ps(node)) > self.position(me, other):
                    self.move(me, other, device_ps)
                    me.drifted.add(other)
