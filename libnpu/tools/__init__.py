"""The `npu` command and the analysis behind it."""
