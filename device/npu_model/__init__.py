"""npu_model."""
