"""The headers, the C compiler and Python agree; the committed view and the golden dump are fresh."""

import re
import subprocess
from pathlib import Path

import pytest
from npu_abi import INCLUDE_DIR, _dump, _generate, codec, ioctl_request, pack, sizeof, view
from npu_driver.ioctls import TABLE

HEADERS = ("npu.h", "npu_hw.h", "npu_fw.h", "npu_blob.h", "npu_uapi.h")
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def gcc(tmp_path: Path, source: str, *flags: str, compiler: str = "gcc", suffix: str = ".c") -> Path:
    file = tmp_path / f"program{suffix}"
    file.write_text(source)
    out = tmp_path / "program"
    subprocess.run([compiler, *WARNINGS, f"-I{INCLUDE_DIR}", str(file), "-o", str(out), *flags], check=True)
    return out


def printed_by_c(tmp_path: Path, lines: list[str]) -> dict[str, int]:
    """Compile a program that prints each `NAME EXPRESSION` of `lines`, run it, return the values."""
    prints = "".join(
        f'    printf("%s %lld\\n", "{n}", (long long)({e}));\n' for n, e in (line.split(" ", 1) for line in lines)
    )
    includes = "".join(f'#include "{name}"\n' for name in HEADERS)
    program = gcc(
        tmp_path, f"#include <stddef.h>\n#include <stdio.h>\n{includes}int main(void)\n{{\n{prints}}}\n", "-std=c11"
    )
    output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.split() for line in output.splitlines())}


def test_sizes_and_offsets_are_the_compilers(tmp_path):
    expected, lines = {}, []
    for struct in _dump.structs():
        expected[struct] = sizeof(struct)
        lines.append(f"{struct} sizeof(struct {struct})")
        for field, offset, size, _ in _dump.fields(struct):
            expected[f"{struct}.{field}"] = offset
            expected[f"{struct}.{field}#"] = size
            lines.append(f"{struct}.{field} offsetof(struct {struct}, {field})")
            lines.append(f"{struct}.{field}# sizeof(((struct {struct} *)0)->{field})")
    assert printed_by_c(tmp_path, lines) == expected


def test_constants_are_the_compilers(tmp_path):
    constants = _dump.constants()
    assert printed_by_c(tmp_path, [f"{name} {name}" for name in constants]) == constants


def test_request_words_are_number_and_size(tmp_path):
    rows = [(request, row.name, row.struct) for request, row in TABLE.items()]
    lines = [f"{name} {name} | {f'sizeof(struct {struct}) << 16' if struct else '0'}" for _, name, struct in rows]
    assert printed_by_c(tmp_path, lines) == {name: request for request, name, _ in rows}
    assert ioctl_request(0x42, "npu_bo_create") == 0x42 | 24 << 16


def test_python_sees_every_structure_enumerator_and_function_of_the_headers():
    structs, names, functions = set(), set(), set()
    for header in HEADERS:
        text = re.sub(r"/\*.*?\*/", " ", (INCLUDE_DIR / header).read_text(), flags=re.S)
        structs |= set(re.findall(r"\bstruct (\w+) \{", text))
        for body in re.findall(r"\benum\s*\w*\s*\{(.*?)\}", text, flags=re.S):
            names |= {item.split("=")[0].strip() for item in body.split(",") if item.strip()}
        names |= set(re.findall(r"^#define (\w+)\s+(?:0x)?[0-9a-fA-F]+[uUlL]*\s*$", text, flags=re.M))
        functions |= set(re.findall(r"^NPU_API [^;]*?(\w+)\(", text, flags=re.M))
    assert set(_dump.structs()) == structs
    assert set(_dump.constants()) == names
    assert set(_dump.functions()) == functions


@pytest.mark.parametrize("struct", _dump.structs())
def test_structure_has_no_implicit_padding(struct):
    assert sum(size for _, _, size, _ in _dump.fields(struct)) == sizeof(struct)


@pytest.mark.parametrize("header", HEADERS)
def test_header_alone_is_c11_and_cpp17(tmp_path, header):
    source = f'#include "{header}"\n#include "{header}"\n'
    gcc(tmp_path, source, "-std=c11", "-fsyntax-only")
    gcc(tmp_path, source, "-std=c++17", "-fsyntax-only", compiler="g++", suffix=".cpp")


def test_public_header_is_c99_and_its_initialiser_works_in_cpp(tmp_path):
    source = "#include <npu.h>\nnpu_arg_t f(void *p);\nnpu_arg_t f(void *p)\n{\n    npu_arg_t a[] = {NPU_BUFFER(p)};\n    return a[0];\n}\n"
    gcc(tmp_path, source, "-std=c99", "-fsyntax-only")
    gcc(tmp_path, source, "-std=c++17", "-fsyntax-only", compiler="g++", suffix=".cpp")


def test_committed_view_is_fresh(tmp_path, capsys):
    _generate.generate(tmp_path / "_abi.py")
    assert (tmp_path / "_abi.py").read_text() == (INCLUDE_DIR / "_abi.py").read_text(), "run: make headers"


def test_golden_dump_is_fresh():
    golden = Path(__file__).with_name("abi.txt").read_text()
    assert _dump.text() == golden, "the ABI changed; run `make headers`, and commit tests/abi/abi.txt with the header"


def test_a_codec_names_members_and_skips_the_rest():
    layout = codec("npu_ipc_slot", "hdr.data_size", "msg.type", "msg.payload")
    assert layout.size == 192
    data = layout.pack(128, 0x2100, b"\1\2")
    slot = view("npu_ipc_slot", bytearray(data))
    assert (slot.hdr.data_size, slot.msg.type, slot.msg.payload[1], slot.msg.request_id) == (128, 0x2100, 2, 0)
    slot.hdr.reserved[0] = 7
    assert layout.unpack(pack(slot)) == (128, 0x2100, b"\1\2".ljust(112, b"\0"))


def test_a_codec_refuses_members_out_of_order():
    with pytest.raises(ValueError, match="head of struct npu_job_queue_header"):
        codec("npu_job_queue_header", "tail", "head")
