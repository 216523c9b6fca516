"""Programs that call every function of npu.h in the same way, made from the header so that a new function is in them."""

from __future__ import annotations

from libnpu.capi.build import NATIVE
from libnpu.capi.header import Function, functions, header_text

_BEFORE_INIT = """/* generated: no function but npu_init works before it */
#include "expect.h"
#undef npu_submit_kernel
int main(void)
{
CALLS    return failures != 0;
}
"""
_IN_HOST_FUNCTION = """/* generated: a host function may call nothing of the library */
#include "expect.h"
#undef npu_submit_kernel
static void call_everything(void *unused)
{
    (void)unused;
CALLS}
int main(int argc, char **argv)
{
    (void)argc;
    begin(argv);
    OK(npu_stream_add_host_function(NULL, call_everything, NULL));
    OK(npu_synchronize_stream(NULL));
    return finish();
}
"""


def called_functions() -> list[Function]:
    """Return the functions that need a library that runs."""
    return [function for function in functions(header_text()) if function.name not in NATIVE]


def before_init() -> str:
    """Return a C program that expects NOT_INITIALIZED of every function."""
    calls = [_call("NPU_ERROR_NOT_INITIALIZED", f) for f in called_functions() if f.name != "npu_init"]
    return _BEFORE_INIT.replace("CALLS", "".join(calls))


def in_host_function() -> str:
    """Return a C program that expects NOT_PERMITTED of every function."""
    return _IN_HOST_FUNCTION.replace("CALLS", "".join(_call("NPU_ERROR_NOT_PERMITTED", f) for f in called_functions()))


def _call(result: str, function: Function) -> str:
    return f"    expect({result}, {function.name}({', '.join('0' for _ in function.parameters)}));\n"
