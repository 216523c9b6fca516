"""`npu-config`: how to compile and link a C program with libnpu.

    gcc prog.c $(npu-config --cflags --libs)
    PKG_CONFIG_PATH=$(npu-config --pkg-config) pkg-config --cflags --libs libnpu

The library is built on the first use of `--libs`, `--libdir`, `--pkg-config` or `--selftest`. One line on standard output; an error is one line on standard
error and exit status 1.
"""

from __future__ import annotations

import shlex
import sys

import npu_abi
from npu_abi import INCLUDE_DIR, C

from libnpu.capi.build import BuildError, library_folder, run_path

USAGE = """usage: npu-config [--cflags] [--libs] [--includedir] [--libdir] [--pkg-config] [--version] [--selftest] [--help]

  --cflags      compiler flags: where npu.h is
  --libs        linker flags: libnpu.so, and where the program finds it at run time
  --includedir  the folder of npu.h
  --libdir      the folder of libnpu.so
  --pkg-config  the folder of libnpu.pc, for PKG_CONFIG_PATH
  --version     the version of npu.h
  --selftest    start the library in this process, and say what is wrong when it does not
"""


def main(arguments: list[str] | None = None) -> int:
    """Print what `arguments` (default: the command line) ask for. Returns the exit status."""
    options = sys.argv[1:] if arguments is None else arguments
    if not options or "--help" in options:
        print(USAGE, end="", file=sys.stdout if options else sys.stderr)
        return 0 if options else 2
    try:
        words = [word for option in options for word in _answer(option)]
    except BuildError as error:
        print(f"npu-config: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"npu-config: {error.filename or 'operating system'}: {error.strerror or error}", file=sys.stderr)
        return 1
    print(" ".join(words))
    return 0


def _answer(option: str) -> list[str]:
    if option == "--version":
        return [f"{C.NPU_VERSION_MAJOR}.{C.NPU_VERSION_MINOR}"]
    if option == "--includedir":
        return [str(INCLUDE_DIR)]
    if option == "--cflags":
        return [shlex.quote(f"-I{INCLUDE_DIR}")]
    if option == "--libdir":
        return [str(library_folder())]
    if option == "--pkg-config":
        folder = library_folder()
        if "," in str(
            folder
        ):  # pkg-config drops all but the first of several -Xlinker, by which --libs names such a folder
            raise BuildError(f"{folder} has a comma, which -Wl cannot take: set XDG_CACHE_HOME to another folder")
        return [str(folder)]
    if option == "--libs":
        folder = library_folder()
        return [shlex.quote(word) for word in (f"-L{folder}", "-lnpu", *run_path(folder))]
    if option == "--selftest":
        return [selftest()]
    raise BuildError(f"unknown option {option}; npu-config --help lists them")


def selftest() -> str:
    """Load the library into this process, start and end it; return "ok". Raises BuildError, with the library's reason."""
    library = npu_abi.ffi.dlopen(str(library_folder() / "libnpu.so"))
    if library.npu_init(0) != C.NPU_SUCCESS:
        detail = npu_abi.new("npu_error_detail", size=npu_abi.sizeof("npu_error_detail"))
        library.npu_get_last_error_detail(detail)
        raise BuildError(npu_abi.ffi.string(detail.message).decode("utf-8", "replace"))
    library.npu_shutdown()
    return "ok"


if __name__ == "__main__":
    sys.exit(main())
