"""Vocabularies: what others call the parts of the device, as data beside the profiles (`profiles/vocabulary/*.json`, or a path of the user's)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from npu_model.data_file import read_data

FOLDER = Path(__file__).parent / "profiles" / "vocabulary"


class Term(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The closest word, and where the comparison ends."""

    word: str
    differs: str


class Vocabulary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Words by ours. Traces have "DMA", "DPU" and "SHAVE" of them."""

    name: str
    description: str
    terms: dict[str, Term]
    sources: dict[str, str]

    def word(self, ours: str) -> str:
        """Return what `ours` is called; `ours` where there is no word for it."""
        term = self.terms.get(ours)
        return term.word if term else ours


class VocabularyError(ValueError):
    """A vocabulary that does not exist or does not validate; the message names the field."""


def vocabulary_names() -> list[str]:
    """Return the names of the shipped vocabularies, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load_vocabulary(name_or_path: str) -> Vocabulary:
    """Return the shipped vocabulary of that name, or the one in the JSON file at that path. Raises VocabularyError."""
    path = Path(name_or_path)
    if path.suffix != ".json":
        if name_or_path not in vocabulary_names():
            known = ", ".join(vocabulary_names())
            raise VocabularyError(f"no vocabulary named {name_or_path!r}; there are {known}, or give a .json file")
        path = FOLDER / f"{name_or_path}.json"
    try:
        return read_data(path, Vocabulary, "file of a vocabulary")
    except ValueError as error:
        raise VocabularyError(str(error)) from None
