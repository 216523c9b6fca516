"""The `npu` command: its subcommands, its exit status and its errors. Each subcommand is a module of this package.

Exit status: 0 when it worked, 1 when it did not (one line on stderr, `npu: error: ...`), 2 for a wrong command line.
A mistake of this software itself is a traceback.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

# Subcommand -> its module and the line about it. Modules are imported when their command is given.
COMMANDS = {
    "run": ("run", "run a model or a blob on a simulated device and say where the time went"),
    "compile": ("compile", "compile an ONNX model to a blob"),
    "sweep": ("sweep", "compile with each value of an option and say what each costs"),
    "objdump": ("objdump", "show what is in a blob"),
    "info": ("info", "show hardware profiles and versions"),
    "timeline": ("timeline_report", "analyse the trace file of a run"),
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"npu: error: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: that of the process) and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except BrokenPipeError:
        # The reader of a pipe has gone; what is left in the buffer must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("npu: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if not is_user_error(error):
            raise
        text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        print(f"npu: error: {' '.join(text.split())}", file=sys.stderr)
        return 1


def _dispatch(arguments: list[str]) -> int:
    parser = _Parser(prog="npu", description="A complete NPU software stack that runs without an NPU.")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    wanted = next((word for word in arguments if not word.startswith("-")), None)
    for name, (module_name, summary) in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == wanted:
            module = importlib.import_module(f"libnpu.tools.{module_name}")
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    options = parser.parse_args(arguments)
    if options.version:
        import libnpu

        print(f"npu {libnpu.__version__}")
        return 0
    if options.command is None:
        parser.print_help()
        return 2
    status: int = options.run(options)
    sys.stdout.flush()
    return status


def is_user_error(error: Exception) -> bool:
    """Tell whether `error` speaks of the caller's input or of a limit, and not of a bug.

    Those are NpuError and what the layers raise as their own kind of ValueError (BlobError, ProfileError, the compiler's).
    """
    from libnpu.errors import NpuError

    return isinstance(error, NpuError | OSError) or (
        isinstance(error, ValueError) and type(error).__module__ != "builtins"
    )
