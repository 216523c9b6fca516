"""Make `_abi.py`, cffi's compiled view of the headers, from the headers.

Run `python -m npu_abi._generate` after changing a header; a test compares the committed file with a fresh one.
cffi reads plain declarations only, so comments, preprocessor lines and static asserts are removed first;
`#define NAME literal` lines are kept, since cffi turns them into constants. Blocks for C++ only (`#ifdef __cplusplus`), inline
functions (one line each) and the export mark NPU_API go too.
"""

import re
from pathlib import Path

HEADERS = ("npu.h", "npu_hw.h", "npu_fw.h", "npu_blob.h", "npu_uapi.h")  # what others include comes first
FOLDER = Path(__file__).parent


def declarations(text: str) -> str:
    """Reduce header `text` to what cffi's parser accepts."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"//[^\n]*", " ", text)
    text = re.sub(r"^[ \t]*#\s*ifdef\s+__cplusplus\b.*?^[ \t]*#\s*endif", "", text, flags=re.S | re.M)
    text = re.sub(r"^NPU_API\s+", "", text, flags=re.M)
    text = re.sub(r"^static inline .*$", "", text, flags=re.M)
    text = re.sub(r"_Static_assert\s*\(.*?\)\s*;", " ", text)
    lines = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            match = re.match(r"\s*#define\s+(\w+)\s+(0x[0-9a-fA-F]+|\d+)[uUlL]*\s*$", line)
            if not match:
                continue
            line = f"#define {match[1]} {match[2]}"
        lines.append(line.rstrip())
    return "\n".join(line for line in lines if line)


def source() -> str:
    """Return the text of all headers, ready for `FFI.cdef`."""
    present = [name for name in HEADERS if (FOLDER / name).exists()]
    return "\n".join(declarations((FOLDER / name).read_text()) for name in present)


def generate(target: Path) -> None:
    """Write cffi's out-of-line ABI-mode module for the headers to `target`."""
    from cffi import FFI

    builder = FFI()
    builder.cdef(source())
    builder.set_source("npu_abi._abi", None)
    builder.emit_python_code(str(target))


if __name__ == "__main__":
    generate(FOLDER / "_abi.py")
