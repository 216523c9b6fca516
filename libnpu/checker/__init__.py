"""The synchronisation detective: which order between host, streams and memory a program takes for granted.

    with libnpu.checker.check() as checker:
        ...  # open devices, do work
    print(checker.text())

`npu check -- PROGRAM` does it for a whole program, C or Python.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from libnpu.checker.guarded import Pages
    from libnpu.checker.watch import Checker

VARIABLE = "NPU_CHECK"  # a file to which a process appends what was found in it, a line of JSON
# JSON: "lint", "leaks", "guard", and "stop_unless", rows of suppressions, to end at the first certain finding; or "record", watches of a Recorder
OPTIONS = "NPU_CHECK_OPTIONS"


@contextmanager
def check(*, lint: bool = False, leaks: bool = False) -> Iterator[Checker]:
    """Watch the contexts that are made inside; what is found is in the checker's `findings`, complete at the end.

    `lint`: look for what costs time, too. `leaks`: and for what was never given back.
    """
    from libnpu.checker.watch import Checker
    from libnpu.runtime import observer

    checker = Checker(lint=lint, leaks=leaks)
    outer, observer.current = observer.current, checker
    try:
        yield checker
    finally:
        observer.current = outer
        checker.finish()


def obey_environment(getenv: Callable[[str], str | None] = os.environ.get, pages: Pages | None = None) -> None:
    """Watch everything in this process from now on when NPU_CHECK asks for it, and write what was found when it ends. `pages`: who
    guards pages of a program that uses them by address, if that is asked for.
    """
    path = getenv(VARIABLE)
    if not path:
        return
    from libnpu.runtime import observer

    if observer.current is None:
        from libnpu.at_end import at_end
        from libnpu.checker.recorder import Recorder
        from libnpu.checker.suppressions import Suppressions
        from libnpu.checker.watch import Checker
        from libnpu.runtime.hold import ENQUEUED

        options = json.loads(getenv(OPTIONS) or "{}")
        pid = os.getpid()
        target = os.path.abspath(path)

        def write() -> None:
            found = {
                "findings": checker.records(),
                "shared": checker.shared(),
                "enqueued": ENQUEUED,
                "told": checker.relies_on_telling,
            }
            content = checker.record() if isinstance(checker, Recorder) else found
            with open(target, "ab", buffering=0) as file:  # at once: several processes may end at a time
                file.write(json.dumps(content).encode() + b"\n")

        def end() -> None:
            if os.getpid() == pid:
                checker.finish()
                write()

        def stop(record: dict[str, Any]) -> None:
            if record["certain"] and not suppressions.covers(record):
                write()
                _flush()
                os._exit(1)

        stops = options.get("stop_unless")
        suppressions = Suppressions(stops or ())
        checker = (
            Recorder(options["record"])
            if "record" in options
            else Checker(
                lint=options.get("lint", False),
                leaks=options.get("leaks", False),
                guard=pages if options.get("guard", False) else None,
            )
        )
        checker.on_finding = None if stops is None else stop
        observer.current = checker
        at_end(end)


def _flush() -> None:
    """Let out what Python and C have in their buffers."""
    import ctypes
    import sys

    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    ctypes.CDLL(None).fflush(None)
