"""What a caller may ask of the compiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True, frozen=True)
class CompileOptions:
    """`shapes` fixes input shapes by name; `cmx_bytes` limits CMX below the profile's; `dump` names stages to keep as text."""

    precision: str = "fp16"  # or "fp32"
    profile: str = "npu-37xx"  # name, alias or path
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    cmx_bytes: int | None = None
    prefetching_level_limit: int = 35  # compute operations that a load may run ahead
    pingpong: bool = True  # load the next tile while the engine works
    dump: tuple[str, ...] = ()  # front-end stages, "tiles", "schedule", "barriers", "blob"
