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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from libnpu.checker.watch import Checker

VARIABLE = "NPU_CHECK"  # a file to which a process appends what was found in it, a line of JSON


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


def obey_environment(getenv: Callable[[str], str | None] = os.environ.get) -> None:
    """Watch everything in this process from now on when NPU_CHECK asks for it, and write what was found when it ends."""
    path = getenv(VARIABLE)
    if not path:
        return
    from libnpu.runtime import observer

    if observer.current is None:
        from libnpu.at_end import at_end
        from libnpu.checker.watch import Checker

        observer.current = checker = Checker()
        pid = os.getpid()
        target = os.path.abspath(path)

        def write() -> None:
            if os.getpid() == pid:
                checker.finish()
                with open(target, "a", encoding="utf-8") as file:
                    file.write(json.dumps(checker.records()) + "\n")

        at_end(write)
