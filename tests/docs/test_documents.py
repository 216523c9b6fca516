"""What the documents name exists: links, files, functions, make targets."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from npu_abi import C

import libnpu
from libnpu.runtime.semantics import PROFILES, InFlight, Pageable, Semantics

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PACKAGES = ("libnpu", "driver", "device", "firmware", "include", "benchmarks", "scripts", "samples")


def code_spans(text):
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


@pytest.fixture(scope="module")
def sources():
    """Every source file of the project by its path."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*"):
            if path.suffix in (".py", ".c", ".h", ".json", ".bin"):
                found[str(path.relative_to(ROOT))] = path.read_text() if path.suffix in (".py", ".c", ".h") else ""
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text()):
        assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_source_file_that_is_named_exists(document, sources):
    named = [span for span in code_spans(document.read_text()) if re.fullmatch(r"[\w/.-]+\.(py|c|h|bin)", span)]
    known = [f"/{path}" for path in sources]
    assert [span for span in named if not any(path.endswith(f"/{span}") for path in known)] == []


def test_every_function_that_the_architecture_names_exists(sources):
    defined = set(re.findall(r"\b(?:def|class) (\w+)", "\n".join(sources.values())))
    calls = {
        call
        for span in code_spans((ROOT / "docs" / "architecture.md").read_text())
        for call in re.findall(r"(\w+)\(", span)
    }
    assert len(calls) > 20
    assert calls - defined == {"ceil"}  # a formula


def test_the_host_api_names_functions_that_exist():
    text = (ROOT / "docs" / "host-api.md").read_text()
    header = (ROOT / "include" / "npu_abi" / "npu.h").read_text()
    named = set(re.findall(r"\bnpu_\w+", "\n".join(code_spans(text))))
    assert len(named) > 30
    assert {name for name in named if not re.search(rf"\b{name}\b", header)} == set()
    samples = {path.stem for path in (ROOT / "samples").rglob("*.c")} | {
        path.stem for path in (ROOT / "samples").rglob("*.py")
    }
    shown = re.findall(r"\(`(\w+)`(?:, `\w+`)?\)", text)
    assert {name for name in shown if not name.startswith("npu_")} <= samples


def test_the_python_names_beside_those_of_c_exist():
    text = (ROOT / "docs" / "host-api.md").read_text()
    table = text[text.index("## The same in C and in Python") :]
    named = re.findall(r"`([A-Z]\w+)\.(\w+)`", table)
    assert len(named) > 40
    # `kernels` is an attribute of each module, which the class does not have.
    missing = [(kind, name) for kind, name in named if not hasattr(getattr(libnpu, kind), name)]
    assert missing == [("Module", "kernels")]


# What the table of the semantics says of a rule, and the value that is meant.
SEMANTICS = {
    "legacy_default_stream": (
        "legacy default stream",
        {"no: a stream like others": False, "no": False, "yes: waits": True},
    ),
    "unrecorded_event_is_error": ("wait for, ask an event", {"success": False, "NOT_RECORDED": True}),
    "free": (
        "free memory in use",
        {"returns, the memory": InFlight.KEEP, "waits": InFlight.WAIT, "IN_USE": InFlight.REFUSE},
    ),
    "free_null": ("free NULL", {"NULL_POINTER": False, "success": True}),
    "empty_allocation": ("allocate 0", {"INVALID_SIZE": False, "success, NULL": True}),
    "pageable": (
        "asynchronous copy of pageable",
        {
            "waits for the stream": Pageable.COMPLETE,
            "to the device: staged": Pageable.STAGED,
            "NOT_PERMITTED": Pageable.REFUSE,
        },
    ),
    "sticky_errors": ("device errors", {"reported once": False, "stick": True}),
    "clamp_priority": ("priority out of", {"INVALID_VALUE": False, "clamped": True}),
    "destroy_stream": (
        "destroy a stream",
        {"waits for it": InFlight.WAIT, "returns, the work": InFlight.KEEP, "IN_USE": InFlight.REFUSE},
    ),
}


def test_the_table_of_semantics_has_every_rule_as_the_library_has_it():
    text = (ROOT / "docs" / "host-api.md").read_text()
    section = re.search(r"^## Semantics\n(.*?)^## ", text, re.M | re.S)[1]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("|")][
        2:
    ]
    assert {field.name for field in fields(Semantics)} == {"name", *SEMANTICS}
    assert len(rows) == len(SEMANTICS)
    for rule, (title, meanings) in SEMANTICS.items():
        (row,) = [row for row in rows if row[0].startswith(title)]
        for name, cell in zip(("ascend", "cuda", "strict"), row[1:], strict=True):
            (meant,) = {value for start, value in meanings.items() if cell.startswith(start)}
            assert getattr(PROFILES[name], rule) == meant, (rule, name)
        read_in = {
            path.parent.name
            for path in sorted((ROOT / "libnpu").rglob("*.py"))
            if f".semantics.{rule}" in path.read_text()
        }
        assert ("(C" in row[0]) == (read_in == {"capi"}), rule


def test_what_strict_accepts_may_be_wrong_under_cuda():
    """The page says so, and what it is: a stream waits for a notify that the default stream records later."""
    for name, expected in (("strict", None), ("ascend", None), ("cuda", C.NPU_ERROR_BARRIER_DEADLOCK)):
        with libnpu.open(semantics=name) as device:
            notify = device.primary.create_notify()
            notify.wait(device.create_stream())
            if expected is None:
                notify.record(device.default_stream)
                device.synchronize()
                continue
            with pytest.raises(libnpu.NpuError) as raised:
                notify.record(device.default_stream)
                device.synchronize()
            assert raised.value.result == expected


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for document in DOCUMENTS:
        for target in re.findall(r"`make (\w+)", document.read_text()):
            assert f"\n{target}:" in makefile, target
