"""The compiler: an ONNX model becomes a blob.

front end (`frontend`) → lowering and tiling (`lower`) → memory and order (`schedule`) → barriers → emission (`emit`) → ELF.
Every stage can be dumped as text, and is checked before the next one runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from libnpu.compiler.options import CompileOptions

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from libnpu.compiler.pipeline import Compiled

__all__ = ["CompileOptions", "compile_model"]


def compile_model(model: str | Path | bytes | Any, options: CompileOptions | None = None) -> Compiled:
    """Return the blob of an ONNX model: a path, its bytes, or an onnx.ModelProto.

    Raises ModelError for a model that is not valid, Unsupported or Unimplemented for what this compiler does not do, and
    CompileError for an operation that does not fit the device; each names the node.
    """
    from libnpu.compiler.pipeline import run

    return run(model, options or CompileOptions())
