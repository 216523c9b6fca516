"""The C helpers, native.c, convolve.c and memory*.c: built with gcc on first use, kept in the user's cache, absent when that is not possible.

They are declared in native.h and memory.h, which cffi reads: nothing of it is typed again. Callers ask `load()` and use NumPy when it answers None; both give the same bits (the memory path alone has no other form). The library is built for the plain
instruction set of the machine and picks vector forms at run time, so a cache that travels stays safe.
LIBNPU_NATIVE=0 in the environment turns it off.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from npu_abi import INCLUDE_DIR
from npu_abi._generate import declarations

from npu_model.cache import cache_folder, make_private

SOURCES = tuple(
    Path(__file__).with_name(name)
    for name in ("native.c", "convolve.c", "memory.c", "memory_clients.c", "memory_ddr.c", "memory_noc.c")
)
SHARED = Path(__file__).with_name("memory_state.h")
HEADERS = tuple(Path(__file__).with_name(name) for name in ("native.h", "memory.h"))
# Contraction would fuse a multiplication and an addition that the PPE rounds one by one.
FLAGS = ("-O3", "-std=gnu11", "-shared", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")


@dataclass(frozen=True, slots=True)
class Native:
    """The loaded library: `lib`'s functions take arrays through `pointer`; `avx2` is their last argument.

    `avx512` is for convolutions alone.
    """

    ffi: Any
    lib: Any
    avx2: int
    avx512: int = 0

    def pointer(self, ctype: str, array: Any) -> Any:
        """Return a C-contiguous NumPy array as `ctype`, "double[]" and so on; alive as long as the result."""
        return self.ffi.from_buffer(ctype, array)


@cache
def load() -> Native | None:
    """Return the helpers of this process, built if the cache lacks them; None without gcc, or when turned off."""
    if os.environ.get("LIBNPU_NATIVE") == "0" or sys.byteorder != "little":
        return None
    return build_and_load(cache_folder())


def build_and_load(folder: Path, compiler: str | None = None) -> Native | None:
    """Return the helpers from the cache `folder`, or None when it is not private, or lacks them and they cannot be built."""
    from cffi import FFI

    ffi = FFI()
    for header in HEADERS:
        ffi.cdef(declarations(header.read_text()))
    try:
        library = make_private(folder) / f"native-{_key()}.so"
        try:
            lib = ffi.dlopen(str(library))
        except OSError:  # not there, or not whole
            _build(library, compiler)
            lib = ffi.dlopen(str(library))
    except (OSError, subprocess.SubprocessError):
        return None
    return Native(ffi, lib, int(lib.npu_has_avx2()), int(lib.npu_has_avx512()))


def _key() -> str:
    digest = hashlib.sha256()
    for source in (*SOURCES, SHARED, *HEADERS, INCLUDE_DIR / "npu.h"):
        digest.update(source.read_bytes())
    digest.update(repr((FLAGS, sys.implementation.cache_tag, platform.machine(), platform.libc_ver())).encode())
    return digest.hexdigest()[:24]


def _build(library: Path, compiler: str | None) -> None:
    """Compile into a temporary file beside `library` and rename: other processes see all of it or nothing."""
    compiler = compiler or shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise FileNotFoundError("no gcc")
    handle, temporary = tempfile.mkstemp(suffix=".so", dir=library.parent)
    os.close(handle)
    try:
        subprocess.run(
            [compiler, *FLAGS, f"-I{INCLUDE_DIR}", "-o", temporary, *map(str, SOURCES), "-lm"],
            check=True,
            capture_output=True,
            timeout=120,
        )
        os.replace(temporary, library)
    finally:
        Path(temporary).unlink(missing_ok=True)
