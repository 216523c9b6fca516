"""Reading the JSON files that describe hardware: profiles and memory systems."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")


def read_data(path: Path, kind: type[T], what: str) -> T:
    """Return the `kind` in a file. Raises ValueError, which names the file and the field; `what` it is that does not exist."""
    if path.exists() and not path.is_file():  # never wait for a pipe
        raise ValueError(f"{path}: not a regular file")
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path.name}: {error}") from None
    except FileNotFoundError:
        raise ValueError(f"no such {what}: {path}") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
