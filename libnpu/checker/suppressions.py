"""Findings that somebody knows of and does not want to see: rows of a rule and a place, patterns both.

# the staging ring is checked by hand
HD-WAR     staging.py:*
*          third_party/*
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from libnpu.checker.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Iterable


class Suppressions:
    """A place is "file:line" of an act of the finding, with as much of the path as is wanted; a pattern without a line is for the file."""

    def __init__(self, rows: Iterable[tuple[str, str]] = ()) -> None:
        self.rows = [(rule, place) for rule, place in rows]

    @classmethod
    def parse(cls, text: str) -> Suppressions:
        """Read rows. Raises ValueError, which names the line, for what is none, and for a rule that there is not."""
        rows = []
        for number, line in enumerate(text.splitlines(), 1):
            words = line.partition("#")[0].split(maxsplit=1)
            if len(words) == 1:
                raise ValueError(f"line {number}: {line.strip()!r} is no rule and place")
            if words and not any(fnmatchcase(rule, words[0]) for rule in RULES):
                raise ValueError(f"line {number}: no rule is {words[0]!r}; npu check --rules shows them")
            if words:
                rows.append((words[0], words[1].strip()))
        return cls(rows)

    def covers(self, record: dict[str, Any]) -> bool:
        """Whether a finding is one of these."""
        sites = [act["site"] for act in record["acts"] if act["site"]]
        return any(
            fnmatchcase(record["rule"], rule) and any(_is_at(site, place) for site in sites)
            for rule, place in self.rows
        )


def _is_at(site: str, place: str) -> bool:
    file = site.rpartition(":")[0]
    return any(fnmatchcase(name, pattern) for name in (site, file) for pattern in (place, f"*/{place}"))
