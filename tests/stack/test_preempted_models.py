"""A real model whose inferences realtime work preempts again and again."""

import pytest

import libnpu
from libnpu.compiler import CompileOptions, compile_model
from tests.preemption.conftest import Pair, X, small_model

pytestmark = [pytest.mark.models, pytest.mark.timeout(300)]


@pytest.mark.parametrize("precision", ["fp16", pytest.param("fp32", marks=pytest.mark.slow)])
def test_ppocr_v2_cls_gives_the_same_bytes_however_often_it_is_preempted(models, precision):
    path, shapes = models.model_path("ppocr_v2_cls"), models.shapes("ppocr_v2_cls")
    blob = compile_model(path, CompileOptions(precision=precision, shapes=shapes, tiles=1)).blob
    with libnpu.open("npu-37xx", trace=True) as device:
        pair = Pair(device, blob, models.inputs(path, fixed=shapes))
        urgent = Pair(
            device, compile_model(small_model(), CompileOptions(tiles=1)).blob, {"x": X}, device.create_context()
        )
        left = 0
        for first_ns in (0, 7_000, 23_000):
            low = pair.begin()
            pair.host_works(first_ns)
            while not all(stream.query() for stream in (pair.idle, pair.normal)):
                urgent.launch(urgent.urgent, 2).wait()
                assert urgent.is_right(2)
                pair.host_works(37_000)  # no divisor of what an inference takes, so each time the boundary is another
            device.synchronize()
            assert [job.error for job in low] == [None, None]
            assert pair.is_right(0)
            assert pair.is_right(1)
            gone, back = pair.moves()
            assert gone == back
            left += gone
        assert left >= 30
