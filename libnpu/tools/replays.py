"""Runs of a program in new processes that a checker watches: the one that is asked for, and replays of it under schedules."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from libnpu.checker import OPTIONS, VARIABLE
from libnpu.checker.processes import compare
from libnpu.checker.witness import Run, add_witnesses
from libnpu.tools.console import NotDone

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SCHEDULE = "NPU_SCHEDULE"
PATIENT = "lazy"
PATIENCE = 10  # a replay may take so many times what the program took, and at least LEAST_S
LEAST_S = 30.0
FIRST_S = 600.0  # of a replay of a program that has not run


@dataclass(frozen=True)
class Watched:
    """A run of a program: exit status, what was found in it and in processes that it started, what of it was not checked, and what was
    enqueued under each list of the schedule `hold` (`hold.missing`).
    """

    status: int
    found: list[dict[str, Any]]
    not_checked: list[str]
    enqueued: dict[str, dict[str, int]]


def watched(*arguments: Any, **options: Any) -> tuple[int, list[dict[str, Any]]]:
    """Return exit status and findings of what `watch` takes."""
    run = watch(*arguments, **options)
    return run.status, run.found


def watch(
    command: list[str],
    stdout: int | None = None,
    options: dict[str, Any] | None = None,
    *,
    schedule: str | None = None,
    witnesses: int = 0,
    is_known: Callable[[dict[str, Any]], bool] = lambda _: False,
) -> Watched:
    """Run a program. `stdout`: as that of `subprocess.run`; `options`: as of `checker.OPTIONS`; `witnesses`: replay it for so many
    findings that are not known, which come last. Raises NotDone for a program that cannot be run, and one that was not checked.
    """
    with tempfile.TemporaryDirectory() as folder:
        path, begun_s = Path(folder) / "findings", time.monotonic()
        environment = _environment(path, options or {}, schedule)
        try:
            status = subprocess.run(command, env=environment, stdout=stdout, check=False).returncode
        except OSError as error:
            raise _not_started(command, error) from None
        took_s = time.monotonic() - begun_s
        processes = _lines(path)
    if not processes:
        raise NotDone(
            f"{command[0]} ended with status {status} and was not checked: it opened no device, or did not end by itself"
        )
    between, not_checked = compare([each["shared"] for each in processes])
    found = [*(record for each in processes for record in each["findings"]), *between]
    enqueued: dict[str, dict[str, int]] = {}
    for text, counts in (item for each in processes for item in each["enqueued"].items()):
        known_counts = enqueued.setdefault(text, {})
        known_counts.update({stream: max(count, known_counts.get(stream, 0)) for stream, count in counts.items()})
    if witnesses and schedule != PATIENT and any(each["told"] for each in processes):
        found += _found_patiently(command, options or {}, time_limit(took_s), found)
    if witnesses:
        limit_s, known = time_limit(took_s), [*filter(is_known, found)]
        found = [record for record in found if record not in known]
        several = "several processes used devices" if len(processes) > 1 else ""
        add_witnesses(
            found,
            lambda name, watches: Run(problem=several) if several else replay(command, name, watches, limit_s),
            witnesses,
        )
        found += known
    return Watched(status if status >= 0 else 128 - status, found, not_checked, enqueued)


def _found_patiently(
    command: Sequence[str], options: dict[str, Any], limit_s: float, found: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return what is found besides when host functions run only where the program waits for them, so that none has told it before."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "findings"
        environment = _environment(path, options, PATIENT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                timeout=limit_s, check=False,
            )  # fmt: skip
        more = [record for each in _lines(path) for record in each["findings"]]
    known = {_key(record) for record in found}
    functions = [record for record in more if any(act.get("is_function") for act in record["acts"])]
    return [record for record in functions if _key(record) not in known]


def _key(record: dict[str, Any]) -> tuple[Any, ...]:
    return record["rule"], *((act["what"], act["site"]) for act in record["acts"])


def replay(
    command: Sequence[str], schedule: str, watches: Sequence[dict[str, Any]] = (), limit_s: float = FIRST_S
) -> Run:
    """Run a program under a schedule and record it; what it prints is kept, and it has nothing to read. Raises NotDone when it cannot be run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record"
        environment = _environment(path, {"record": [*watches]}, schedule)
        try:
            done = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                timeout=limit_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Run(problem=f"it did not end within {limit_s:.0f} s")
        except OSError as error:
            raise _not_started(command, error) from None
        lines = _lines(path)
    status = done.returncode if done.returncode >= 0 else 128 - done.returncode
    printed = done.stdout.decode("utf-8", "backslashreplace")
    if len(lines) != 1:
        what = "used no device, or did not end by itself" if not lines else "used devices in several processes"
        return Run(status, printed, problem=f"it {what}")
    return Run(status, printed, lines[0])


def _not_started(command: Sequence[str], error: OSError) -> NotDone:
    return NotDone(f"{command[0]} cannot be run: {error.strerror or error}")


def time_limit(took_s: float) -> float:
    """Return how long a replay of a program may take that took so long."""
    return max(LEAST_S, PATIENCE * took_s)


def _environment(path: Path, options: dict[str, Any], schedule: str | None) -> dict[str, str]:
    chosen = {} if schedule is None else {SCHEDULE: schedule}
    return os.environ | {VARIABLE: str(path), OPTIONS: json.dumps(options)} | chosen


def _lines(path: Path) -> list[Any]:
    """Return what each process has written."""
    return [*map(json.loads, path.read_text(encoding="utf-8").splitlines())] if path.exists() else []
