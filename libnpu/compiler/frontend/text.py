"""Text of a graph, for dumps and tests: one line per node, in execution order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from libnpu.compiler.ir import Expr, Graph, Node, Value


def graph_text(graph: Graph) -> str:
    """Return `graph` as lines: `output: type[shape] = Op(operands) {attributes}  # source layers`."""
    lines = [f"graph {graph.name}"]
    lines += [f"input {_typed(value)}" for value in graph.inputs]
    lines += [node_text(node) for node in graph.nodes]
    lines += [f"output {_typed(value)}" for value in graph.outputs]
    lines += [f"note {note}" for note in graph.notes]
    return "\n".join(lines) + "\n"


def node_text(node: Node) -> str:
    names = ["-" if value is None else _operand(value) for value in node.inputs]
    if node.op == "Elementwise":
        body = expr_text(node.attrs["expr"], names)
    else:
        attrs = ", ".join(f"{key}={_attribute(value)}" for key, value in node.attrs.items())
        body = f"{node.op}({', '.join(names)})" + (f" {{{attrs}}}" if attrs else "")
    layers = [layer for layer in node.layers if layer != node.outputs[0].name]
    return f"{_typed(node.outputs[0])} = {body}" + (f"  # {' '.join(layers)}" if layers else "")


def expr_text(expr: Expr, names: list[str]) -> str:
    """Return an expression in function notation, e.g. `add(mul(x, 2.0), y)`."""
    if expr[0] == "in":
        return names[expr[1]]
    if expr[0] == "const":
        return repr(expr[1])
    return f"{expr[0]}({', '.join(expr_text(operand, names) for operand in expr[1:])})"


def _typed(value: Value) -> str:
    return f"{value.name}: {value.dtype}{list(value.shape)}"


def _operand(value: Value) -> str:
    return value.name if value.const is None else f"{value.name}={value.dtype}{list(value.shape)}"


def _attribute(value: Any) -> str:
    return str(value).replace(" ", "") if isinstance(value, (list, tuple)) else str(value)
