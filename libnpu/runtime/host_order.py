"""The order in which the threads' calls ran, as text: recorded, and forced again.

One line per call: participant, machine, position on its clock in ps, call. A line "+ participant name" tells which
thread a participant is, so that a replay gives threads of the same name the same number.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.time import NEVER_PS

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence


class Numbers:
    """The numbers of a file, which begin with those that are there when it begins: by number in the process."""

    def __init__(self, present: Sequence[int], following: int) -> None:
        """`following`: the next number that the process gives."""
        self._present = list(present)
        self._following = following

    def to_file(self, number: int) -> int:
        """Return the file's number."""
        if number in self._present:
            return self._present.index(number)
        return len(self._present) + number - self._following

    def from_file(self, number: int) -> int:
        """Return the process's number."""
        count = len(self._present)
        return self._present[number] if number < count else number - count + self._following


class Recorder:
    """Writes the order to a file, call by call; a context manager."""

    def __init__(self, path: str | os.PathLike[str], threads: Numbers, machines: Numbers) -> None:
        """Raises FILE."""
        self._threads = threads
        self._machines = machines
        try:
            self._file = Path(path).open("w", encoding="utf-8", buffering=1)  # noqa: SIM115 - open until `close`
        except OSError as error:
            raise NpuError(C.NPU_ERROR_FILE, f"the order of calls: {error}") from None

    def note_thread(self, number: int, name: str) -> None:
        """Write that thread `name` is participant `number`."""
        self._file.write(f"+ {self._threads.to_file(number)} {name}\n")

    def note_call(self, number: int, machine: int, position_ps: int, call: str) -> None:
        """Write a call."""
        self._file.write(f"{self._threads.to_file(number)} {self._machines.to_file(machine)} {position_ps} {call}\n")

    def close(self) -> None:
        """Write no more."""
        self._file.close()


class Line(NamedTuple):
    """A recorded call."""

    number: int
    machine: int
    position_ps: int
    call: str


class Replay:
    """A recorded order, from its next call on."""

    def __init__(self, path: str | os.PathLike[str], threads: Numbers, machines: Numbers) -> None:
        """Raises FILE for a file that cannot be read or holds something else."""
        self._path = Path(path)
        self._lines: deque[Line] = deque()
        self._threads: list[tuple[int, str]] = []  # that have not turned up yet
        self._done = 0
        self._since_s = time.monotonic()
        try:
            for text in self._path.read_text(encoding="utf-8").splitlines():
                first, second, rest = text.split(" ", 2)
                if first == "+":
                    self._threads.append((threads.from_file(int(second)), rest))
                else:
                    position, call = rest.split(" ", 1)
                    thread, machine = threads.from_file(int(first)), machines.from_file(int(second))
                    self._lines.append(Line(thread, machine, int(position), call))
        except (OSError, ValueError, IndexError) as error:
            raise NpuError(C.NPU_ERROR_FILE, f"{self._path} is no recorded order: {error}") from None

    @property
    def is_over(self) -> bool:
        """Whether all recorded calls have run."""
        return not self._lines

    @property
    def next_number(self) -> int:
        """The participant whose call is next."""
        return self._lines[0].number

    @property
    def waited_s(self) -> float:
        """Wall time since the last call ran."""
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
        """Return the position of a participant's next call on a machine; NEVER_PS when it makes none."""
        for line in self._lines:
            if line.number == number:
                return line.position_ps if line.machine == machine else NEVER_PS
        return NEVER_PS

    def take(self, number: int, machine: int, call: str) -> int:
        """Run the next call, which must be this one, and return its position. Raises BAD_STATE."""
        line = self._lines[0]
        if (line.number, line.machine, line.call) != (number, machine, call):
            self.depart(f"thread {number} calls {call} on machine {machine}")
        self._lines.popleft()
        self._done += 1
        self._since_s = time.monotonic()
        return line.position_ps

    def depart(self, what: str) -> None:
        """Raise BAD_STATE: the program does something else than what is recorded."""
        number, machine, position, call = self._lines[0]
        raise NpuError(
            C.NPU_ERROR_BAD_STATE,
            f"the program departs from the order in {self._path.name}: {what}; call {self._done + 1} there is {call} by "
            f"thread {number} on machine {machine} at {position} ps. The order is free from here on",
        )
