"""The built-in kernels: SHAVE and DPU programs for run-time sizes, in the kernel library builtin.npu.

`catalogue` names them, `params` makes their arguments from the structures of npu.h, `build` makes the file. The programs are
written with the macro assembler of `assembler`.
"""

from __future__ import annotations

from importlib.resources import files

LIBRARY_NAME = "builtin"


def builtin_library() -> str:
    """Return where the built-in library's file is."""
    return str(files("libnpu.kernels") / "builtin.npu")
