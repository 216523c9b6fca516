"""The blob container: a compiled model in memory (`BlobImage`), as an ELF file (`write`, `read`), as text, and verified."""

from libnpu.blob.image import TASK_SECTIONS, BlobError, BlobImage, IoTensor, Relocation
from libnpu.blob.reader import read
from libnpu.blob.writer import write

__all__ = ["TASK_SECTIONS", "BlobError", "BlobImage", "IoTensor", "Relocation", "read", "write"]
