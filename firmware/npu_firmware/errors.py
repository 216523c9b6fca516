"""Why the firmware refuses a job."""

from __future__ import annotations


class ParseError(Exception):
    """A command buffer, a MappedInference or a task list that breaks its contract.

    `code` is enum npu_parse_error, `info` the error_info of JOB_DONE: index | list << 32, lists numbered as the references of
    struct npu_mapped_inference.
    """

    def __init__(self, code: int, info: int = 0) -> None:
        super().__init__(f"parse error {code} at {info & 0xFFFFFFFF} of list {info >> 32}")
        self.code = code
        self.info = info
