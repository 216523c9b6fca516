"""npu_device."""
