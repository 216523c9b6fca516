"""The shortest paths through device and firmware: boot, and one copy."""

import numpy as np
from npu_abi import C

from tests.device.rig import CMX, Blob, Rig


def test_the_firmware_announces_itself_with_its_versions():
    rig = Rig()
    assert rig.bus.read32(C.NPU_REG_BOOT_STATUS) == C.NPU_BOOT_RUNNING
    assert rig.messages[0].type == C.NPU_JSM_BOOT_DONE
    done = rig.payload(rig.messages[0], "npu_jsm_boot_done")
    assert list(done.api_version[C.NPU_FW_API_JSM]) == [C.NPU_FW_JSM_API_MAJOR, C.NPU_FW_JSM_API_MINOR]
    assert rig.messages[1].type == C.NPU_JSM_REGISTER_DB_DONE
    assert rig.messages[1].result == C.NPU_JSM_OK


def test_a_copy_through_cmx_moves_the_bytes_and_takes_its_units():
    rig = Rig()
    data = np.arange(2048, dtype=np.uint16).view(np.uint8)[:2048]
    src, dst = rig.alloc(data.tobytes()), rig.alloc(4096)
    blob = Blob()
    bar = blob.barrier()
    blob.add_dma(src, CMX, 2048, posts=[bar])
    blob.add_dma(CMX, dst, 2048, waits=[bar], port=1)
    done = rig.execute(rig.inference(blob))
    assert done.job_status == C.NPU_JOB_SUCCESS, (done.job_status, done.error_detail, hex(done.error_info))
    assert done.end_ps - done.start_ps == 4_000_000  # 2 + 2 units of 1 us
    assert (rig.memory(dst)[:2048] == data).all()
    assert (rig.memory(dst)[2048:] == 0xFF).all()
