"""What the tasks of a module are called: for the messages of jobs that fail, and for timelines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libnpu.blob import TASK_SECTIONS

if TYPE_CHECKING:
    from libnpu.blob import BlobImage

ERROR_LISTS = tuple(TASK_SECTIONS)  # the lists of the firmware's error_info, numbered as MappedInference's references


class TaskNames:
    """Names by task, as far as .npu.debug has them."""

    __slots__ = ("_entries", "_ids")

    def __init__(self, image: BlobImage) -> None:
        self._ids: dict[str, list[int]] = {
            name: array["task_id"].tolist()
            for name, array in image.tasks.items()
            if "task_id" in (array.dtype.names or ())
        }
        entries = image.debug.get("tasks")
        self._entries: list[object] = entries if isinstance(entries, list) else []  # by task id

    def failed(self, error_info: int) -> str | None:
        """Return the name of the task that a failed job reports in `error_info`, None when it is not known."""
        index, number = error_info & 0xFFFFFFFF, error_info >> 32
        ids = self._ids.get(ERROR_LISTS[number], []) if number < len(ERROR_LISTS) else []
        if index >= len(ids) or ids[index] >= len(self._entries):
            return None
        entry = self._entries[ids[index]]
        return str(entry.get("name")) if isinstance(entry, dict) else None

    @staticmethod
    def refused(error_info: int) -> str:
        """Return what a refused inference reports in `error_info`, as a section and an index: `.npu.barriers[3]`."""
        index, number = error_info & 0xFFFFFFFF, error_info >> 32
        return f"{ERROR_LISTS[number]}[{index}]" if number < len(ERROR_LISTS) else f"list {number} entry {index}"

    def layer(self, task_id: int) -> str:
        """Return the layer that a task belongs to."""
        entry = self._entries[task_id] if task_id < len(self._entries) else None
        if not isinstance(entry, dict):
            return f"task {task_id}"
        return str(entry.get("layer") or entry.get("name") or f"task {task_id}")
