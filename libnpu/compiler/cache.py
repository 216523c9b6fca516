"""The compile cache: finished blobs by what they are made of, in files of the user's cache folder.

A key is the SHA-256 of all that a result depends on: the model's bytes and those of its external data, the options, what the
profile says, the compiler's own source and the versions of the packages that compute for it. An entry is one file, written
aside and renamed, so that processes see all of it or nothing; a digest in front says whether it is whole, and one that is not
counts as absent. When all take more than the limit, those go that were used longest ago.

NPU_COMPILE_CACHE is "0" for none, or the folder; NPU_COMPILE_CACHE_SIZE is the limit (bytes, or with K, M or G behind).
A cache that cannot be read or written is none: compiling does not need it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from npu_model.cache import cache_folder, make_private
from npu_model.profile import load_profile

from libnpu.compiler.options import BadOption

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from libnpu.compiler.options import CompileOptions
    from libnpu.compiler.pipeline import Compiled

FOLDER, SIZE = "NPU_COMPILE_CACHE", "NPU_COMPILE_CACHE_SIZE"
DEFAULT_BYTES = 1 << 31  # chosen: some hundred models of vision, or a few large ones
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SUFFIX, _ASIDE = ".npuc", ".aside"  # of an entry, and of one that is being written
_ABANDONED_S = 3600  # after which what is being written was left by a process that ended
_DIGEST_BYTES, _LENGTH_BYTES = 32, 8
_MOST_BYTES = 1 << 31  # of a message of protobuf
_PACKAGES = ("numpy", "onnx", "ortools")


class CompileCache:
    """Entries in one folder, which take `limit_bytes` at most."""

    def __init__(self, folder: Path, limit_bytes: int = DEFAULT_BYTES) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes

    def get(self, key: str) -> Compiled | None:
        """Return what was compiled, None when it is not there or damaged."""
        from libnpu import blob, parts
        from libnpu.compiler.pipeline import Compiled

        path = self._path(key)
        try:
            make_private(self.folder)
            data = path.read_bytes()
            payload = memoryview(data)[_DIGEST_BYTES:]
            if hashlib.sha256(payload).digest() != data[:_DIGEST_BYTES]:
                path.unlink(missing_ok=True)
                return None
            os.utime(path)
        except OSError:
            return None
        end = _LENGTH_BYTES + int.from_bytes(payload[:_LENGTH_BYTES], "little")
        report, content = json.loads(bytes(payload[_LENGTH_BYTES:end])), bytes(payload[end:])
        if content.startswith(parts.MAGIC):
            return Compiled(content, None, report, parts.unpack(content), from_cache=True)
        return Compiled(content, blob.read(content), report, from_cache=True)

    def put(self, key: str, compiled: Compiled) -> None:
        """Keep a result, unless its report is more than JSON can say or it is larger than all may be; drop the oldest ones for it."""
        report = json.dumps(compiled.report).encode()
        size = _DIGEST_BYTES + _LENGTH_BYTES + len(report) + len(compiled.blob)
        if json.loads(report) != compiled.report or size > self.limit_bytes:
            return
        head = len(report).to_bytes(_LENGTH_BYTES, "little")
        digest = hashlib.sha256(head + report)
        digest.update(compiled.blob)
        with suppress(OSError):
            aside = tempfile.NamedTemporaryFile(dir=make_private(self.folder), suffix=_ASIDE, delete=False)  # noqa: SIM115 - renamed
            try:
                with aside:
                    aside.writelines((digest.digest(), head, report, compiled.blob))
                os.replace(aside.name, self._path(key))
            except BaseException:
                os.unlink(aside.name)
                raise
            self._drop_oldest(self._path(key))

    def _path(self, key: str) -> Path:
        return self.folder / (key + _SUFFIX)

    def _drop_oldest(self, newest: Path) -> None:
        """Delete entries, those that were used longest ago first, until all take no more than the limit; `newest` stays."""
        found, total = [], 0
        for path, status in _statuses(self.folder):
            if path.suffix == _SUFFIX:
                total += status.st_size
                found.append((status.st_mtime_ns, path.name, path, status.st_size))
            elif path.suffix == _ASIDE and status.st_mtime < time.time() - _ABANDONED_S:
                path.unlink(missing_ok=True)
        for _, _, path, size in sorted(found):
            if total <= self.limit_bytes:
                return
            if path != newest:
                path.unlink(missing_ok=True)
                total -= size


def _statuses(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another process has dropped it
            yield path, path.stat()


def cache_of(environment: Mapping[str, str] = os.environ) -> CompileCache | None:
    """Return the cache that the environment asks for, None for none. Raises BadOption for a size that is no size."""
    folder, text = environment.get(FOLDER, ""), environment.get(SIZE, "")
    if folder == "0":
        return None
    digits, unit = (text[:-1], _UNITS[text[-1:].upper()]) if text[-1:].upper() in _UNITS else (text, 1)
    if text and not (digits.isascii() and digits.isdecimal()):
        raise BadOption(f"{SIZE}={text!r}; bytes, or as 500M or 2G")
    return CompileCache(
        Path(folder) if folder else cache_folder() / "compiled", int(digits) * unit if text else DEFAULT_BYTES
    )


def key_of(model: str | Path | bytes | Any, options: CompileOptions) -> str | None:
    """Return the key of a model under options; None when that cannot be told: what is wrong, the compiler says."""
    found = hashlib.sha256()
    try:
        for part in (
            _source_digest(),
            _of_options(options),
            *_of_profile(options.profile),
            *_of_model(model, options.plan_only),
        ):
            found.update(hashlib.sha256(part).digest())
    except (OSError, ValueError):
        return None
    return found.hexdigest()


def _of_options(options: CompileOptions) -> bytes:
    values = {field.name: getattr(options, field.name) for field in fields(options) if field.name != "profile"}
    for name in ("shapes", "dynamic"):
        values[name] = sorted((key, value) for key, value in values[name].items())
    return repr(values).encode()


def _of_profile(name: str) -> Iterator[bytes]:
    """Yield what a profile and its memory system say, and the profile's name as it was given, which the blob has."""
    profile = load_profile(name)
    yield from (name.encode(), msgspec.json.encode(profile), msgspec.json.encode(profile.memory_system))


def _of_model(model: str | Path | bytes | Any, is_plan: bool) -> Iterator[bytes]:
    """Yield the bytes of a model and of its external data. Raises OSError, ValueError where there are none."""
    if isinstance(model, bytes):
        yield model
    elif isinstance(model, str | Path):
        data = Path(model).read_bytes()
        yield data
        if b"location" in data:  # the key under which a tensor names its file
            yield from _external_data(data, Path(model).parent, is_plan)
    elif hasattr(model, "SerializeToString") and model.ByteSize() < _MOST_BYTES:
        yield model.SerializeToString(deterministic=True)
    else:
        raise ValueError(f"the bytes of a {type(model).__name__}")


def _external_data(data: bytes, folder: Path, is_plan: bool) -> Iterator[bytes]:
    """Yield the digests of the files that the compiler reads beside a model; a plan leaves large weights where they are."""
    import onnx

    from libnpu.compiler.frontend.source import may_lack_data

    try:
        model = onnx.load_from_string(data)
    except Exception as error:  # protobuf's DecodeError has no stable home
        raise ValueError(str(error)) from error
    names = {
        entry.value
        for tensor in onnx.external_data_helper._get_all_tensors(model)
        for entry in tensor.external_data
        if entry.key == "location" and not (is_plan and may_lack_data(tensor))
    }
    for name in sorted(names):
        with (folder / name).open("rb") as file:
            yield hashlib.file_digest(file, "sha256").digest()


@cache
def _source_digest() -> bytes:
    """Return the digest of what makes blobs: the sources of the compiler and of the packages below it, and versions."""
    from importlib.metadata import PackageNotFoundError, version

    import npu_abi
    import npu_model

    versions = [repr(sys.version_info[:2])]
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions.append(f"{name} {version(name)}")
    found = hashlib.sha256("\n".join(versions).encode())
    own = Path(__file__).parent.parent  # libnpu
    for folder in (own, Path(str(npu_model.__file__)).parent, Path(str(npu_abi.__file__)).parent):
        for path in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".c", ".h")):
            found.update(f"{path.relative_to(folder)} {path.stat().st_size} ".encode())
            found.update(path.read_bytes())
    return found.digest()
