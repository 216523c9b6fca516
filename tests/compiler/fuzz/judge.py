"""Judging: models grow from seeds, go through the compiler and the device, and are held against the oracle; a wrong one shrinks."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

import libnpu
from libnpu.compiler import CompileOptions, compile_model
from libnpu.compiler import options as compiler_options
from libnpu.compiler.lower import CompileError
from libnpu.errors import Unimplemented, Unsupported
from tests.compiler.fuzz.draw import Draw, Reject
from tests.compiler.fuzz.model import is_float
from tests.compiler.fuzz.oracle import bounds
from tests.compiler.fuzz.recipes import RECIPES

PRECISIONS = ("fp32", "fp16")
PROFILE = "npu-37xx"
LEVELS = tuple({"optimisation": level} for level in compiler_options.LEVELS if level < compiler_options.SOLVED)
ALL_LEVELS = (
    {"optimisation": compiler_options.SOLVED},
    *LEVELS,
)  # where there is time for CP-SAT; the last is with the least CMX, too
MAX_NODES = 10
LEAST_STEP_BYTES = 1024  # how near to the least CMX


def grown(seed, only=()):
    """Return the random model of a seed, its results all outputs that nothing reads and some that something does; None if nothing came of it."""
    draw = Draw(seed)
    names = sorted(RECIPES)
    wanted = draw.whole(1, MAX_NODES)
    tries = 0
    while len(draw.model.nodes) < wanted and tries < 12 * MAX_NODES:
        tries += 1
        op = draw.choice(only) if only and draw.chance(0.5) else draw.choice(names)
        draw.fresh = {}
        try:
            RECIPES[op](draw, op)
        except Reject:
            continue
    model = draw.model
    read = {name for node in model.nodes for name in node.inputs}
    made = [name for node in model.nodes for name in node.outputs]
    model.outputs = [name for name in made if model.values[name].size and (name not in read or draw.chance(0.15))]
    return model.pruned() if model.outputs else None


@dataclass(slots=True)
class Verdict:
    """`fault` is "" of a model that is right or refused; `refusal` says why it was."""

    fault: str = ""
    refusal: str = ""
    compared: int = 0  # elements that were held against a bound
    skipped: int = 0  # those in doubt, e.g. the place of the larger of two that may be equal


def judge(model, device, precisions=PRECISIONS, options=LEVELS, least=True):
    """Return the verdict on a model in each precision and with each of some options of the compiler, with the last of them also with the least CMX that it needs."""
    total = Verdict()
    proto = model.proto()
    for precision in precisions:
        limits = bounds(model, precision)
        for more in options:
            chosen = {"precision": precision, "profile": PROFILE, "strict": True} | more
            try:
                compiled = compile_model(proto, CompileOptions(**chosen))
                runs = [compiled, *([smallest(proto, chosen, compiled)] if least and more is options[-1] else [])]
            except (Unsupported, Unimplemented) as error:
                return Verdict(refusal=str(error))
            except Exception as error:
                return Verdict(f"{chosen}: {type(error).__name__}: {error}")
            for run in runs:
                if run is None:
                    continue
                try:
                    with device.load(run.blob) as blob:
                        got = blob.run(model.feeds)
                except Exception as error:
                    return Verdict(f"{chosen}: {type(error).__name__}: {error}")
                for name in model.outputs:
                    fault = differs(got[name], model.values[name], limits[name])
                    if fault:
                        return Verdict(f"{chosen}{' least CMX' * (run is not compiled)}: {name}: {fault}")
                    total.compared += int(np.isfinite(limits[name]).sum())
                    total.skipped += int(np.isinf(limits[name]).sum())
    return total


def smallest(proto, chosen, compiled):
    """Return the model compiled for the least CMX that it can have, None when that is as much as it has."""
    low, high, found = 0, int(compiled.report["peak_cmx_bytes"]), None
    while high - low > max(LEAST_STEP_BYTES, high // 16):
        middle = (low + high) // 2
        try:
            found = compile_model(proto, CompileOptions(**chosen, cmx_bytes=middle))
            high = middle
        except CompileError:
            low = middle
    return found


def differs(have, want, bound):
    """Return what is wrong, "" when nothing is."""
    if (have.dtype, have.shape) != (want.dtype, want.shape):
        return f"is {have.dtype}{have.shape}, expected {want.dtype}{want.shape}"
    kind = np.float64 if is_float(want.dtype) else np.int64 if want.dtype != np.uint64 else np.uint64
    a, b = have.astype(kind), want.astype(kind)
    wrong = np.asarray(~(np.abs(a - b) <= bound) & ~np.isinf(bound) if kind != np.uint64 else a != b)
    if not wrong.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{np.count_nonzero(wrong)} of {wrong.size}, at {list(place)} {a[place]!r}, expected {b[place]!r} within {bound[place]:.3g}"


def shrunk(model, is_wrong):
    """Return the smallest model that is still wrong: few outputs, one mostly, and values in between that became inputs."""
    found = next((one for name in model.outputs if is_wrong(one := replace(model, outputs=[name]).pruned())), model)
    for name in found.outputs:
        rest = [other for other in found.outputs if other != name]
        if rest and is_wrong(one := replace(found, outputs=rest).pruned()):
            found = one
    for width in (2, 1):
        again = True
        while again:
            again = False
            inner = [
                name
                for node in found.nodes
                for name in node.outputs
                if name not in found.outputs and name in {i for n in found.nodes for i in n.inputs}
            ]
            for names in itertools.combinations(reversed(inner), width):
                smaller = without(found, names)
                if len(smaller.nodes) < len(found.nodes) and is_wrong(smaller):
                    found, again = smaller, True
                    break
    return found


def without(model, names):
    """Return the model with some values, which nodes give, as inputs."""
    nodes = []
    for node in model.nodes:
        kept = tuple("" if name in names else name for name in node.outputs)
        if any(kept):
            nodes.append(replace(node, outputs=kept))
    return replace(model, nodes=nodes, feeds=model.feeds | {name: model.values[name] for name in names}).pruned()


def fuzz(seeds, device, only=(), **how):
    """Yield (seed, model, verdict) for each seed that a model grew from."""
    for seed in seeds:
        model = grown(seed, only)
        if model is not None:
            yield seed, model, judge(model, device, **how)


def open_device():
    return libnpu.open(PROFILE, where="")
