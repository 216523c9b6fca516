"""A descriptor that only an engine refuses: the error names the engine and the task."""

from __future__ import annotations

import numpy as np
import pytest
from npu_abi import C
from npu_device.dma_copy import Move
from npu_model.descriptors import DescriptorError

import libnpu
from libnpu.blob import write
from libnpu.errors import job_result


@pytest.mark.parametrize(
    ("engine", "result"),
    [(C.NPU_ENGINE_DMA, C.NPU_ERROR_DMA_FAULT), (C.NPU_ENGINE_DPU, C.NPU_ERROR_INVALID_BLOB)],
)
def test_only_a_dma_port_has_dma_faults(engine, result):
    assert job_result(C.NPU_JOB_PROCESSING_ERR, engine) == result


def test_the_error_names_the_engine_and_the_task(image, monkeypatch):
    def refuse(record):
        raise DescriptorError("DMA of this test")

    inputs = {"x": np.arange(1024).astype(np.uint8)}
    with libnpu.open("npu-37xx") as device, device.load(write(image())) as blob:
        with monkeypatch.context() as patch:
            patch.setattr(Move, "decode", refuse)
            with pytest.raises(libnpu.NpuError, match="NPU_ENGINE_DMA refused a descriptor, task 'step0'") as caught:
                blob.run(inputs)
        assert caught.value.result == C.NPU_ERROR_DMA_FAULT
        assert caught.value.job_status == C.NPU_JOB_PROCESSING_ERR
        assert (blob.run(inputs)["y"] == inputs["x"]).all()
