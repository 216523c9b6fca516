"""A model in parts: blobs for the NPU, and between them ONNX graphs that the host evaluates.

`container` is the file that holds both, `evaluator` runs a host's part. The compiler makes such models (`compiler.partition`)
and the runtime runs them (`runtime.partitioned`); this package knows neither.
"""

from __future__ import annotations

from libnpu.parts.container import MAGIC, HostNode, HostPart, NpuPart, PartedModel, PartsError, Tensor, pack, unpack
from libnpu.parts.evaluator import HostEvaluator, evaluator_of

__all__ = [
    "MAGIC",
    "HostEvaluator",
    "HostNode",
    "HostPart",
    "NpuPart",
    "PartedModel",
    "PartsError",
    "Tensor",
    "evaluator_of",
    "pack",
    "unpack",
]
