"""The device goes on, and wakes who waits for it.

Somebody who holds the lock steps the device from interrupt to interrupt on behalf of those who are blocked, and moves
each to the time at which it would have seen its job end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.errors import errno_error
from libnpu.runtime.host_participants import Participant, State, Target
from libnpu.runtime.host_positions import Positions
from libnpu.runtime.time import FOR_EVER_PS, NEVER_PS
from libnpu.syscalls import Request

if TYPE_CHECKING:
    from libnpu.syscalls import Machine, Node


class Waking(Positions):
    """What the threads see of the device's jobs."""

    def __init__(self) -> None:
        super().__init__()
        self._run = Request(C.NPU_IOCTL_EMU_RUN, "npu_emu_run", "EMU_RUN")
        self._look = Request(C.NPU_IOCTL_EMU_JOB, "npu_emu_job", "EMU_JOB")

    def device_ps(self, node: Node) -> int:
        """Return the device's time."""
        return self._run_to(node, 0)[0]

    def _join_machine(self, me: Participant, machine: Machine, node: Node) -> None:
        """Give `me` a position on a machine that it has not used yet: where the device is."""
        if me not in machine.positions:
            start_ps = self.device_ps(node) if machine.positions and node.is_usable else machine.now_ps
            if self.replay is not None:
                start_ps = min(start_ps, self.replay.next_ps(me.number, machine.number))
            self.race(me, machine.positions)
            self.set_position(me, machine, start_ps)
            machine.begun_ps[me] = start_ps

    def _step(self, node: Node, until_ps: int) -> bool:
        """Run the device for those who are blocked on it, at most to `until_ps`, until one of them is woken."""
        machine = node.machine
        waits = [who.wait for who in self.participants if who.wait is not None and not who.wait.woken]
        if not any(wait.targets for wait in waits):
            return False
        if self._wake(node):  # whose job has ended by now is the first that the device may not overtake
            return True
        # Not past a deadline: who gives up then must not find what is later.
        here = [wait.deadline_ps for wait in waits if any(t.node.machine is machine for t in wait.targets)]
        deadline_ps = min(here, default=FOR_EVER_PS)
        if deadline_ps < FOR_EVER_PS:
            until_ps = min(until_ps, deadline_ps)
        while True:
            now_ps, interrupts = self._run_to(node, until_ps)
            if self._wake(node, now_ps):
                return True
            if not interrupts:
                return False
            assert machine.lost is None

    def _run_to(self, node: Node, until_ps: int) -> tuple[int, int]:
        """Run the device to a time, at most until it interrupts; return its time and how many interrupts there were."""
        arg = self._run.arg
        arg.until_ps, arg.now_ps, arg.next_ps, arg.interrupts, arg.edges = until_ps, 0, 0, 0, 0
        ret = self._ask(node, self._run)
        if ret < 0:
            raise errno_error(-ret, self._run.name, node.log)
        return int(arg.now_ps), int(arg.interrupts)

    def _due_after(self, now_ps: int) -> int | None:
        """Return None, or if the device that ran last, to `now_ps`, has stopped at an interrupt with more to do at that very
        time, the number of interrupts that it has had.
        """
        arg = self._run.arg
        return int(arg.edges) if arg.next_ps <= now_ps else None

    @property
    def _is_idle(self) -> bool:
        """Whether nothing is left to happen in the device that ran last."""
        return bool(self._run.arg.next_ps == NEVER_PS)

    def _ask(self, node: Node, request: Request) -> int:
        """Do a request that does not take the device to the caller's position."""
        machine = node.machine
        now_ps, behind, machine.now_ps = machine.now_ps, machine.behind, 0
        try:
            return node.try_ioctl(request)
        finally:
            machine.now_ps, machine.behind = now_ps, behind

    def _wake(self, node: Node, now_ps: int = 0) -> bool:
        """Wake who waits for a job of this machine that has ended, or has waited long enough; whether there were any."""
        found = False
        for who in self.participants:
            wait = who.wait
            if wait is None or wait.woken:
                continue
            machine = node.machine
            here = [target for target in wait.targets if target.node.machine is machine]
            done = [target.done_ps for target in here if self._look_at(target) and target.done_ps is not None]
            if done:
                self._wake_at(who, machine, min(*done, wait.deadline_ps))
                found = True
            elif here and now_ps >= wait.deadline_ps:
                self._wake_at(who, machine, wait.deadline_ps)
                found = True
        return found

    def _wake_at(self, who: Participant, machine: Machine, time_ps: int) -> None:
        wait = who.wait
        assert wait is not None
        if not wait.woken:
            wait.woken = True
            who.state = State.RUNNING
            who.rouse()
            self.set_position(who, machine, max(self.position(who, machine), time_ps))

    def take(self, node: Node, handle: int) -> None:
        """Tell those who wait for the same job that its end was taken from the driver."""
        for who in self.participants:
            for target in who.wait.targets if who.wait is not None else ():
                if target.node is node and target.handle == handle and not target.taken:
                    self._look_at(target)
                    target.taken = True
                    self._wake_at(who, node.machine, target.done_ps or 0)

    def _look_at(self, target: Target) -> bool:
        """Whether a target is done."""
        if target.done_ps is not None:
            return True
        node, job, arg = target.node, target.job, self._look.arg
        is_held = job is not None and not job.submitted
        if job is not None and is_held and not job.done and node.is_usable:
            return False
        arg.handle, arg.finished, arg.done_ps, arg.job_status = target.handle, 0, 0, 0
        if is_held or not node.is_usable or self._ask(node, self._look) < 0:
            target.done_ps, target.status = 0, int(C.NPU_JOB_ABORTED)
            target.taken = True
        elif arg.finished:
            target.done_ps, target.status = int(arg.done_ps), int(arg.job_status)
        return target.done_ps is not None

    def notify(self) -> None:
        """Let the waiting threads look again."""
        for who in self.participants:
            who.rouse()
