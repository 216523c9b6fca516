"""`npu timeline TRACE`: where the time of a recorded run went. The analysis itself is in timeline.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npu_model.vocabulary import Vocabulary, load_vocabulary

from libnpu.tools import source, steps, timeline
from libnpu.tools.console import ToolError, format_time, print_json, print_table
from libnpu.tools.perfetto import read_trace
from libnpu.trace.slices import ENGINES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    Word = Callable[[str], str]  # what an engine is called


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("trace", metavar="TRACE", nargs="?", help="file written by npu run --trace")
    parser.add_argument("--overlap", action="store_true", help="percent of time with 0, 1, 2 and 3 engines busy")
    parser.add_argument("--layers", action="store_true", help="engine time of every layer")
    parser.add_argument(
        "--step",
        type=source.count,
        metavar="N",
        help="where the run is at the Nth start or end of a task, with serial and pipelined time",
    )
    parser.add_argument(
        "--vocab",
        metavar="NAME",
        help="call engines as others do (gpu, or a .json file), and show the words; without TRACE only those",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print the analysis of `options.trace`, and the words of a vocabulary."""
    if options.trace is None and options.vocab is None:
        raise ToolError("give a trace file, or a vocabulary with --vocab")
    vocabulary = load_vocabulary(options.vocab) if options.vocab else None
    report = _analyse(options, vocabulary.word if vocabulary else str) if options.trace else {}
    if options.json:
        print_json(report | ({"vocabulary": vocabulary_json(vocabulary)} if vocabulary else {}))
    elif vocabulary:
        print_vocabulary(vocabulary)
    return 0


def _analyse(options: argparse.Namespace, word: Word) -> dict[str, Any]:
    """Return the analysis for JSON, or print it and return {}."""
    slices, summary, retired_ps = read_trace(options.trace)
    if not slices:
        raise ToolError(f"{options.trace}: holds no task")
    if options.step is not None:
        if options.json:
            return steps.step_of(slices, retired_ps, options.step)
        print(steps.step_text(slices, retired_ps, options.step))
        return {}
    start_ps, end_ps = timeline.span(slices)
    start_ps, end_ps = summary.get("start_ps", start_ps), summary.get("end_ps", end_ps)
    usage = timeline.usage(slices, end_ps - start_ps, summary.get("units", {}))
    together = timeline.overlap(slices, start_ps, end_ps)
    if options.json:
        return {
            "span_ps": end_ps - start_ps,
            "engines": [usage_json(u, word) for u in usage],
            "overlap": overlap_json(together, word),
            "layers": [
                {"name": layer.name, "busy_ps": {word(name): ps for name, ps in layer.busy_ps.items()}}
                for layer in timeline.layers(slices)
            ],
        }
    print_usage(usage, end_ps - start_ps, word)
    if options.overlap:
        print_overlap(together, word)
    if options.layers:
        print_layers(timeline.layers(slices), word=word)
    return {}


def vocabulary_json(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the words of a vocabulary by ours."""
    return {
        "name": vocabulary.name,
        "terms": {ours: {"word": term.word, "differs": term.differs} for ours, term in vocabulary.terms.items()},
    }


def print_vocabulary(vocabulary: Vocabulary) -> None:
    """Print our words, those of a vocabulary, and where the comparison ends."""
    rows = [(ours, term.word, term.differs) for ours, term in vocabulary.terms.items()]
    print_table(f"{vocabulary.name}: {vocabulary.description}", ("here", "there", "what differs"), rows, left=3)


def usage_json(usage: timeline.Usage, word: Word = str) -> dict[str, Any]:
    """Return a Usage for JSON."""
    return {
        "name": word(usage.name),
        "units": usage.units,
        "tasks": usage.tasks,
        "busy_ps": usage.busy_ps,
        "utilisation": round(usage.utilisation, 6),
    }


def overlap_json(together: dict[frozenset[str], int], word: Word = str) -> dict[str, Any]:
    """Return the overlap for JSON: shares by number of engines, picoseconds by their names."""
    return {
        "by_count": [round(share, 6) for share in timeline.overlap_by_count(together)],
        "by_engines_ps": {_names(names, word): ps for names, ps in sorted(together.items(), key=_order)},
    }


def _names(engines: frozenset[str], word: Word) -> str:
    return "+".join(map(word, sorted(engines))) or "none"


def _order(item: tuple[frozenset[str], int]) -> tuple[int, list[str]]:
    return len(item[0]), sorted(item[0])


def print_usage(usage: list[timeline.Usage], span_ps: int, word: Word = str) -> None:
    """Print one line per engine."""
    rows = [(word(u.name), str(u.units), str(u.tasks), format_time(u.busy_ps), f"{u.utilisation:.1%}") for u in usage]
    print_table(f"engines over {format_time(span_ps)}", ("engine", "units", "tasks", "busy", "utilisation"), rows)


def print_overlap(together: dict[frozenset[str], int], word: Word = str) -> None:
    """Print the shares of time by number of busy engines, then which ones."""
    span_ps = sum(together.values()) or 1
    shares = timeline.overlap_by_count(together)
    rows = [(f"{n} engines busy", f"{share:.1%}", format_time(share * span_ps)) for n, share in enumerate(shares)]
    rows += [
        (_names(names, word), f"{ps / span_ps:.1%}", format_time(ps))
        for names, ps in sorted(together.items(), key=_order)
    ]
    print_table("overlap", ("", "share", "time"), rows)


def print_layers(layers: list[timeline.LayerUsage], limit: int | None = None, word: Word = str) -> None:
    """Print engine time by layer in order of start; with `limit`, only the longest, longest first."""
    if limit is not None:
        layers = sorted(layers, key=lambda layer: -sum(layer.busy_ps.values()))[:limit]
    rows = [
        (layer.name, *(format_time(layer.busy_ps[e]) if e in layer.busy_ps else "" for e in ENGINES), format_time(layer.last_ps - layer.first_ps))
        for layer in layers
    ]  # fmt: skip
    title = "layers" if limit is None else f"longest {len(rows)} layers"
    print_table(title, ("layer", *map(word, ENGINES), "first to last"), rows)
