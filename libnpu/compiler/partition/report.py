"""What the partition did, for people: one line of warning, and a report of all parts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from libnpu.parts import HostPart, NpuPart

if TYPE_CHECKING:
    from collections.abc import Iterable

    from libnpu.parts import PartedModel, Tensor

MOST_KINDS = 4  # of operators in the warning
MOST_NAMES = 6  # of a part's nodes on the NPU


def warning_of(model: PartedModel) -> str:
    """Return the line that is never left out: how many nodes run on the host."""
    host = model.host_nodes
    total = len(host) + sum(len(part.nodes) for part in model.npu_parts)
    kinds = Counter(node.op for node in host).most_common()
    ops = ", ".join(f"{op} × {count}" if count > 1 else op for op, count in kinds[:MOST_KINDS])
    more = f" and {len(kinds) - MOST_KINDS} kinds more" if len(kinds) > MOST_KINDS else ""
    return (
        f"{model.name}: {_count(len(host), 'node')} of {total} {'run' if len(host) > 1 else 'runs'} on the host, between "
        f"{_count(len(model.npu_parts), 'blob')} ({ops}{more}); --partition report says why, --strict refuses"
    )


def partition_text(model: PartedModel) -> list[str]:
    """Return the report: sides and share of multiplications, then each part with what enters and leaves it, and the host's reasons."""
    host = model.host_nodes
    npu_nodes = sum(len(part.nodes) for part in model.npu_parts)
    down, up = model.to_host(), model.to_npu()
    lines = [
        f"{model.name}: {_count(npu_nodes, 'node')} on the NPU in {_count(len(model.npu_parts), 'part')}, "
        f"{_count(len(host), 'node')} on the host in {_count(len(model.parts) - len(model.npu_parts), 'part')}",
        f"multiplications on the NPU: {_share(model)}",
        f"bytes between host and NPU in an inference: {_bytes(down)} to the host, {_bytes(up)} to the NPU",
    ]
    for number, part in enumerate(model.parts):
        if isinstance(part, NpuPart):
            lines.append(
                f"part {number} on the NPU: {_count(len(part.nodes), 'node')}, {part.macs} MACs: {_named(part.nodes)}"
            )
        else:
            macs = "MACs not counted" if part.macs is None else f"{part.macs} MACs"
            lines.append(f"part {number} on the host: {_count(len(part.nodes), 'node')}, {macs}, by {part.evaluator}")
        lines += [f"  {word} {_values(model, names)}" for word, names in (("in ", part.inputs), ("out", part.outputs))]
        if isinstance(part, HostPart):
            lines += [f"  {node.name} ({node.op}): {node.reason}" for node in part.nodes]
    return lines


def _named(nodes: tuple[str, ...]) -> str:
    if len(nodes) <= MOST_NAMES:
        return ", ".join(nodes)
    return f"{', '.join(nodes[: MOST_NAMES - 1])}, ... {nodes[-1]}"


def _share(model: PartedModel) -> str:
    npu = sum(part.macs for part in model.npu_parts)
    counts = [part.macs for part in model.parts if isinstance(part, HostPart)]
    known = npu + sum(filter(None, counts))
    least = "" if None not in counts else ", and those of the host that are not counted"
    if not known:
        return f"none anywhere{least}"
    return f"{npu / known:.1%} of {known}{least}"


def _values(model: PartedModel, names: Iterable[str]) -> str:
    return ", ".join(_value(model.tensors[name]) for name in names) or "nothing"


def _value(tensor: Tensor) -> str:
    shape = ", ".join("?" if dim < 0 else str(dim) for dim in tensor.shape)
    size = f", {tensor.size_bytes} bytes" if tensor.is_static else ""
    return f"{tensor.name} [{shape}] {tensor.dtype or 'no tensor'}{size}"


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.size_bytes for tensor in tensors)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
