"""npu_driver."""
