"""npu_firmware."""
