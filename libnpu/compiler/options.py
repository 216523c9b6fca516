"""What a caller may ask of the compiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

from libnpu.compiler.layouts import LAYOUTS

# What `CompileOptions.dump` may name, in the order of the compiler's work: stages of the front end, then passes of the back end.
PASSES = (
    "import",
    "fold",
    "simplify",
    "DynamicDataMask",
    "layout",
    "fuse-engine",
    "fuse-elementwise",
    "fuse_rope",
    "precision",
    "SelectAttentionPath",
    "UnrollFlashSDPA",
    "DpuTiler",
    "TileActShaveKernelTask",
    "PipeliningVFScheduling",
    "engines",
    "tiles",
    "FeasibleMemoryScheduler",
    "schedule",
    "bytes-per-tensor",
    "bursts",
    "barriers",
    "blob",
)
LEVELS = (0, 1, 2, 3)
SOLVED = 3  # the least level that asks a solver
OPTIONAL_PASSES = ("DynamicDataMask",)  # that `CompileOptions.disable` may name
PRECISIONS = ("fp16", "fp32", "int8", "int4")
PLAN_PRECISIONS = PRECISIONS[2:]  # of which only tasks, memory and times are known
ATTENTION = ("auto", "decompose", "flash", "incremental")


class BadOption(ValueError):
    """An option that is out of its range; the message names it, the value and what is allowed."""


class UnknownPass(BadOption):
    """A pass that the compiler does not have; the message lists those that it has."""


@dataclass(slots=True, frozen=True)
class CompileOptions:
    """`shapes` fixes input shapes by name; `tiles` and `cmx_bytes` limit tiles and their CMX below the profile's; `dump` names passes to keep as text.

    Raises BadOption, UnknownPass for `dump`.
    """

    precision: str = "fp16"  # of PRECISIONS
    profile: str = "npu-37xx"  # name, alias or path
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dynamic: Mapping[str, int] = field(default_factory=dict)  # input -> axis with padding, of which NAME.length counts
    layout: str = "nchw"  # of LAYOUTS: of images at the ends of the model
    disable: tuple[str, ...] = ()  # of OPTIONAL_PASSES: results may then be wrong
    tiles: int | None = None  # that work in parallel; None: all that the profile has
    cmx_bytes: int | None = None  # of each tile
    optimisation: int = (
        2  # 0: nothing is loaded ahead; 1: one schedule; 2: the best of several; 3: windows of it solved as well
    )
    prefetching_level_limit: int = 35  # compute operations that a load may run ahead
    pingpong: bool = True  # load the next tile while the engine works
    cmx_residency: bool = (
        True  # keep values in CMX from one operation to the next; without, each goes to DDR and comes back
    )
    vertical_fusion: bool = True  # layers of the matrix engine band by band of rows; without, one layer after the other
    inferences: int = 1  # in one blob, of the same inputs; their weights are loaded once, and stay in CMX
    strict: bool = False  # refuse what the NPU cannot do, which the host does otherwise; a plan always does
    attention: str = "auto"  # of ATTENTION: the path of every attention; "auto": by phase and length
    plan_only: bool = False  # tasks, memory and times without the values of large constants, which the model may lack
    dump: tuple[str, ...] = ()  # of PASSES
    explain: bool = False  # put what-ifs into the report, each of which is compiled as well

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise BadOption(f"precision {self.precision!r}; one of {', '.join(PRECISIONS)}")
        if self.optimisation not in LEVELS:
            raise BadOption(f"optimisation {self.optimisation}; one of {', '.join(map(str, LEVELS))}")
        if self.optimisation >= SOLVED and find_spec("ortools") is None:
            raise BadOption(f"optimisation {self.optimisation} needs the package ortools: pip install 'libnpu[solver]'")
        if self.layout not in LAYOUTS:
            raise BadOption(f"layout {self.layout!r}; one of {', '.join(LAYOUTS)}")
        if self.attention not in ATTENTION:
            raise BadOption(f"attention {self.attention!r}; one of {', '.join(ATTENTION)}")
        if self.tiles is not None and self.tiles < 1:
            raise BadOption(f"tiles {self.tiles}; at least 1, or None for all that the profile has")
        if self.precision in PLAN_PRECISIONS and not self.plan_only:
            raise BadOption(f"precision {self.precision!r} needs plan_only: scales of integers are not chosen here")
        if self.cmx_bytes is not None and self.cmx_bytes < 1:
            raise BadOption(f"cmx_bytes {self.cmx_bytes}; at least 1, or None for all that the profile has")
        if self.inferences < 1:
            raise BadOption(f"inferences {self.inferences}; at least 1")
        if self.prefetching_level_limit < 0:
            raise BadOption(f"prefetching_level_limit {self.prefetching_level_limit}; at least 0")
        for name, shape in self.shapes.items():
            if any(size < 0 for size in shape):
                raise BadOption(f"shapes: {name} {tuple(shape)}; no size is below 0")
        for name in self.disable:
            if name not in OPTIONAL_PASSES:
                raise BadOption(f"disable {name!r}; of {', '.join(OPTIONAL_PASSES)}")
        for name in self.dump:
            if name not in PASSES:
                raise UnknownPass(f"{name}: the compiler has no such pass; it has {', '.join(PASSES)}")
