"""npu.h by itself: a C99 and a C++17 program that include nothing else compile without a warning and link with every function."""

import subprocess

import pytest

from libnpu.capi.header import functions, header_text

# The macro of the same name takes arguments, so the bare name is the function.
PROGRAM = """
#include <npu.h>
typedef void (*function_t)(void);
int main(void)
{{
    static const function_t all[] = {{
{addresses}
    }};
    npu_arg_t arguments[] = {{NPU_BUFFER(0), NPU_INT(-1), {{NPU_ARG_FLOAT, 0, 0}}}};
    kernel_params_t params = {{0, 0, 0, 1, 1, 1, 1}};
    size_t i, missing = 0;
    arguments[2].value = npu_float_bits(0.5f);
    for (i = 0; i < sizeof all / sizeof all[0]; i++)
        missing += all[i] == 0;
    if (npu_submit_kernel("relu", &params) != NPU_ERROR_NOT_INITIALIZED) /* the macro */
        missing++;
    return missing == 0 && sizeof all / sizeof all[0] == {count} && arguments[1].value == UINT64_MAX ? 0 : 1;
}}
"""


@pytest.mark.parametrize(("compiler", "standard", "suffix"), [("gcc", "c99", ".c"), ("g++", "c++17", ".cpp")])
def test_every_function_is_there_in_c99_and_cpp17(flags, tmp_path, compiler, standard, suffix):
    names = [function.name for function in functions(header_text())]
    cast = "(function_t){}" if suffix == ".c" else "reinterpret_cast<function_t>({})"
    addresses = "\n".join(f"        {cast.format(name)}," for name in names)
    source = tmp_path / f"program{suffix}"
    source.write_text(PROGRAM.format(addresses=addresses, count=len(names)))
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    subprocess.run([compiler, f"-std={standard}", *warnings, source, *flags, "-o", tmp_path / "program"], check=True)
    subprocess.run([tmp_path / "program"], check=True)
