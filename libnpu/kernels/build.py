"""`python -m libnpu.kernels.build` writes builtin.npu, the library that ships with the package, and prints code sizes."""

from __future__ import annotations

from pathlib import Path

from libnpu.blob import kernel_library, read
from libnpu.kernels import LIBRARY_NAME, builtin_library
from libnpu.kernels.catalogue import sources


def build() -> bytes:
    """Return the file of the built-in library."""
    return kernel_library(LIBRARY_NAME, sources())


def main() -> None:
    """Write the file beside this module."""
    data = build()
    Path(builtin_library()).write_bytes(data)
    for kernel in read(data).kernels:
        print(f"{kernel.name:20} {kernel.code_bytes:6} bytes")


if __name__ == "__main__":
    main()
