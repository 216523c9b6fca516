"""Front end: an ONNX file becomes the canonical graph of `libnpu.compiler.ir`, in stages that can be looked at.

import → fold → simplify → DynamicDataMask → layout → fuse-engine → fuse-elementwise → fuse_rope → precision. A verifier runs after each; `stages` shows the graph after each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from libnpu.compiler.frontend.source import ModelError, OpenShape

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping
    from pathlib import Path

    import onnx

    from libnpu.compiler.ir import Graph
    from libnpu.compiler.layouts import Blocked

__all__ = ["ModelError", "OpenShape", "load", "stages"]


def load(
    source: str | Path | bytes | onnx.ModelProto,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    precision: str = "fp16",
) -> Graph:
    """Return the canonical graph of a model, ready for the back end.

    `shapes` fixes the shapes of inputs by name, needed where the file leaves them open. `precision` is "fp16"
    (floats are float16 inside) or "fp32". Raises ModelError for a bad file, Unsupported or Unimplemented for what
    this compiler does not do; each names the node or value.
    """
    *_, (_, graph) = stages(source, shapes, precision)
    return graph


def stages(
    source: str | Path | bytes | onnx.ModelProto,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    precision: str = "fp16",
    is_plan: bool = False,
    dynamic: Mapping[str, int] | None = None,
    disabled: Container[str] = (),
    layout: Blocked | None = None,
) -> Iterator[tuple[str, Graph]]:
    """Yield (stage name, graph) after each stage, in order; arguments and errors as of `load`.

    `dynamic` says which axes of inputs hold padding, `disabled` which of the optional passes do nothing (`data_mask.py`).
    `layout` is that of images at the ends (`libnpu.compiler.layouts`).
    In a plan, large constants have no values, and precision may be "int8" or "int4" too.
    """
    from libnpu.compiler.frontend.block_ends import block_ends
    from libnpu.compiler.frontend.data_mask import mask_padding
    from libnpu.compiler.frontend.fold import fold, remove_dead
    from libnpu.compiler.frontend.fold_blocks import fold_blocks
    from libnpu.compiler.frontend.fold_shuffle import fold_shuffles
    from libnpu.compiler.frontend.fuse_activation import fuse_activation
    from libnpu.compiler.frontend.fuse_affine import fuse_affine
    from libnpu.compiler.frontend.fuse_elementwise import fuse_elementwise
    from libnpu.compiler.frontend.fuse_integer import fuse_integer
    from libnpu.compiler.frontend.fuse_rope import fuse_rope
    from libnpu.compiler.frontend.handlers import beyond_standard
    from libnpu.compiler.frontend.hoist import hoist
    from libnpu.compiler.frontend.import_onnx import import_model
    from libnpu.compiler.frontend.merge_products import merge_products
    from libnpu.compiler.frontend.precision import set_precision
    from libnpu.compiler.frontend.recognise import recognise_softmax
    from libnpu.compiler.frontend.simplify import simplify
    from libnpu.compiler.frontend.source import read_model
    from libnpu.compiler.frontend.verify import verify

    if precision not in ("fp16", "fp32", *(["int8", "int4"] if is_plan else [])):
        raise ValueError(f"precision {precision!r}; one of fp16, fp32, and of a plan int8 and int4")
    graph = verify(import_model(read_model(source, is_plan, beyond_standard()), shapes or {}, is_plan), "import")
    yield "import", graph
    graph = verify(remove_dead(hoist(fold(graph))), "fold")
    yield "fold", graph
    graph = verify(remove_dead(fold(simplify(graph))), "simplify")
    yield "simplify", graph
    graph = verify(mask_padding(graph, dynamic or {}, "DynamicDataMask" not in disabled), "DynamicDataMask")
    yield "DynamicDataMask", graph
    graph = verify(block_ends(graph, layout), "layout")
    yield "layout", graph
    graph = simplify(merge_products(hoist(fuse_activation(fuse_affine(graph)))))
    graph = verify(remove_dead(fuse_integer(graph)), "fuse-engine")
    yield "fuse-engine", graph
    graph = fold_blocks(fold_shuffles(recognise_softmax(simplify(fuse_elementwise(graph)))))
    graph = verify(remove_dead(graph), "fuse-elementwise")
    yield "fuse-elementwise", graph
    graph = verify(remove_dead(fuse_rope(graph)), "fuse_rope")
    yield "fuse_rope", graph
    yield "precision", verify(set_precision(graph, precision), "precision")
