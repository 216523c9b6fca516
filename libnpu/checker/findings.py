"""What the checker has found: a rule, the two acts, the bytes, and what is missing between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from libnpu.checker.steps import Act


@dataclass(slots=True, eq=False)
class Finding:
    """Acts with the same sites are one finding, `count` times; the rest is of the first time. `acts` are in the order of the
    program; [start, end) is in the allocation that `made` made, 0 and 0 when no memory is concerned.
    """

    rule: str
    certain: bool
    message: str
    fix: str
    acts: tuple[Act, ...]
    start: int = 0
    end: int = 0
    size: int = 0
    made: Act | None = None
    freed: Act | None = None
    memory: int = 0  # the number of the allocation
    count: int = 1
    no_witness: str = ""  # why the program is not run again for one
    say: Callable[[int, int], tuple[str, str]] | None = None  # of a range: message and fix, where they name it
    evidence: str = "the bytes that the device's engines and the calls of the host touched"

    @property
    def key(self) -> tuple[object, ...]:
        """What findings that are one have in common."""
        return self.rule, *((act.what, act.site) for act in self.acts)


class Findings:
    """All findings, in the order of the first of each kind."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], Finding] = {}

    def add(self, finding: Finding) -> Finding:
        """Note a finding and return the one that stands for it."""
        known = self._found.setdefault(finding.key, finding)
        if known.acts == finding.acts:  # the very same acts: more of their bytes
            known.start, known.end = min(known.start, finding.start), max(known.end, finding.end)
            if known.say is not None:
                known.message, known.fix = known.say(known.start, known.end)
        else:
            known.count += 1
        return known

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._found.values())

    def __len__(self) -> int:
        return len(self._found)
