"""Build libnpu.so for the Python that runs this, once, into a cache.

    npu.h ──header.py──► embed.c, results.c, paths.h (generated) + start.c, shield.c, errors.c, door.c, pages.c, coverage.c ──gcc──► CACHE/KEY/libnpu.so

and beside it libnpu.pc, for pkg-config.

KEY is a digest over the interpreter and everything that the library is made from. A build happens in a folder of its own, which then gets its final
name in one step: builds may run at the same time, and nobody sees half a library.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from npu_abi import INCLUDE_DIR, C, enum
from npu_model.cache import cache_folder, make_private

from libnpu.capi.header import Function, functions, header_text, plain, python_declaration, results

SOURCES = Path(__file__).parent
DIGEST = "libnpu.so.sha256"  # beside it, written last
C_FILES = ("start.c", "shield.c", "errors.c", "door.c", "pages.c", "coverage.c")
# The functions of npu.h that errors.c has: they work without Python.
NATIVE = (
    "npu_get_last_error",
    "npu_peek_last_error",
    "npu_get_error_name",
    "npu_get_error_string",
    "npu_get_last_error_detail",
    "npu_get_version",
    "npu_get_counter_name",
)
# Packages whose folders the library adds to sys.path when the process brought a Python that lacks them.
PACKAGES = (
    "libnpu",
    "npu_abi",
    "npu_driver",
    "npu_firmware",
    "npu_device",
    "npu_model",
    "cffi",
    "_cffi_backend",
    "numpy",
    "msgspec",
)


class BuildError(Exception):
    """The library cannot be built; the message names what is missing and the package that brings it."""


def source_digest() -> str:
    """Return the digest over the header and the sources that the library is made from (hexadecimal)."""
    digest = hashlib.sha256(header_text().encode())
    for name in (*C_FILES, "library.h", "header.py", "build.py"):
        digest.update((SOURCES / name).read_bytes())
    return digest.hexdigest()


def library_folder() -> Path:
    """Return the folder that has libnpu.so for this interpreter and these sources; build it when it is not there, or not whole.

    Raises BuildError.
    """
    import cffi

    facts = (
        sys.prefix,
        sys.base_prefix,
        sys.version,
        cffi.__version__,
        source_digest(),
        __file__,
    )
    cache = cache_folder()
    try:
        make_private(cache)
    except PermissionError as error:
        raise BuildError(f"the cache folder {cache} cannot be used: {error.strerror}") from None
    except OSError as error:
        raise BuildError(f"cannot make the cache folder {cache}: {error.strerror}") from None
    folder = cache / hashlib.sha256("\0".join(facts).encode()).hexdigest()[:24]
    if not is_whole(folder):
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="build-") as scratch:
            work = Path(scratch) / "library"
            work.mkdir()
            compile_library(work)
            (work / "libnpu.pc").write_text(package_file(folder), encoding="utf-8")
            (work / DIGEST).write_text(_digest_of(work), encoding="ascii")
            if folder.exists() and not is_whole(folder):
                folder.rename(Path(scratch) / "damaged")
            with contextlib.suppress(OSError):  # someone else was faster, with a library as good
                work.rename(folder)
        if not is_whole(folder):
            raise BuildError(f"{folder} cannot be written: the library that was built is not there")
    return folder


def is_whole(folder: Path) -> bool:
    """Return whether `folder` has a libnpu.so, as it was built."""
    try:
        return (folder / DIGEST).read_text(encoding="ascii") == _digest_of(folder)
    except (OSError, UnicodeDecodeError):
        return False


def _digest_of(folder: Path) -> str:
    return hashlib.sha256((folder / "libnpu.so").read_bytes()).hexdigest()


def package_file(folder: Path) -> str:
    """Return the text of libnpu.pc for a library in `folder`."""

    def quoted(path: Path) -> str:
        return re.sub(r"([^\w/.+:@%-])", r"\\\1", str(path))

    return f"""includedir={quoted(INCLUDE_DIR)}
libdir={quoted(folder)}

Name: libnpu
Description: an NPU software stack that runs without an NPU
Version: {C.NPU_VERSION_MAJOR}.{C.NPU_VERSION_MINOR}
Cflags: -I${{includedir}}
Libs: -L${{libdir}} -lnpu -Wl,-rpath,${{libdir}}
"""


def run_path(folder: Path) -> list[str]:
    """Return the compiler's flags for a program that finds its libraries in `folder`. Raises BuildError when it cannot be named."""
    if ":" in str(folder):
        raise BuildError(f"{folder} has a colon, and run paths end at one: set XDG_CACHE_HOME to another folder")
    return ["-Xlinker", "-rpath", "-Xlinker", str(folder)]  # -Wl would cut it at commas


def compile_library(folder: Path) -> None:
    """Write generated sources and libnpu.so into `folder`. Raises BuildError."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise BuildError("no C compiler: install gcc (apt-get install gcc)")
    include = sysconfig.get_path("include")
    if not Path(include, "Python.h").exists():
        raise BuildError(f"no Python.h in {include}: install Python's headers (apt-get install python3-dev)")
    generate(folder)
    command = [
        compiler,
        "-std=gnu11",
        "-O2",
        "-g",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-pthread",
        "-Wall",
        "-Wno-unused",
    ]
    command += [f"-I{path}" for path in (folder, SOURCES, INCLUDE_DIR, include)]
    command += [str(folder / "embed.c"), str(folder / "results.c"), *(str(SOURCES / name) for name in C_FILES)]
    command += [
        "-o",
        str(folder / "libnpu.so"),
        "-Wl,-soname,libnpu.so",
        "-Wl,-z,nodelete,-z,defs",
        "-Wl,--disable-new-dtags",
    ]
    problem = ""
    libraries = python_libraries()
    for library in libraries:
        run = subprocess.run(
            [*command, *_link_flags(library), "-ldl", "-lm"], capture_output=True, text=True, check=False
        )
        if run.returncode == 0:
            return
        said = run.stderr.strip() or f"nothing, and ends with status {run.returncode}"
        problem = next((line.strip() for line in said.splitlines() if "error" in line), said)
    if all(library.suffix == ".a" for library in libraries):
        raise BuildError(
            "no libpython as a shared or position-independent library: install it (apt-get install libpython3-dev)"
            + (f"; gcc says: {problem}" if problem else "")
        )
    raise BuildError(f"{compiler} failed and says: {problem}")


def _link_flags(library: Path) -> list[str]:
    if library.suffix != ".a":
        return [str(library), *run_path(library.parent)]
    variables = map(sysconfig.get_config_var, ("LIBS", "SYSLIBS", "MODLIBS"))
    system = [flag for text in variables for flag in str(text or "").split() if flag.startswith("-l")]
    return ["-Wl,--whole-archive", str(library), "-Wl,--no-whole-archive", *system]


def python_libraries() -> list[Path]:
    """Return what can be linked as libpython, best first: the shared library, then archives."""
    var: Callable[[str], Any] = sysconfig.get_config_var
    names = [var("INSTSONAME"), var("LDLIBRARY")] if var("Py_ENABLE_SHARED") else []
    names += [f"libpython{var('LDVERSION')}-pic.a", var("LIBRARY")]
    libdir = var("LIBDIR") or ""
    folders = [libdir, os.path.join(libdir, var("MULTIARCH") or ""), var("LIBPL") or ""]
    found = [Path(folder, name) for name in names if name for folder in folders if folder]
    return [path for path in found if path.exists()]


def generate(folder: Path) -> None:
    """Write embed.c, results.c and paths.h into `folder`."""
    from cffi import FFI

    text = header_text()
    wrapped = [function for function in functions(text) if function.name not in NATIVE]
    builder = FFI()
    builder.embedding_api("")
    builder.cdef(
        "typedef int32_t npu_result_t;\n"
        + "".join(f'extern "Python" {python_declaration(function)};\n' for function in wrapped)
        + 'extern "Python" void py_exit(void);\n'
        + 'extern "Python" void py_thread_ends(void);\n'
        + "void npu_call_function(uintptr_t function, uintptr_t argument);\n"
        + "void npu_report_for_duty(void);\n"
        + "void npu_set_reason(const char *text);\n"
        + "void npu_set_error(const char *message, uint64_t enqueue_site, uint64_t job_id);\n"
        + "uint64_t npu_call_site(void);\n"
        + "int npu_copy_from_user(void *destination, uintptr_t source, size_t size);\n"
        + "int npu_copy_to_user(uintptr_t destination, const void *source, size_t size);\n"
        + "int npu_probe_user(uintptr_t address, size_t size);\n"
        + "enum { NPU_FAULT_STORE = 2 };\n"
        + "struct npu_fault { uint64_t address; uint32_t access, in_function; uint64_t sites[...]; };\n"
        + "int npu_guard_pages(uint64_t key, uintptr_t address, size_t size, int readable);\n"
        + "void npu_give_up_pages(uint64_t key);\n"
        + "size_t npu_take_faults(struct npu_fault *out, size_t most);\n"
        + "char *getenv(const char *name);\n"
    )
    declarations = {function.name: python_declaration(function) for function in wrapped}
    builder.embedding_init_code(f"""
from _libnpu import ffi, lib
try:
    from importlib.util import find_spec
    for name in {PACKAGES!r}:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"the Python package {{name}} is not installed")
    from libnpu.capi.entry import start
    start(ffi, lib, {declarations!r})
except BaseException as error:
    lib.npu_set_reason(f"{{type(error).__name__}}: {{error}}".encode("utf-8", "replace"))
""")
    builder.set_source("_libnpu", _embed_source(wrapped))
    with contextlib.redirect_stdout(io.StringIO()):  # cffi reports to stdout, which is npu-config's answer
        builder.emit_c_code(str(folder / "embed.c"))
    (folder / "results.c").write_text(_results_source(text), encoding="utf-8")
    (folder / "paths.h").write_text(_paths_source(), encoding="utf-8")


def _embed_source(wrapped: list[Function]) -> str:
    parts = [
        '#include "library.h"\n#undef npu_submit_kernel\n',  # a macro of npu.h covers the function
        "static int on_duty;\n",
        "static void npu_report_for_duty(void) { on_duty = 1; }\n",
        "static void py_exit(void);\n",
        "static void py_thread_ends(void);\n",
        "void npu_embed_thread_ends(void) { py_thread_ends(); }\n",
        "static int cffi_start_python(void);\n",
        "int npu_embed_start(void) { return cffi_start_python() < 0 || !on_duty ? -1 : 0; }\n",
        "void npu_embed_exit(void) { py_exit(); }\n",
    ]
    for function in wrapped:
        assert function.result == "npu_result_t", f"{function.name}: only functions with a result can be in Python"
        arguments = ", ".join(
            f"({'uintptr_t' if p.is_pointer else plain(p.ctype)}){p.name}" for p in function.parameters
        )
        parameters = ", ".join(f"{p.ctype} {p.name}" for p in function.parameters)
        parts.append(f"""
static {python_declaration(function)};
npu_result_t {function.name}({parameters or "void"})
{{
    struct npu_shield shield;
    npu_result_t result = npu_enter(&shield, "{function.name}", __builtin_return_address(0), {int(function.name == "npu_init")});
    if (result == NPU_SUCCESS)
        result = py_{function.name}({arguments});
    return npu_leave(&shield, result);
}}
""")
    return "".join(parts)


def _results_source(text: str) -> str:
    names = (counter.name.removeprefix("NPU_PMU_") for counter in enum("npu_pmu") if counter != C.NPU_PMU_COUNT)
    counters = "".join(f"    {json.dumps(name)},\n" for name in names)
    rows = "".join(f"    {{{r.name}, {json.dumps(r.name)}, {json.dumps(r.text)}}},\n" for r in results(text))
    return (
        '#include "library.h"\n'
        f"const struct npu_result_text npu_result_texts[] = {{\n{rows}}};\n"
        "const size_t npu_result_text_count = sizeof npu_result_texts / sizeof npu_result_texts[0];\n"
        f"const char *const npu_counter_names[] = {{\n{counters}}};\n"
        "const size_t npu_counter_count = sizeof npu_counter_names / sizeof npu_counter_names[0];\n"
    )


def _paths_source() -> str:
    shared = [path for path in python_libraries() if path.suffix != ".a"]
    folders = sorted({str(Path(origin).parent) for origin in map(_origin, PACKAGES)})
    code = f"import sys\nsys.path += [p for p in {folders!r} if p not in sys.path]\nimport _cffi_backend\n"
    values = {
        "NPU_PYTHON": sys.executable,
        "NPU_STDLIB": str(Path(sysconfig.get_path("stdlib"), "os.py")),
        "NPU_LIBPYTHON": str(shared[0]) if shared else "",
        "NPU_PACKAGE": str(SOURCES / "entry.py"),
        "NPU_PATH_CODE": code,
    }
    return "".join(f"#define {name} {_c_string(value)}\n" for name, value in values.items())


def _origin(package: str) -> str:
    """Return the folder of a package, or the file of a module."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.origin:
        raise BuildError(f"the Python package {package} is not installed in {sys.prefix}")
    return str(Path(spec.origin).parent) if spec.submodule_search_locations else spec.origin


def _c_string(text: str) -> str:
    """Return `text` as a C string literal (octal escapes end by themselves, hexadecimal ones do not)."""
    return (
        '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in os.fsencode(text)) + '"'
    )
