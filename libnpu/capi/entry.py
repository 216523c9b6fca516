"""Where C enters Python: connects each function of npu.h to the Python function of its name, and turns exceptions into results.

Called once, by the start code inside libnpu.so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from threading import get_ident
from types import ModuleType
from typing import Any

from npu_abi import C

from libnpu.at_end import write_reports
from libnpu.capi import (
    calls_context,
    calls_copy,
    calls_device,
    calls_event,
    calls_graph,
    calls_host,
    calls_ipc,
    calls_kernel,
    calls_launch,
    calls_memory,
    calls_profile,
    calls_stream,
)
from libnpu.capi.door import Door
from libnpu.capi.header import functions, header_text, python_declaration
from libnpu.capi.library import Library
from libnpu.capi.pages import Pages
from libnpu.capi.refusal import Refusal
from libnpu.capi.reports import result_of
from libnpu.errors import NpuError
from libnpu.runtime import host_functions, observer
from libnpu.runtime.host_threads import HOST

MODULES: tuple[ModuleType, ...] = (
    calls_device,
    calls_context,
    calls_memory,
    calls_copy,
    calls_stream,
    calls_event,
    calls_ipc,
    calls_kernel,
    calls_launch,
    calls_graph,
    calls_host,
    calls_profile,
)


def start(ffi: Any, lib: Any, declarations: dict[str, str]) -> None:
    """Connect the functions of npu.h and report for duty. `declarations`: what libnpu.so was built with, by function.

    An older libnpu.so may lack functions that npu.h has by now; that is fine. Raises RuntimeError when one that it has means something else.
    """

    def getenv(name: str) -> str | None:
        # Not os.environ, which is from when Python started.
        value = lib.getenv(name.encode())
        return os.fsdecode(ffi.string(value)) if value else None

    library = Library(Door(ffi, lib), Pages(ffi, lib), lib.npu_call_site, getenv)
    known = {function.name: python_declaration(function) for function in functions(header_text())}
    for name, declaration in declarations.items():
        if known.get(name) != declaration:
            raise RuntimeError(f"libnpu.so was built for another npu.h ({name} differs): run npu-config again")
        call = _guard(library, lib, _implementation(name))
        ffi.def_extern(name=f"py_{name}", error=int(C.NPU_ERROR_INTERNAL))(call)
    ffi.def_extern(name="py_exit")(_exit(library))
    ffi.def_extern(name="py_thread_ends")(host_functions.thread_ends)
    lib.npu_report_for_duty()


def _implementation(name: str) -> Callable[..., int | None]:
    for module in MODULES:
        if name in vars(module):
            found: Callable[..., int | None] = getattr(module, name)
            return found
    raise AssertionError(f"npu.h has {name}, and no module of the library does")


def _guard(library: Library, lib: Any, function: Callable[..., int | None]) -> Callable[..., int]:
    """Return `function` as C calls it: one call at a time, initialised, with a result instead of exceptions.

    An exception that is neither a refusal nor the runtime's is a defect: cffi prints it and the call returns NPU_ERROR_INTERNAL.
    """
    name = function.__name__
    starts = name == "npu_init"
    of_team = name in calls_host.TEAM_CALLS  # they see to the turns themselves, and the owner of a team may make them
    host = HOST

    def call(*arguments: int) -> int:
        ident = get_ident()
        if host.solo != ident:
            host.arrive()
        with host.lock:
            me = node = mark = None
            try:
                host.has_arrived()
                if observer.current is not None:
                    observer.current.called()
                if host.solo != ident and not (of_team and not host.in_function):
                    host.check_permitted()
                    node = library.node
                    if node is not None:
                        me = host.enter(node, name)
                if not library.users and not starts:
                    raise Refusal(
                        "NPU_ERROR_NOT_INITIALIZED",
                        "npu_init has not been called, or npu_shutdown has ended the library",
                    )
                if host.call_log is not None and library.node is not None:
                    mark = host.call_log.begin(library.node, name)
                return function(library, *arguments) or 0
            except Exception as error:
                if observer.current is not None and library.node is not None and isinstance(error, NpuError):
                    observer.current.refused(library.node, name, error)
                report = result_of(error)
                if report is None:
                    lib.npu_set_error(b"a defect of the library; its traceback is on standard error", 0, 0)
                    raise
                message = report.message.encode("utf-8", "replace")
                lib.npu_set_error(message, report.enqueue_site, report.job_id)
                return report.result
            finally:
                if mark is not None:
                    mark.end()
                if me is not None and node is not None:
                    host.leave(me, node)

    return call


def _exit(library: Library) -> Callable[[], None]:
    def leave() -> None:
        if HOST.lock.acquire(timeout=1):  # a thread that is still inside keeps what it has
            try:
                HOST.check_permitted()
                try:
                    library.close()
                finally:
                    write_reports()
            except NpuError:
                pass  # a host function ends the process, or a device is lost: nothing outlives the process anyway
            finally:
                HOST.lock.release()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()

    return leave
