"""The compiler: an ONNX model becomes a blob.

front end (`frontend`) → lowering and tiling (`lower`) → memory and order (`schedule`) → barriers → emission (`emit`) → ELF.
Every stage can be dumped as text, and is checked before the next one runs.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from libnpu.compiler.options import CompileOptions

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from libnpu.compiler.pipeline import Compiled

__all__ = ["CompileOptions", "HostPartWarning", "compile_model"]


class HostPartWarning(UserWarning):
    """Some nodes of a model run on the host; the text counts them."""


def compile_model(
    model: str | Path | bytes | Any, options: CompileOptions | None = None, *, cache: bool = True
) -> Compiled:
    """Return the blob of an ONNX model: a path, its bytes, or an onnx.ModelProto.

    What was compiled before of the same bytes, options and profile comes from the user's cache folder (docs/performance.md), as
    `Compiled.from_cache` tells; `cache=False` compiles anew and keeps nothing.

    Nodes that the NPU cannot do run on the host between several blobs, which `Compiled.parts` tells and a HostPartWarning says;
    with `CompileOptions.strict` they are refused.

    Raises ModelError for a model that is not valid, Unsupported or Unimplemented for what neither the NPU nor the host does, and
    CompileError for an operation that does not fit the device; each names the node.
    """
    from libnpu.compiler.cache import cache_of, key_of
    from libnpu.compiler.pipeline import run

    options = options or CompileOptions()
    kept = cache_of() if cache else None
    key = key_of(model, options) if kept is not None else None
    compiled = kept.get(key) if kept is not None and key is not None else None
    if compiled is None:
        compiled = run(model, options)
        if kept is not None and key is not None and key == key_of(model, options):  # files may have changed meanwhile
            kept.put(key, compiled)
    if compiled.parts is not None:
        warnings.warn(compiled.report["warnings"][0], HostPartWarning, stacklevel=2)
    return compiled
