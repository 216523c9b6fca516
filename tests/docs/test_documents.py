"""What the documents name exists: links, files, functions, make targets."""

import re
from pathlib import Path

import pytest

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


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for document in DOCUMENTS:
        for target in re.findall(r"`make (\w+)", document.read_text()):
            assert f"\n{target}:" in makefile, target
