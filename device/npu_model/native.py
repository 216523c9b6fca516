"""The C helpers, native.c and convolve.c: built with gcc on first use, kept in the user's cache, absent when that is not possible.

Callers ask `load()` and use NumPy when it answers None; both give the same bits. The library is built for the plain
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

from npu_model.cache import cache_folder, make_private

SOURCES = tuple(Path(__file__).with_name(name) for name in ("native.c", "convolve.c"))
HEADER = Path(__file__).with_name("native.h")
# Contraction would fuse a multiplication and an addition that the PPE rounds one by one.
FLAGS = ("-O3", "-std=gnu11", "-shared", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
_DECLARATIONS = """
struct npu_window {
    const uint8_t *act; int64_t stride_y, stride_x, in_y, in_x;
    int64_t kernel_y, kernel_x, step_y, step_x, dilation_y, dilation_x, first_y, first_x, out_x, channels;
    int32_t dtype, zero_point;
};
struct npu_ppe {
    const float *scale, *bias;
    float uniform_scale, uniform_bias, clamp_low, clamp_high, lrelu_slope, zero_point;
    int32_t fn, dtype;
};
struct npu_convolution {
    struct npu_window window; struct npu_ppe ppe;
    const uint8_t *weights; const float *table; uint8_t *out;
    int64_t pixels, columns, group_columns, first_column;
    double exact_below;
    int32_t weight_dtype, weight_zero_point, sums;
};
int npu_has_avx2(void);
void npu_f16_to_f32(const uint16_t *in, float *out, size_t n, int avx2);
void npu_f16_to_f64(const uint16_t *in, double *out, size_t n, int avx2);
void npu_f32_to_f16(const float *in, uint16_t *out, size_t n, int avx2);
int64_t npu_f16_infinities(const uint16_t *in, size_t n);
void npu_bf16_to_f32(const uint16_t *in, float *out, size_t n);
void npu_bf16_to_f64(const uint16_t *in, double *out, size_t n);
void npu_f32_to_bf16(const float *in, uint16_t *out, size_t n);
void npu_im2col(const struct npu_window *w, int64_t begin, int64_t end, void *out, int wide, int avx2);
void npu_depthwise(const struct npu_window *w, int64_t out_y, const double *weights, double *acc, double *rows,
                   int64_t row_count, int64_t *held, void *taps, int avx2);
void npu_norms(const double *m, int64_t rows, int64_t k, double *out, int avx2);
void npu_settle(double *acc, int64_t stride, const double *a, int64_t rows, const double *b,
                const double *b_norms, int64_t columns, int64_t k, double exact_below, int avx2);
void npu_ppe_run(const struct npu_ppe *p, const void *acc, int64_t acc_stride, int wide, int64_t rows, int64_t channels,
                 void *out, int64_t out_stride, int avx2);
void npu_eltwise(const struct npu_window *a, const struct npu_window *b, int product, const struct npu_ppe *p, uint8_t *out,
                 int avx2);
int64_t npu_convolve_scratch(const struct npu_convolution *c);
void npu_convolve(const struct npu_convolution *c, uint8_t *scratch);
"""


@dataclass(frozen=True, slots=True)
class Native:
    """The loaded library: `lib`'s functions take arrays through `pointer`; `avx2` is their last argument."""

    ffi: Any
    lib: Any
    avx2: int

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
    ffi.cdef(_DECLARATIONS)
    try:
        library = make_private(folder) / f"native-{_key()}.so"
        try:
            lib = ffi.dlopen(str(library))
        except OSError:  # not there, or not whole
            _build(library, compiler)
            lib = ffi.dlopen(str(library))
    except (OSError, subprocess.SubprocessError):
        return None
    return Native(ffi, lib, int(lib.npu_has_avx2()))


def _key() -> str:
    digest = hashlib.sha256()
    for source in (*SOURCES, HEADER):
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
            [compiler, *FLAGS, "-o", temporary, *map(str, SOURCES), "-lm"], check=True, capture_output=True, timeout=120
        )
        os.replace(temporary, library)
    finally:
        Path(temporary).unlink(missing_ok=True)
