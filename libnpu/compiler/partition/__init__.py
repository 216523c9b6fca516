"""Partition: a model of which the NPU cannot do every node becomes blobs, and ONNX graphs for the host between them.

`survey` (which nodes, and why) → `clusters` (parts without cycles, few crossings) → `extract` (an ONNX model for each part) → a
blob for each part on the NPU → a container (`libnpu.parts`). A model that the NPU does whole never comes here.
"""

from __future__ import annotations
