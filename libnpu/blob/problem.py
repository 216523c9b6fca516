"""What `verify` and `prove` find."""

from __future__ import annotations

from dataclasses import dataclass

# Rule -> the kind of fault that it is one of. Rules that are not here are about the form of a blob.
KINDS = {
    "missing-barrier": "missing barrier",
    "start-after": "missing barrier",
    "barrier-count": "barrier count mismatch",
    "barrier-left": "barrier count mismatch",
    "deadlock": "unreachable task",
    "cmx-overlap": "CMX overlap",
    "cmx-map": "CMX overlap",
    "lost-write": "CMX overlap",
    "unread-load": "CMX overlap",
    "read-before-write": "read before write",
    "output-unwritten": "read before write",
    "range": "out-of-tile access",
    "tile": "out-of-tile access",
    "unknown-access": "not provable",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule of a blob: a short name of the rule, the entry (`section[index]`), and found against expected.

    `other` is the entry with which it is in conflict; `place`, `first` and `past` are the bytes that it is about: addresses in
    "CMX of tile N", offsets in anything else.
    """

    rule: str
    where: str
    message: str
    other: str = ""
    place: str = ""
    first: int = 0
    past: int = 0

    @property
    def kind(self) -> str:
        """What kind of fault it is."""
        return KINDS.get(self.rule, "form")

    def __str__(self) -> str:
        return f"{self.where}: {self.message} ({self.rule})"
