"""Text form -> BlobImage: the inverse of `text.disassemble`. Every mistake is a BlobError that begins with the line number."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, NoReturn

import npu_abi
import numpy as np
from npu_abi import C
from npu_model import dtypes, shave_isa

from libnpu.blob import elf
from libnpu.blob.image import TASK_SECTIONS, BlobError, BlobImage, IoTensor, Kernel, KernelParam, Relocation

if TYPE_CHECKING:
    from collections.abc import Mapping

_STRING = r'"(?:[^"\\]|\\.)*"'
_SYMBOL = re.compile(rf"@({_STRING}|[\w.]+)([+-]0x[0-9a-f]+|[+-]\d+)?")
_WORD = re.compile(rf"\s*(\w+)=(@(?:{_STRING}|[\w.]+)(?:[+-]\w+)?|[^\s#]+)")
_KERNEL = re.compile(rf"kernel\s+({_STRING})\s+text=(0x[0-9a-f]+)\s+bytes=(\d+)\s+max_grid=(\d+)\s+flags=(\d+)")
_PARAM = re.compile(rf"param\s+({_STRING})\s+(\w+)\s+(\w+)\s+(\w+)")
_HEAD = re.compile(rf"(blob|profile|input|output)\s+({_STRING})\s*(.*)")
_RESOURCES = {
    "tiles": "tile_count",
    "cmx_bytes": "cmx_bytes",
    "barriers": "barrier_count",
    "scratch_bytes": "scratch_bytes",
    "macs": "macs",
}


def assemble(source: str, weights: bytes | None = None) -> BlobImage:
    """Return the image whose text form is `source`.

    `weights` are the constants of a text that names them by digest only. Raises BlobError naming the line.
    """
    return _Assembler(source, weights).run()


class _Assembler:
    """One pass over the lines; `number` is that of the current line, from 1."""

    def __init__(self, source: str, weights: bytes | None) -> None:
        self.lines = source.splitlines()
        self.number = 0
        self.weights = weights
        self.image: dict[str, Any] = {"inputs": [], "outputs": [], "tasks": {}, "relocations": [], "kernels": []}

    def fail(self, reason: str) -> NoReturn:
        raise BlobError(f"line {self.number}: {reason}")

    def run(self) -> BlobImage:
        while self.number < len(self.lines):
            line = self.take()
            if not line or line.startswith("#"):
                continue
            keyword = line.split(None, 1)[0]
            if keyword in ("blob", "profile", "input", "output"):
                self.head(line)
            elif keyword == "resources":
                self.resources(line)
            elif keyword == "kernel":
                self.kernel(line)
            elif keyword == "section":
                self.section(line.split())
            elif keyword == "reloc":
                self.reloc(line)
            else:
                self.fail(f"{keyword!r}; expected blob, profile, resources, input, output, kernel, section or reloc")
        if self.image["kernels"]:
            self.image = dict.fromkeys(_RESOURCES.values(), 0) | self.image
        for name in ("name", "profile", *_RESOURCES.values()):
            if name not in self.image:
                self.fail(f"the end, and no {name}; expected lines blob, profile and resources")
        return BlobImage(**self.image)

    def take(self) -> str:
        self.number += 1
        return self.lines[self.number - 1].strip()

    def block(self) -> list[str]:
        """Return the lines up to `end`."""
        first = self.number
        while self.number < len(self.lines) and self.take() != "end":
            pass
        if self.number == first or self.lines[self.number - 1].strip() != "end":
            self.fail("the end of the text; expected `end` of a section")
        return self.lines[first : self.number - 1]

    def head(self, line: str) -> None:
        match = _HEAD.fullmatch(line)
        if match is None:
            self.fail(f"{line[:60]!r}; expected a keyword and a quoted name")
        keyword, name, rest = match[1], self.string(match[2]), match[3]
        if keyword == "profile":
            self.image["profile"] = name
        elif keyword == "blob":
            ours = f"abi={C.NPU_BLOB_ABI_MAJOR}.{C.NPU_BLOB_ABI_MINOR}"
            if rest != ours:
                self.fail(f"{rest!r}; expected {ours}")
            self.image["name"] = name
        else:
            self.image[f"{keyword}s"].append(self.tensor(name, rest))

    def string(self, text: str) -> str:
        try:
            return str(json.loads(text))
        except ValueError as error:
            self.fail(f"{text[:60]}: {error}")

    def tensor(self, name: str, text: str) -> IoTensor:
        try:
            short, dims = text.split(None, 1)
            code = dtypes.code_of_name(short)
            shape = tuple(int(d) for d in json.loads(dims))
        except (ValueError, TypeError) as error:
            self.fail(f"{text[:60]!r}; expected an element type and [dimensions]: {error}")
        size = dtypes.size_bytes(code)
        for dim in shape:
            size *= dim
        return IoTensor(name, code, shape, size)

    def resources(self, line: str) -> None:
        for word in line.split()[1:]:
            key, _, value = word.partition("=")
            if key not in _RESOURCES or not value.isdecimal():
                self.fail(f"{word!r}; expected numbers for {', '.join(_RESOURCES)}")
            self.image[_RESOURCES[key]] = int(value)

    def kernel(self, line: str) -> None:
        """Read a kernel and the `param` lines that follow."""
        match = _KERNEL.fullmatch(line)
        if match is None:
            self.fail(f'{line[:60]!r}; expected kernel "NAME" text=0xOFFSET bytes=N max_grid=N flags=N')
        params = []
        while self.number < len(self.lines) and self.lines[self.number].lstrip().startswith("param "):
            params.append(self.param(self.take()))
        text_offset, *numbers = int(match[2], 16), int(match[3]), int(match[5]), int(match[4])
        self.image["kernels"].append(Kernel(self.string(match[1]), tuple(params), text_offset, *numbers))

    def param(self, line: str) -> KernelParam:
        match = _PARAM.fullmatch(line)
        if match is None:
            self.fail(f'{line[:60]!r}; expected param "NAME" KIND DIRECTION TYPE')
        codes = []
        for enum, word in (("npu_arg_kind", match[2]), ("npu_arg_direction", match[3])):
            names = {m.name.removeprefix("NPU_ARG_").lower(): int(m) for m in sorted(npu_abi.enum(enum))}
            if word not in names:
                self.fail(f"{word[:40]!r}; expected {', '.join(names)}")
            codes.append(names[word])
        try:
            return KernelParam(self.string(match[1]), codes[0], codes[1], dtypes.code_of_name(match[4]))
        except ValueError as error:
            self.fail(str(error))

    def section(self, words: list[str]) -> None:
        name, form = (*words[1:3], "", "")[:2]
        if name in TASK_SECTIONS:
            self.tasks(name)
        elif name == elf.TEXT and form == "shave":
            first = self.number
            try:
                self.image["text"] = shave_isa.assemble("\n".join(self.block()))
            except shave_isa.AssemblyError as error:
                self.number = first + error.line
                self.fail(str(error).partition(": ")[2])
        elif name in (elf.TEXT, elf.ARGS) and form == "hex":
            self.image["text" if name == elf.TEXT else "shave_args"] = self.decode(bytes.fromhex, " ")
        elif name == elf.WEIGHTS and form == "base64":
            self.image["weights"] = self.decode(lambda text: base64.b64decode(text, validate=True), "")
        elif name == elf.WEIGHTS and form == "absent":
            match = re.fullmatch(r"bytes=(\d{1,18})", " ".join(words[3:]))
            if match is None:
                self.fail(f"{' '.join(words)[:60]!r}; expected section {name} absent bytes=N")
            self.image["planned_weight_bytes"] = int(match[1])
        elif name == elf.WEIGHTS:
            self.named_weights(words[2:])
        elif name == elf.DEBUG:
            self.image["debug"] = self.decode(json.loads, "\n")
        else:
            self.fail(
                f"section {name} {form}; expected a section that blobs have, and hex, base64 or shave where it applies"
            )

    def decode(self, decoder: Any, separator: str) -> Any:
        try:
            if separator:
                return decoder(separator.join(self.block()))
            return b"".join(decoder(line.strip()) for line in self.block())
        except (ValueError, binascii.Error) as error:
            self.fail(f"in the section that ends here: {error}")

    def named_weights(self, words: list[str]) -> None:
        """Take the constants from beside the text, when they are the ones that it names."""
        self.block()
        if self.weights is None:
            self.fail("the text names its weights by digest; give their bytes too")
        found = f"bytes={len(self.weights)} sha256={hashlib.sha256(self.weights).hexdigest()}"
        if " ".join(words) != found:
            self.fail(f"the weights beside the text are {found}; expected {' '.join(words)}")
        self.image["weights"] = self.weights

    def tasks(self, section: str) -> None:
        """Read the entries `index: field=value ...` that follow."""
        dtype = npu_abi.dtype(TASK_SECTIONS[section])
        rows: list[list[tuple[str, str]]] = []
        numbers: list[int] = []
        while self.number < len(self.lines) and re.match(r"\s+\d+:", self.lines[self.number]):
            index, _, rest = self.take().partition(":")
            if int(index) != len(rows):
                self.fail(f"entry {index}; expected entry {len(rows)}")
            rows.append(self.words(rest))
            numbers.append(self.number)
        array = np.zeros(len(rows), dtype)
        fields: Mapping[str, Any] = dtype.fields or {}
        end = self.number
        for at, row in enumerate(rows):
            self.number = numbers[at]
            for name, word in row:
                if name not in fields:
                    self.fail(f"{name}: no such field of struct {TASK_SECTIONS[section]}")
                kind, offset = fields[name][0], fields[name][1]
                if word.startswith("@"):
                    place = at * dtype.itemsize + offset
                    self.image["relocations"].append(self.relocation(section, place, word, kind.itemsize))
                else:
                    array[name][at] = self.value(name, word, kind)
        self.number = end
        self.image["tasks"][section] = array

    def words(self, text: str) -> list[tuple[str, str]]:
        found, at = [], 0
        while match := _WORD.match(text, at):
            found.append((match[1], match[2]))
            at = match.end()
        rest = text[at:].strip()
        if rest and not rest.startswith("#"):
            self.fail(f"{rest[:60]!r}; expected field=value or a comment")
        return found

    def value(self, name: str, word: str, kind: np.dtype[Any]) -> Any:
        try:
            if kind.kind == "f":
                if word.startswith("nan:"):
                    return np.uint32(int(word[4:], 16)).view(np.float32)
                return np.float32(float(word))
            value = C.NPU_BARRIER_NONE if word == "none" else int(word, 0)
        except (ValueError, OverflowError):
            self.fail(f"{name}={word[:40]}; expected a number")
        limits = np.iinfo(kind)
        if not limits.min <= value <= limits.max:
            self.fail(f"{name}={word}; expected {limits.min} to {limits.max}")
        return value

    def relocation(self, section: str, offset: int, word: str, width: int) -> Relocation:
        match = _SYMBOL.fullmatch(word)
        if match is None:
            self.fail(f"{word[:60]!r}; expected @symbol or @symbol+addend")
        symbol = self.string(match[1]) if match[1].startswith('"') else match[1]
        return Relocation(section, offset, symbol, int(match[2] or "0", 0), width)

    def reloc(self, line: str) -> None:
        match = re.fullmatch(rf"reloc\s+([\w.]+)\+(\w+)\s+(@(?:{_STRING}|[\w.]+)\S*)\s+width=([48])", line)
        if match is None:
            self.fail("expected reloc SECTION+OFFSET @SYMBOL+ADDEND width=4 or 8")
        try:
            offset = int(match[2], 0)
        except ValueError:
            self.fail(f"{match[2]!r}; expected an offset")
        self.image["relocations"].append(self.relocation(match[1], offset, match[3], int(match[4])))
