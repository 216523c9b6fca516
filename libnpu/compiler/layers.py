"""A model as one blob per layer, for a host that launches every layer itself. Values keep their names from blob to blob."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from libnpu.compiler.ir import Graph
from libnpu.compiler.options import CompileOptions
from libnpu.compiler.pipeline import compile_graph

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from libnpu.compiler.ir import Node
    from libnpu.compiler.pipeline import Compiled


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """The blobs in execution order: each one's inputs are the model's, or outputs of blobs before it, by name."""

    graph: Graph
    blobs: tuple[Compiled, ...]


def layer_graph(node: Node) -> Graph:
    """Return one node of a canonical graph as a graph of its own."""
    operands = [value for value in dict.fromkeys(node.inputs) if value is not None and value.const is None]
    return Graph(node.name, operands, node.outputs, [node])


def compile_layers(model: str | Path | bytes | Any, options: CompileOptions | None = None) -> Layers:
    """Compile every layer of `model` alone; arguments and errors as of `libnpu.compiler.compile_model`.

    A layer is a node of the canonical graph, after all fusing. Outputs that are constants have a blob that makes them.
    """
    from libnpu.compiler import frontend

    options = options or CompileOptions()
    graph = frontend.load(model, dict(options.shapes), options.precision)
    graphs = [layer_graph(node) for node in graph.nodes]
    graphs += [Graph(value.name, [], [value], []) for value in graph.outputs if value.const is not None]
    return Layers(graph, tuple(compile_graph(alone, options) for alone in graphs))
