"""What computes the values of the simulated device on this machine: the C helpers, or NumPy with its BLAS library."""

from __future__ import annotations

import os


def helpers() -> str:
    """Return the form of the C helpers that is in use, and why when it is none."""
    from npu_model import native

    loaded = native.load()
    if loaded is not None:
        return "C, AVX2" if loaded.avx2 else "C, plain"
    if os.environ.get("LIBNPU_NATIVE") == "0":
        return "none, NumPy (LIBNPU_NATIVE=0)"
    return "none, NumPy (they are not in the cache and cannot be built: no gcc, or no private cache folder)"


def blas() -> str:
    """Return NumPy's BLAS library; with threadpoolctl, which tells, the processor too that its kernel is made for."""
    import numpy as np

    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        built = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        return f"{built['name']} {built['version']}"
    for library in threadpool_info():
        if library["user_api"] == "blas":
            kernel = library.get("architecture")
            return f"{library['internal_api']} {library['version']}" + (f", {kernel}" if kernel else "")
    return "none"
