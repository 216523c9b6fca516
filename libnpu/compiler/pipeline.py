"""The order of the compiler's stages, with a check after each and a dump of those that are asked for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_abi import C
from npu_model.profile import Profile, load_profile

from libnpu import blob, parts
from libnpu.blob import BlobImage
from libnpu.collector import uncollected
from libnpu.compiler.attention import choices_text, select_attention
from libnpu.compiler.dumps import (
    attention_text,
    barriers_text,
    bursts_text,
    decisions_text,
    dpu_tiles_text,
    engines_text,
    regions_text,
    shave_tiles_text,
    tensors_text,
)
from libnpu.compiler.emit import emit
from libnpu.compiler.layouts import layout_of
from libnpu.compiler.lower import CompileError, lower
from libnpu.compiler.lower.repeat import repeat
from libnpu.compiler.lower.text import program_text, schedule_text
from libnpu.compiler.lower.verify import verify_program
from libnpu.compiler.options import SOLVED
from libnpu.compiler.partition.report import warning_of
from libnpu.compiler.quality import lower_bound, measures, what_ifs
from libnpu.compiler.schedule import DoesNotFit, FeasibleMemoryScheduler, OutOfBarriers, improve, synchronise
from libnpu.errors import Unimplemented, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

    from libnpu.compiler.ir import Graph
    from libnpu.compiler.options import CompileOptions
    from libnpu.compiler.program import TileProgram
    from libnpu.compiler.schedule import Schedule
    from libnpu.parts import PartedModel

# Tasks of a layer for each unit of its engine, and whether few elements are shared: ways that -O2 tries; chosen by trials.
_WAYS = ((1, False), (1, True), (3, True))
_MANY = 5000  # tasks of a program that is lowered once


@dataclass(slots=True, eq=False)
class Compiled:
    """A compiled model: bytes to load, and what the compiler has to say.

    `blob` is a blob with its image, or a container when some nodes run on the host: then `parts` is what it holds, and there is
    no `image`. `report` holds the statistics of the blob's debug section, `warnings` (lines for people) and `dumps` (pass -> text); of a
    model in parts `parts`, the reports of its blobs.
    """

    blob: bytes
    _image: BlobImage | None
    report: dict[str, Any] = field(default_factory=dict)
    parts: PartedModel | None = None
    from_cache: bool = False  # compiled before, and kept

    @property
    def image(self) -> BlobImage:
        """What the one blob holds. Raises Unsupported for a model in parts."""
        if self._image is None:
            assert self.parts is not None
            raise Unsupported(f"{self.parts.name} is a model in parts, no single blob: {warning_of(self.parts)}")
        return self._image


def run(model: str | Path | bytes | Any, options: CompileOptions) -> Compiled:
    """Run every stage; see `libnpu.compiler.compile_model`."""
    with uncollected():
        try:
            return _run_whole(model, options)
        except (Unsupported, Unimplemented) as refusal:
            if options.plan_only or layout_of(options.layout, load_profile(options.profile)) is not None:
                raise
            return _run_in_parts(model, options, refusal)


def _run_in_parts(
    source: str | Path | bytes | Any, options: CompileOptions, refusal: Unsupported | Unimplemented
) -> Compiled:
    """Compile what the NPU does of a model that it does not do whole. Raises Unsupported with all reasons under `strict`."""
    from libnpu.compiler.frontend.source import read_model
    from libnpu.compiler.partition.partition import partition, reasons_of

    model = read_model(source, foreign=_Anything())
    if options.strict:
        raise _strict_refusal(reasons_of(model, options, refusal), refusal)
    found = partition(model, options, _run_whole, refusal)
    if len(found.model.parts) == 1 and found.compiled:  # nobody needs what the NPU cannot do
        whole = found.compiled[0]
        return replace(whole, report=whole.report | {"warnings": [*found.notes, *whole.report["warnings"]]})
    reports = [part.report for part in found.compiled]
    warnings = [line for report in reports for line in report["warnings"]]
    dumps: dict[str, str] = {}
    for name in options.dump:
        dumps[name] = "\n".join(report["dumps"][name] for report in reports)
    report = {"parts": reports, "warnings": [warning_of(found.model), *found.notes, *warnings], "dumps": dumps}
    return Compiled(parts.pack(found.model), None, report, found.model)


class _Anything:
    """The operators of other domains, of which an evaluator may know some."""

    def __contains__(self, operator: object) -> bool:
        return True


def _strict_refusal(reasons: list[str], refusal: Unsupported | Unimplemented) -> Unsupported | Unimplemented:
    if len(reasons) < 2:
        return refusal
    return Unsupported(f"{len(reasons)} nodes would run on the host: {'; '.join(reasons)}")


def _run_whole(model: str | Path | bytes | Any, options: CompileOptions) -> Compiled:
    """Run every stage for the NPU alone."""
    from libnpu.compiler import frontend
    from libnpu.compiler.frontend.text import graph_text

    dumps: dict[str, str] = {}
    graph: Graph | None = None
    profile = load_profile(options.profile)
    stages = frontend.stages(
        model,
        dict(options.shapes),
        options.precision,
        options.plan_only,
        options.dynamic,
        options.disable,
        layout_of(options.layout, profile),
    )
    for stage, graph in stages:
        if stage == "import":
            _check_sizes(graph, profile)
        if stage in options.dump:
            dumps[stage] = graph_text(graph)
    assert graph is not None
    return compile_graph(graph, options, dumps)


def compile_graph(graph: Graph, options: CompileOptions, dumps: dict[str, str] | None = None) -> Compiled:
    """Run the back end on a canonical graph."""
    dumps = {} if dumps is None else dumps

    def dump(name: str, text: Callable[[], str]) -> None:
        if name in options.dump:
            dumps[name] = text()

    profile = load_profile(options.profile)
    tiles = min(options.tiles or profile.tiles, profile.tiles)

    graph, choices = select_attention(graph, profile, _cmx_bytes(options, profile) * tiles, options.attention)
    dump("SelectAttentionPath", lambda: choices_text(choices))

    def check(program: TileProgram) -> None:
        verify_program(program, _cmx_bytes(options, profile) * tiles)

    program, schedule = _schedule(graph, profile, options, tiles, check)
    dump("UnrollFlashSDPA", lambda: attention_text(program))
    dump("DpuTiler", lambda: dpu_tiles_text(program))
    dump("TileActShaveKernelTask", lambda: shave_tiles_text(program))
    dump("PipeliningVFScheduling", lambda: regions_text(program))
    dump("engines", lambda: engines_text(graph, program))
    dump("tiles", lambda: program_text(program))
    dump("FeasibleMemoryScheduler", lambda: decisions_text(schedule))
    dump("schedule", lambda: schedule_text(schedule))
    dump("bursts", lambda: bursts_text(schedule, profile))
    dump("bytes-per-tensor", lambda: tensors_text(schedule))
    try:
        plan = synchronise(schedule, min(profile.barriers_per_tile * tiles, int(C.NPU_MAX_BARRIER_IDS)))
    except OutOfBarriers as error:
        op = schedule.ops[error.operation].op
        raise CompileError(f"{op.layer} ({op.name}): {error}") from None
    dump("barriers", lambda: barriers_text(plan))
    image = emit(graph, program, schedule, plan, profile)
    image.debug["stats"] |= measures(schedule, lower_bound(graph, profile, tiles))
    dump("blob", lambda: blob.disassemble(image, "digest"))
    _verify_image(image, profile)
    report = {**image.debug["stats"], "warnings": list(graph.notes), "dumps": dumps}
    if choices:
        report["attention"] = [{"layer": c.layer, "path": c.path, "reason": c.reason} for c in choices]
    if options.explain:

        def makespan_ps(profile: Profile, tiles: int, edit: Callable[[TileProgram], None]) -> int | None:
            try:
                return _schedule(graph, profile, options, tiles, edit)[1].makespan_ps
            except CompileError:
                return None

        report["what_ifs"] = what_ifs(graph, makespan_ps, profile, tiles, schedule.makespan_ps)
    return Compiled(blob.write(image), image, report)


def _cmx_bytes(options: CompileOptions, profile: Profile) -> int:
    return min(options.cmx_bytes or profile.cmx.workspace_bytes, profile.cmx.workspace_bytes)


def _schedule(
    graph: Graph, profile: Profile, options: CompileOptions, tiles: int, edit: Callable[[TileProgram], None]
) -> tuple[TileProgram, Schedule]:
    """Lower a graph and schedule what `edit` has made of the program: of several ways the one that ends first.

    Raises CompileError.
    """
    cmx_bytes, level = _cmx_bytes(options, profile), options.optimisation
    best: tuple[FeasibleMemoryScheduler, Schedule] | None = None
    schedulers: list[FeasibleMemoryScheduler] = []
    leaves_few = True
    limit = options.prefetching_level_limit if level > 0 else 0
    ways = _WAYS if level > 1 and limit else _WAYS[:1]  # what waits for each load has nothing to choose
    for grain, shares_few in ways:
        if shares_few and grain == 1 and not leaves_few:
            continue
        try:
            pingpong = options.pingpong and level > 0
            program = lower(
                graph,
                profile,
                cmx_bytes,
                pingpong,
                tiles,
                options.cmx_residency,
                grain,
                shares_few,
                options.vertical_fusion,
            )
            leaves_few = program.leaves_few
            repeat(program, options.inferences)
            edit(program)
            scheduler = FeasibleMemoryScheduler(program, profile, cmx_bytes, limit, options.pingpong, tiles, level > 1)
            schedulers.append(scheduler)
            if best is None:
                best = scheduler, scheduler.run()
                if len(program.ops) > _MANY:
                    break
            elif (better := scheduler.better_than(best[1].makespan_ps)) is not None:
                best = scheduler, better
        except (CompileError, DoesNotFit) as error:
            if best is None:
                raise CompileError(str(error)) from None
    assert best is not None
    fastest, schedule = best
    if level > 1 and schedule.spill_out_bytes:
        for scheduler in sorted(schedulers, key=lambda one: one is not fastest):
            found = scheduler.instead_of(schedule)
            if found is not None:
                best = scheduler, found
                break
    scheduler, schedule = best
    return scheduler.program, improve(scheduler, schedule) if level >= SOLVED else schedule


def _check_sizes(graph: Graph, profile: Profile) -> None:
    """Raise CompileError naming a value that is larger than the device's memory, or all inputs and outputs together."""
    limit = profile.ddr.capacity_bytes
    memory = f"device memory of {profile.name} has {limit} bytes"

    for value in (*graph.inputs, *(output for node in graph.nodes for output in node.outputs)):
        if value.nbytes > limit:
            raise CompileError(f"value {value.name}: shape {value.shape} needs {value.nbytes} bytes; {memory}")
    ends = sum(value.nbytes for value in (*graph.inputs, *graph.outputs))
    if ends > limit:
        raise CompileError(f"inputs and outputs need {ends} bytes together; {memory}")


def _verify_image(image: BlobImage, profile: Profile) -> None:
    problems = blob.prove(image, profile, faults_only=True)
    if problems:
        raise AssertionError("the emitted blob cannot be proved: " + "; ".join(map(str, problems[:5])))
