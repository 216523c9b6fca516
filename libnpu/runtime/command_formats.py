"""The parts of a command buffer of npu_fw.h that every job has, and the whole buffer of the most frequent one."""

from __future__ import annotations

from struct import Struct

from npu_abi import C, codec

HEADER = codec(
    "npu_cmd_buffer_header", "cmd_buffer_size", "cmd_offset", "api_version", "descriptor_heap_va", "fence_heap_va"
)
EXECUTE = codec("npu_cmd_inference", "h.type", "h.size", "inference_id", "mapped_inference_va")
FENCE = codec("npu_cmd_fence", "h.type", "h.size", "offset", "value")
WAIT, SIGNAL = int(C.NPU_CMD_FENCE_WAIT), int(C.NPU_CMD_FENCE_SIGNAL)
VERSION = int(C.NPU_CMD_API_VERSION)
HEADER_BYTES, EXECUTE_BYTES, FENCE_BYTES = HEADER.size, EXECUTE.size, FENCE.size
ALONE = Struct(HEADER.format + EXECUTE.format[1:] + FENCE.format[1:])  # one launch of a model, and the stream's fence
ALONE_BYTES = ALONE.size
