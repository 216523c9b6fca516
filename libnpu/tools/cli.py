"""The `npu` command: its subcommands, its exit status and its errors. Each subcommand is a module of this package.

Exit status: 0 when it worked, 1 when it did not (one line on stderr, `npu: error: ...`), 2 for a wrong command line.
With --json a failure is an object on stdout too: `error.result` is its name in enum npu_result, or null, and `error.message`
the line. A failed check prints its report instead. A mistake of this software itself is a traceback.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

# Subcommand -> its module and the line about it. Modules are imported when their command is given.
COMMANDS = {
    "run": ("run", "run a model or a blob on a simulated device and say where the time went"),
    "compile": ("compile", "compile an ONNX model to a blob"),
    "opt": ("opt", "run single passes of the compiler, or show its levels"),
    "export": ("export", "write an ONNX model anew, with its weights at aligned places"),
    "mem-analyze": ("mem_analyze", "show which weights of an ONNX model lie at aligned places"),
    "sweep": ("sweep", "compile with each value of an option and say what each costs"),
    "compare": ("compare", "run a model in two ways and say what each costs"),
    "explain": ("explain", "explain how the device differs from others, with figures of runs"),
    "latency": ("latency", "run a model or a blob many times and say how long it takes and where the time goes"),
    "roofline": ("roofline", "run a model, a blob or one operation and show it under the roofs of memory and engines"),
    "monitor": ("monitor", "run a model or a blob and write how busy engines and memory were over time"),
    "top": ("top", "show a dashboard of utilisation, memory, credits and misses, of npud or of a run"),
    "power": ("power", "run a model or a blob and say what energy an inference takes"),
    "ddr-bandwidth": ("ddr_bandwidth", "load in several patterns and say what memory gives of what its pins could"),
    "burst": ("burst", "load a tile of an array, and say what its bursts move beside what was asked for"),
    "soc-diag": (
        "soc_diag",
        "show routers, links and credits between device and memory, and what the CPU's traffic costs",
    ),
    "kernels": ("kernels", "show the built-in kernels"),
    "launch-profile": ("launch_profile", "launch a built-in kernel and say how long each of the five steps takes"),
    "advise": ("advise", "say when to wait for launches, from measured ones or from the trace of a program"),
    "objdump": ("objdump", "show what is in a blob"),
    "info": ("info", "show hardware profiles and versions"),
    "smi": ("smi", "show who uses the device, and what it did"),
    "dump": ("dump", "show the state of driver and firmware"),
    "kmd": ("kmd", "show the parameters of the kernel module, or load it anew with others"),
    "fw": (
        "fw",
        "show the firmware that is installed, make an image of another release of it, or set priorities on the network on chip",
    ),
    "trace": ("trace", "run a program and show what it asks of the driver"),
    "check": ("check", "run a program and report what order between host, streams and memory it takes for granted"),
    "explore": ("explore", "run a program in all orders that may change its results, and say which results there are"),
    "museum": ("museum", "show and run programs with a bug of synchronisation each, and what the checker says of them"),
    "perf": ("perf", "run a program and show what the device's counters counted meanwhile"),
    "timeline": ("timeline_report", "analyse the trace file of a run, in our words or in those of others"),
}

# Where the layers define what they raise about their caller's input, and the name.
USER_ERRORS = (
    ("libnpu.tools.console", "ToolError"),
    ("libnpu.blob.image", "BlobError"),
    ("libnpu.compiler.frontend.source", "ModelError"),
    ("libnpu.compiler.lower.errors", "CompileError"),
    ("libnpu.compiler.options", "BadOption"),
    ("libnpu.kernels.params", "KernelArgumentError"),
    ("npu_model.profile", "ProfileError"),
    ("npu_model.vocabulary", "VocabularyError"),
    ("npu_model.memory", "MemorySystemError"),
)


class _Once(argparse.Action):
    """Store a value, and refuse a second one: which of two was meant, nobody knows."""

    given = False

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if self.given:
            raise argparse.ArgumentError(self, "given twice")
        self.given = True
        setattr(namespace, self.dest, values)


class _Parser(argparse.ArgumentParser):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register("action", None, _Once)  # the action of an argument that names none

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"npu: error: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: that of the process) and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except BrokenPipeError:  # the reader of a pipe has gone, and wants no message
        _close_stdout()
        return 1
    except KeyboardInterrupt:
        print("npu: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if not is_user_error(error):
            raise
        _report(error, as_json="--json" in arguments)
        from libnpu.tools.console import NotDone, UsageError

        return 2 if isinstance(error, (UsageError, NotDone)) else 1


def ddr_bandwidth_test() -> int:
    """Be the command of this name: `npu ddr-bandwidth` with the options of this process."""
    return main(["ddr-bandwidth", *sys.argv[1:]])


def npu_opt() -> int:
    """Be the command of this name: `npu opt` with the options of this process."""
    return main(["opt", *sys.argv[1:]])


def _report(error: Exception, as_json: bool) -> None:
    """Print a user error on stderr, and as JSON on stdout when that is wanted and no report stands there."""
    from npu_abi import C, name_of

    from libnpu.errors import NpuError
    from libnpu.tools.console import CheckFailed, print_json

    text, result = str(error), None
    if isinstance(error, NpuError):
        text, result = error.message, name_of("npu_result", error.result)
        if error.result == C.NPU_ERROR_NOT_SUPPORTED:
            text = f"not supported: {text}"
        elif error.result == C.NPU_ERROR_UNIMPLEMENTED:
            text = f"not implemented yet: {text}"
    elif isinstance(error, OSError):
        where = "standard output" if error.filename is None else error.filename or "an empty file name"
        text = f"{where}: {error.strerror}" if error.strerror else text
    elif isinstance(error, MemoryError):
        text = f"this machine has not enough memory: {text}" if text else "this machine has not enough memory"
    text = " ".join(text.split())
    print(f"npu: error: {text}", file=sys.stderr)
    if isinstance(error, OSError) and error.filename is None:
        _close_stdout()
    elif as_json and not isinstance(error, CheckFailed):
        print_json({"error": {"result": result, "message": text}})


def _close_stdout() -> None:
    """Send what is left in the buffer of stdout nowhere: it could not be written, and must not raise again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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

    Those are NpuError, the classes of `USER_ERRORS`, and what the machine refuses: OSError and MemoryError.
    """
    from libnpu.errors import NpuError

    # An error of a module that was not imported cannot have been raised.
    known = [getattr(sys.modules[module], name) for module, name in USER_ERRORS if module in sys.modules]
    return isinstance(error, (NpuError, OSError, MemoryError, *known))
