"""The order in which the threads ran, as text: recorded, and forced again.

One line for each time that a thread gets its turn, which it has until it waits or its call ends: participant, machine,
position on its clock, where the participant's own time began, the device's time (all in ps), "." or, if the device has
stopped at an interrupt with more to do at that very time, "!" and the number of the interrupt, and what the participant does: begins a call, or one of `CONTINUATIONS`. What a thread finds depends on nothing else, so this holds for waits that nobody could
end, threads that were set aside, and those that came back as well.
A line "> machine position ." before a turn tells where the participant has come to there without a turn; "?" instead of "." if
it has not learned of that, for it was blocked on another machine.
A line "! machine reason" before a turn tells why the order is the simulating machine's from there on.
A line "+ participant name" tells which thread a participant is, so that a replay gives threads of the same name the
same number. A machine's thread of host functions is participant -1.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.regular_file import open_regular
from libnpu.runtime.time import NEVER_PS

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence


GOES_ON = "(goes on)"
COMES_BACK = "(comes back)"
FUNCTION = "(runs a host function)"
CONTINUATIONS = (GOES_ON, COMES_BACK, FUNCTION)  # turns that begin no call


class Numbers:
    """The numbers of a file, which begin with those that are there when it begins: by number in the process."""

    def __init__(self, present: Sequence[int], following: int) -> None:
        """`following`: the next number that the process gives."""
        self._present = list(present)
        self._following = following

    def to_file(self, number: int) -> int:
        """Return the file's number."""
        if number < 0:
            return number
        if number in self._present:
            return self._present.index(number)
        return len(self._present) + number - self._following

    def from_file(self, number: int) -> int:
        """Return the process's number."""
        count = len(self._present)
        if number < 0:
            return number
        return self._present[number] if number < count else number - count + self._following


class Line(NamedTuple):
    """A turn."""

    number: int
    machine: int
    position_ps: int
    begun_ps: int
    device_ps: int
    due_after: int | None  # the interrupt at which the device has stopped with more to do at its time
    what: str
    disorder: str | None  # of the machine
    moves: tuple[tuple[int, int, bool], ...]  # (machine, position in ps, drifted): where it has come to without a turn


class Recorder:
    """Writes the order to a file, turn by turn."""

    def __init__(self, path: str | os.PathLike[str], threads: Numbers, machines: Numbers) -> None:
        """Raises FILE."""
        self._threads = threads
        self._machines = machines
        self._disorders: dict[int, str | None] = {}  # by machine, as far as they are written
        try:
            self._file = Path(path).open("w", encoding="utf-8", buffering=1)  # noqa: SIM115 - open until `close`
        except OSError as error:
            raise NpuError(C.NPU_ERROR_FILE, f"the order of calls: {error}") from None

    def note_thread(self, number: int, name: str) -> None:
        """Write that thread `name` is participant `number`."""
        self._file.write(f"+ {self._threads.to_file(number)} {name}\n")

    def note(self, line: Line) -> None:
        """Write a turn, with the numbers of this process."""
        thread, machine = self._threads.to_file(line.number), self._machines.to_file(line.machine)
        if self._disorders.get(line.machine) != line.disorder:
            self._disorders[line.machine] = line.disorder
            self._file.write(f"! {machine} {line.disorder}\n")
        for moved, position_ps, drifted in line.moves:
            self._file.write(f"> {self._machines.to_file(moved)} {position_ps} {'.?'[drifted]}\n")
        times = f"{line.position_ps} {line.begun_ps} {line.device_ps} {'.' if line.due_after is None else f'!{line.due_after}'}"
        self._file.write(f"{thread} {machine} {times} {line.what}\n")

    def close(self) -> None:
        """Write no more."""
        self._file.close()


class Replay:
    """A recorded order, from its next turn on."""

    def __init__(
        self, path: str | os.PathLike[str], threads: Numbers, machines: Numbers, *, is_of_process: bool = False
    ) -> None:
        """`is_of_process`: who started the program asked for it, and is told on stderr of a departure, for the program may
        look at no result. Raises FILE for a file that cannot be read or holds something else.
        """
        self._path = Path(path)
        self._is_of_process = is_of_process
        self._lines: deque[Line] = deque()
        self._threads: list[tuple[int, str]] = []  # that have not turned up yet
        self._done = 0
        self._since_s = time.monotonic()
        disorders: dict[int, str] = {}
        moves: list[tuple[int, int, bool]] = []
        try:
            with open_regular(self._path) as (file, size):
                lines = file.read(size).decode("utf-8").splitlines()
            for text in lines:
                first, second, rest = text.split(" ", 2)
                if first == "+":
                    self._threads.append((threads.from_file(int(second)), rest))
                elif first == "!":
                    disorders[machines.from_file(int(second))] = rest
                elif first == ">":
                    position, sign = rest.split(" ")
                    moves.append((machines.from_file(int(second)), int(position), sign == "?"))
                else:
                    *times, due, what = rest.split(" ", 4)
                    position_ps, begun_ps, device_ps = map(int, times)
                    due_after = None if due == "." else int(due.removeprefix("!"))
                    thread, machine = threads.from_file(int(first)), machines.from_file(int(second))
                    why = disorders.get(machine)
                    line = Line(thread, machine, position_ps, begun_ps, device_ps, due_after, what, why, tuple(moves))
                    self._lines.append(line)
                    moves.clear()
        except (ValueError, IndexError) as error:
            raise NpuError(C.NPU_ERROR_FILE, f"{self._path} is no recorded order: {error}") from None

    @property
    def is_over(self) -> bool:
        """Whether all of it has run."""
        return not self._lines

    @property
    def next_turn(self) -> tuple[int, int]:
        """The participant whose turn is next, and on which machine."""
        return self._lines[0].number, self._lines[0].machine

    def is_next(self, number: int, machine: int) -> bool:
        """Whether the next turn is this participant's; the threads of host functions are told apart by their machine."""
        line = self._lines[0]
        return line.number == number and (number >= 0 or line.machine == machine)

    @property
    def waited_s(self) -> float:
        """Wall time since the last turn began."""
        return time.monotonic() - self._since_s

    def number_of(self, name: str) -> int | None:
        """Return the number that thread `name` had, else the first one that nobody has yet; None when there is none."""
        found = next((pair for pair in self._threads if pair[1] == name), None)
        if found is None and self._threads:
            found = self._threads[0]
        if found is None:
            return None
        self._threads.remove(found)
        return found[0]

    def next_ps(self, number: int, machine: int) -> int:
        """Return the position of a participant's next turn, on a machine; NEVER_PS when that is elsewhere, or never."""
        for line in self._lines:
            if line.number == number:
                return line.position_ps if line.machine == machine else NEVER_PS
        return NEVER_PS

    def take(self, number: int, machine: int, position_ps: int, what: str) -> Line:
        """Begin the next turn, which must be this one, of a thread that is at `position_ps`. Raises BAD_STATE."""
        line, begins = self._lines[0], what not in CONTINUATIONS
        if (line.number, line.machine, line.what) != (number, machine, what):
            self.depart(f"thread {number} {'calls ' * begins}{what} on machine {machine}")
        if begins and line.position_ps < position_ps:
            self.depart(f"thread {number} calls {what} at {position_ps} ps")
        self._lines.popleft()
        self._done += begins
        self._since_s = time.monotonic()
        return line

    def depart(self, what: str) -> None:
        """Raise BAD_STATE: the program does something else than what is recorded."""
        number, machine, position, *_, call, _, _ = self._lines[0]
        why = (
            f"the program departs from the order in {self._path.name}: {what}; call {self._done + 1} there is {call} by "
            f"thread {number} on machine {machine} at {position} ps. The order is free from here on"
        )
        if self._is_of_process:
            print(f"libnpu: {why}", file=sys.stderr, flush=True)
        raise NpuError(C.NPU_ERROR_BAD_STATE, why)
