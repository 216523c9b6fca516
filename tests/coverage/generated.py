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


_WRAPPER = """
{result} __real_{name}({parameters});
{result} __wrap_{name}({parameters});
{result} __wrap_{name}({parameters}) {{ return noted("{name}", __real_{name}({arguments})); }}
"""


def wrapped_functions() -> list[Function]:
    """Return the functions that have a result."""
    return [function for function in functions(header_text()) if function.result == "npu_result_t"]


def wrappers() -> str:
    """Return the C text of a wrapper for each of them, which notes what it returns (ledger.c)."""
    text = '#include "ledger.h"\n#undef npu_submit_kernel\n'
    for function in wrapped_functions():
        text += _WRAPPER.format(
            result=function.result,
            name=function.name,
            parameters=", ".join(f"{p.ctype} {p.name}" for p in function.parameters) or "void",
            arguments=", ".join(p.name for p in function.parameters),
        )
    return text


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
