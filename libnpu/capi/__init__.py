"""The C API: npu.h, from a C program into this library's Python.

    program ──npu_malloc()──► embed.c wrapper (npu_enter, npu_leave: errors.c, shield.c) ──extern "Python"──► entry.py ──► calls_*.py ──► libnpu.runtime
                                  │ first npu_init: start.c starts Python                           │
                                  └───────────── door.c: the program's memory ◄─────────────────────┘

`build.py` makes libnpu.so from npu.h and the C files here; `config.py` is `npu-config`, which tells compilers about it.
"""
