"""The blob container: a compiled model or a kernel library in memory (`BlobImage`), as an ELF file (`write`, `read`), as text, verified and proved.

`disassemble`, `assemble`, `verify` and `prove` are loaded on first use: a loader needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from libnpu.blob.image import TASK_SECTIONS, BlobError, BlobImage, IoTensor, Kernel, KernelParam, Relocation
from libnpu.blob.kernels import KernelSource, kernel_library
from libnpu.blob.problem import Problem
from libnpu.blob.reader import read, section_table
from libnpu.blob.writer import write

if TYPE_CHECKING:
    from npu_model.profile import Profile

__all__ = [
    "TASK_SECTIONS",
    "BlobError",
    "BlobImage",
    "IoTensor",
    "Kernel",
    "KernelParam",
    "KernelSource",
    "Problem",
    "Relocation",
    "assemble",
    "disassemble",
    "kernel_library",
    "prove",
    "read",
    "section_table",
    "verify",
    "write",
]


def verify(image: BlobImage, profile: Profile | None = None) -> list[Problem]:
    """Return every broken rule of `image`; see verifier.py."""
    from libnpu.blob import verifier

    return verifier.verify(image, profile)


def prove(image: BlobImage, profile: Profile | None = None, faults_only: bool = False) -> list[Problem]:
    """Return what is missing in the proof that `image` has one result, whatever order its tasks run in; see proof.py.

    With `faults_only` without what is only slow.
    """
    from libnpu.blob import proof

    return proof.prove(image, profile, faults_only)


def disassemble(image: BlobImage, weights: Literal["inline", "digest"] = "inline") -> str:
    """Return the text form of `image`; see text.py."""
    from libnpu.blob import text

    return text.disassemble(image, weights)


def assemble(source: str, weights: bytes | None = None) -> BlobImage:
    """Return the image whose text form is `source`; see assembler.py. Raises BlobError naming the line."""
    from libnpu.blob import assembler

    if not isinstance(source, str):
        raise TypeError(f"source must be a str, not {type(source).__name__}")

    return assembler.assemble(source, weights)
