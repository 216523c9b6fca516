"""Findings as SARIF 2.1.0, which editors and code hosts show at the lines concerned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from libnpu.checker.rules import RULES
from libnpu.checker.witness import is_benign, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return records of `report.records` as a log. A result is at its last act; the others, and the allocation, are related."""
    rules = [{"id": rule, "shortDescription": {"text": what}} for rule, what in RULES.items()]
    driver = {"name": "npu check", "rules": rules}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": [*map(_result, found)]}],
    }


def _result(record: dict[str, Any]) -> dict[str, Any]:
    *others, last = record["acts"]
    witness = text_of(record)
    related = [
        *others,
        *(made for made in [record["allocation"] and record["allocation"]["made"], record["freed"]] if made),
    ]
    return {
        "ruleId": record["rule"],
        "ruleIndex": [*RULES].index(record["rule"]),
        "level": "note" if is_benign(record) else "error" if record["certain"] else "warning",
        "message": {"text": f"{record['message']}. Fix: {record['fix']}{f'. Witness: {witness}' if witness else ''}"},
        "occurrenceCount": record["count"],
        "locations": _locations([last]),
        "relatedLocations": _locations(related),
        "properties": {"witness": record["witness"]},
    }


def _locations(acts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for act in acts:
        file, _, line = (act["site"] or "").rpartition(":")
        if file and line.isdigit():
            uri = Path(file).as_uri() if Path(file).is_absolute() else file
            place = {"artifactLocation": {"uri": uri}, "region": {"startLine": int(line)}}
            found.append({"physicalLocation": place, "message": {"text": act["what"]}})
    return found
