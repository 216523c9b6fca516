"""Input arrays of a run: from a .npz file, or random ones that fit the tensors; outputs back to a file."""

from __future__ import annotations

import io
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from libnpu.tools.console import ToolError
from libnpu.tools.files import write_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

MAX_RANDOM_ID = 10  # integer inputs are indices more often than not; small ones fit most tables


class Tensor(Protocol):
    """What is asked of a tensor here; `libnpu.runtime.TensorInfo` is one."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def numpy_dtype(self) -> np.dtype[Any]: ...


def load_inputs(path: str, tensors: Sequence[Tensor]) -> dict[str, NDArray[Any]]:
    """Return the arrays of the .npz file at `path` by tensor name.

    Raises ToolError when an array is missing or too many, or its type or shape is not the tensor's.
    """
    found = _arrays(path)
    names = [tensor.name for tensor in tensors]
    for tensor in tensors:
        array = found.get(tensor.name)
        if array is None:
            raise ToolError(f"{path}: no array {tensor.name!r}; the model's inputs are {', '.join(names)}")
        if array.dtype != tensor.numpy_dtype or array.shape != tensor.shape:
            kind = "SHAPE_MISMATCH: " if array.shape != tensor.shape else ""
            given, expected = f"{array.dtype} {list(array.shape)}", f"{tensor.numpy_dtype} {list(tensor.shape)}"
            raise ToolError(f"{path}: {kind}{tensor.name!r} is {given}; the model expects {expected}")
    for name in found:
        if name not in names:
            raise ToolError(f"{path}: array {name!r} is no input; the model's inputs are {', '.join(names)}")
    return found


def _arrays(path: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of a .npz file by name. Raises ToolError for any other file."""
    with open(path, "rb") as file:
        if not zipfile.is_zipfile(file):
            raise ToolError(f"{path}: not a .npz file; numpy.savez writes one, with an array for each input by name")
        file.seek(0)
        try:
            with np.load(file, allow_pickle=False) as content:
                found = {name: content[name] for name in content.files}
        except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            raise ToolError(f"{path}: a damaged .npz file: {error}") from None
    for name, array in found.items():
        if not isinstance(array, np.ndarray):  # a member of the archive that is no .npy file
            raise ToolError(f"{path}: {name!r} is no array")
    return found


def random_inputs(tensors: Sequence[Tensor], seed: int) -> dict[str, NDArray[Any]]:
    """Return arrays from a generator seeded with `seed`: floats of the normal distribution, integers 0 to 9, booleans."""
    rng = np.random.default_rng(seed)
    found: dict[str, NDArray[Any]] = {}
    for tensor in tensors:
        dtype = tensor.numpy_dtype
        if dtype.kind in "iu":
            found[tensor.name] = rng.integers(0, MAX_RANDOM_ID, tensor.shape).astype(dtype)
        elif dtype.kind == "b":
            found[tensor.name] = rng.integers(0, 2, tensor.shape).astype(dtype)
        else:
            found[tensor.name] = rng.standard_normal(tensor.shape, np.float32).astype(dtype)
    return found


def save_outputs(path: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write `arrays` to the .npz file at `path`; any name is allowed, and the same arrays give the same bytes."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    write_file(path, data.getvalue())
