"""Write what the C samples load into the current folder: a compiled model with its input and expected output, and a kernel that faults."""

import sys
from pathlib import Path

import numpy as np
from onnx.reference import ReferenceEvaluator

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from error_handling import fault_library
from run_model import compiled, image, small_model

Path("model.blob").write_bytes(compiled())
Path("x.raw").write_bytes(image().tobytes())
(expected,) = ReferenceEvaluator(small_model()).run(None, {"x": image()})
Path("y.raw").write_bytes(expected.astype(np.float32).tobytes())
Path("fault.blob").write_bytes(fault_library())
