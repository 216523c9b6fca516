"""The command of the package; its docstring has examples."""

from __future__ import annotations

import argparse
import collections
import re
import sys
import warnings

from tests.compiler import fuzz
from tests.compiler.fuzz.judge import ALL_LEVELS, LEVELS, judge, open_device, shrunk
from tests.compiler.fuzz.judge import fuzz as run
from tests.compiler.fuzz.recipes import RECIPES


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.compiler.fuzz", description=fuzz.__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="models are those of (seed, 0), (seed, 1) ...")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--only", default="", help="operators of which each model tries to hold one, by comma")
    parser.add_argument("--refused", action="store_true", help="list why models were refused")
    parser.add_argument("--whole-cmx", action="store_true", help="not with the least CMX as well")
    parser.add_argument("--solved", action="store_true", help="at -O3 as well")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    only = [name for name in options.only.split(",") if name]
    if unknown := sorted(set(only) - set(RECIPES)):
        parser.error(f"--only: no operator {', '.join(unknown)}")
    how = {"options": ALL_LEVELS if options.solved else LEVELS, "least": not options.whole_cmx}
    seeds = [(options.seed, number) for number in range(options.first, options.first + options.count)]
    refused, drawn, faults, compared, skipped, models = collections.Counter(), collections.Counter(), 0, 0, 0, 0
    with open_device() as device:
        for seed, model, verdict in run(seeds, device, only, **how):
            models += 1
            compared, skipped = compared + verdict.compared, skipped + verdict.skipped
            drawn.update({node.op for node in model.nodes} if not verdict.refusal else ())
            if verdict.refusal:
                refused[re.sub(r"node \S+ |\(\S*\)|\b(input|output|value) \S+|\d+", "", verdict.refusal)] += 1
            if verdict.fault:
                faults += 1
                small = shrunk(model, lambda smaller: bool(judge(smaller, device, **how).fault))
                print(
                    f"--- {seed}: {verdict.fault}\n{small.text()}\n{judge(small, device, **how).fault}",
                    flush=True,
                )
    print(
        f"{models} models, {faults} wrong, {refused.total()} refused; {compared} elements compared, {skipped} in doubt"
    )
    print(f"{len(drawn)} operators: " + " ".join(f"{name}:{count}" for name, count in sorted(drawn.items())))
    if options.refused:
        print("\n".join(f"{count:4} {reason}" for reason, count in refused.most_common()))
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
