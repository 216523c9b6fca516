"""A proof, from the finished blob alone, that its tasks touch memory in one order whatever the device does.

On top of what `verify` checks (counts, chains, ranges of descriptors, and that every task is reached), for any two tasks that
share a byte, one of them writing it: one has surely ended when the other starts (`order.py`). So a blob has one result, and one
legal order shows the rest: nobody uses a byte of CMX, scratch or an output that nobody has written (a plain copy of it to scratch
or CMX is no use: a spill of a buffer that is not yet whole); every output is written;
SHAVE programs stay within what the job has.

Where .npu.debug has a map of CMX, it is held against the tasks, and says what is one buffer: every access lies in a buffer of its
time, reads bytes that this buffer was given, and none that a later buffer has taken; descriptors point at the bytes of the buffers
that their tasks name; the first and the last user of a buffer are those that the map names; constants are not loaded for nobody. The map proves nothing by itself. Without it, a task of whose bytes in CMX nobody reads any is a problem,
unless what it brings is brought twice.

Bytes are those of npu_model's footprints. A SHAVE program is run for its accesses, without values; one whose accesses depend on
data, or that starts other engines, cannot be proved and is a problem, too. Inputs and outputs are bound to memory of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_abi import C
from npu_model import footprint
from npu_model.shave_faults import ShaveFault

from libnpu.blob import elf
from libnpu.blob.accesses import Accesses
from libnpu.blob.image import BlobError
from libnpu.blob.order import Order
from libnpu.blob.problem import Problem
from libnpu.blob.shadow import Conflict, Entry, Filled, Shadow, coalesce
from libnpu.blob.stays import assign, operands, stays
from libnpu.blob.text import task_names
from libnpu.blob.verifier import examine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npu_model.footprint import Box
    from npu_model.profile import Profile

    from libnpu.blob.accesses import Space
    from libnpu.blob.image import BlobImage
    from libnpu.blob.stays import Stay
    from libnpu.blob.walk import Step

    Touched = tuple[int, bool, Box]  # task, writes, bytes

_LINE_BYTES = 64  # to which buffers are aligned: a compiler may load less than this between two operands
_MOST_PROBLEMS = 1000  # chosen: of the proof; further ones follow from these or are more of the same


def prove(image: BlobImage, profile: Profile | None = None, faults_only: bool = False) -> list[Problem]:
    """Return every problem that `verify` finds; when there is none, what is missing in the proof, task by task.

    With `faults_only` loads of what nobody reads are no problem: they are slow, and not wrong.
    """
    examined = examine(image, profile)
    if examined.problems or image.kernels:
        return examined.problems
    assert examined.profile is not None
    accesses = Accesses(image, examined.profile, examined.footprints)
    return [*_Proof(image, examined.steps, accesses).problems(faults_only)]


class _Proof:
    """The tasks of one image in one legal order, and what they touch, space by space."""

    def __init__(self, image: BlobImage, steps: list[Step], accesses: Accesses) -> None:
        self._image = image
        self._steps = steps
        self._accesses = accesses
        self._order = Order(steps)
        self._touched: dict[Space, list[Touched]] = {space: [] for space in accesses.spaces}
        self._names = task_names(image)
        columns = {section: image.tasks[section]["task_id"].tolist() for section in {step.section for step in steps}}
        self._task_ids: list[int] = [columns[step.section][step.index] for step in steps]
        self._stays: list[Stay] = []

    def problems(self, faults_only: bool) -> Iterator[Problem]:
        """Yield them, by task."""
        found = [*self._collect()]
        try:
            self._stays = stays(self._image) if "cmx" in self._image.debug else []
            found += self._elsewhere() if self._stays else []
        except BlobError as error:
            found.append((len(self._steps), Problem("cmx-map", ".npu.debug", str(error))))
        buffers = self._buffers() if self._stays else {}
        found += self._strangers(buffers)
        entries = [
            (entry, space)
            for space, touched in self._touched.items()
            if not space.filled
            for entry in _joined(touched, buffers.get(space, [-1] * len(touched)))
        ]
        entries.sort(key=_moment)
        shadows = {s: Shadow(s.first, s.past, self._order, s.is_cmx) for s in self._touched if not s.filled}
        found += self._pass_by(entries, shadows)
        # Of buffers that are known the map says who uses them.
        unknown = {entry.task for entry, space in entries if space.is_cmx and entry.writes and entry.stay < 0}
        lost = unknown.difference(*(shadow.used for space, shadow in shadows.items() if space.is_cmx))
        found += [(task, self._lost(task)) for task in self._without_second(lost)]
        if not faults_only:
            found += self._unread_loads(buffers)
        found.sort(key=_task)
        yield from (problem for _, problem in found[:_MOST_PROBLEMS])

    def _buffers(self) -> dict[Space, list[int]]:
        """Return the stay of each access in CMX."""
        ids, found = self._task_ids, {}
        spans = [(stay.addr, stay.end) for stay in self._stays]
        for space, touched in self._touched.items():
            if space.is_cmx:
                near = [k for k, (first, end) in enumerate(spans) if first < space.past and end > space.first]
                stays = assign([self._stays[k] for k in near], [(ids[task], box) for task, _, box in touched])
                found[space] = [near[k] if k >= 0 else -1 for k in stays]
        return found

    def _strangers(self, assigned: dict[Space, list[int]]) -> Iterator[tuple[int, Problem]]:
        """Yield accesses of CMX that the map has no buffer for, and stays whose first or last task does not touch them."""
        seen: dict[tuple[str, int, int], set[int]] = {(s.name, s.first, s.last): set() for s in self._stays}
        for space, indices in assigned.items():
            for (task, writes, box), index in zip(self._touched[space], indices, strict=True):
                if index >= 0:
                    stay = self._stays[index]
                    seen[stay.name, stay.first, stay.last].add(self._task_ids[task])
                    continue
                does = "writes" if writes else "reads"
                message = (
                    f"{does} {box.addr:#x} to {box.end:#x} of {space.name}, where no buffer of its time has these bytes"
                )
                yield task, Problem("cmx-map", _where(self._steps[task]), message, "", space.name, box.addr, box.end)
        for (name, first, last), ids in seen.items():
            if first not in ids or last not in ids:
                message = f"buffer {name} stays from task {first} to {last}; touched by {sorted(ids)[:4]}"
                yield len(self._steps), Problem("cmx-map", ".npu.debug", message)

    def _elsewhere(self) -> Iterator[tuple[int, Problem]]:
        """Yield address fields that do not point where the map has the bytes that the task names."""
        named = operands(self._image)
        places: dict[str, list[Stay]] = {}
        for stay in self._stays:
            places.setdefault(stay.name, []).append(stay)
        columns: dict[tuple[str, str], list[int]] = {}
        for task, step in enumerate(self._steps):
            task_id = self._task_ids[task]
            for field, (name, offset) in named[task_id].items() if task_id < len(named) else ():
                if (step.section, field) not in columns:
                    columns[step.section, field] = self._image.tasks[step.section][field].tolist()
                address = columns[step.section, field][step.index]
                live = [stay.addr for stay in places.get(name, ()) if stay.first <= task_id <= stay.last]
                if not any(address == first + offset for first in live):
                    expected = " or ".join(f"{first + offset:#x}" for first in live) or "nowhere"
                    message = f"{field} is {address:#x}; byte {offset} of {name} is at {expected}"
                    yield task, Problem("cmx-map", _where(step), message)

    def _collect(self) -> Iterator[tuple[int, Problem]]:
        """Sort what the tasks touch by space; yield what lies in none, and tasks whose accesses cannot be told."""
        for task, step in enumerate(self._steps):
            try:
                reads, writes = self._accesses.of(step)
            except (ShaveFault, BlobError) as error:
                message = f"its accesses cannot be told: {error}"
                yield task, Problem("unknown-access", _where(step), message)
                continue
            for is_write, boxes in ((False, reads), (True, writes)):
                for box in boxes:
                    space = self._accesses.space(box)
                    if space is None or (is_write and not space.writable):
                        yield task, self._outside(step, is_write, box)
                    else:
                        self._touched[space].append((task, is_write, box))

    def _outside(self, step: Step, is_write: bool, box: Box) -> Problem:
        what = "writes" if is_write else "reads"
        place, first, past = self._accesses.name(box.addr, box.end)
        allowed = "CMX of the job, scratch or an output" if is_write else "what the job has"
        message = f"{what} {first:#x} to {past:#x} of {place}; expected {allowed}"
        return Problem("range", _where(step), message, "", place, first, past)

    def _pass_by(
        self, entries: list[tuple[Entry, Space]], shadows: dict[Space, Shadow]
    ) -> Iterator[tuple[int, Problem]]:
        """Let the tasks pass by in order."""
        pairs: set[tuple[int, int]] = set()
        filled: dict[tuple[Space, int], Filled] = {}
        copied: tuple[int, Box, list[Box]] | None = None  # task, and what is written of the run of bytes that it copies
        for entry, space in entries:
            task, writes, box, stay = entry
            values = filled.get((space, stay))
            if values is None:
                extent = self._stays[stay] if stay >= 0 else None
                values = Filled(extent.addr, extent.end) if extent else Filled(space.first, space.past)
                filled[space, stay] = values
            if writes:
                unordered = shadows[space].write(entry)
                if copied is not None and copied[0] == task and not space.name.startswith("out:"):
                    by = box.addr - copied[1].addr
                    values.copy_in(box, [footprint.Box(p.addr + by, p.width, p.dims) for p in copied[2]])
                else:
                    values.write(box)
            else:
                unordered, over = shadows[space].read(entry)
                if over is not None:
                    yield task, self._overwritten(space, Conflict(over, entry))
                gap = values.gap(box)
                if gap is not None and self._copies(task):
                    copied = task, box, values.pieces(box)
                elif gap is not None:
                    yield task, self._unwritten(space, task, *gap)
            for conflict in unordered:
                pair = conflict.earlier.task, task
                if pair not in pairs:
                    pairs.add(pair)
                    yield task, self._race(space, conflict)
        for space in shadows:
            gap = filled.get((space, -1), Filled(space.first, space.past)).whole_gap()
            if gap is not None and space.name.startswith("out:"):
                first, past = _in_space(space, *gap)
                message = f"no task writes {first:#x} to {past:#x}"
                yield len(self._steps), Problem("output-unwritten", space.name, message, "", space.name, first, past)

    def _copies(self, task: int) -> bool:
        """Tell whether a task copies one run of bytes to scratch or CMX: what nobody has written it copies for nobody."""
        step = self._steps[task]
        if step.engine[0] != C.NPU_ENGINE_DMA:
            return False
        reads, writes = self._accesses.of(step)
        spaces = [self._accesses.space(box) for box in writes]
        return not any(box.dims for box in (*reads, *writes)) and not any(
            s is None or s.name.startswith("out:") for s in spaces
        )

    def _unwritten(self, space: Space, task: int, low: int, high: int) -> Problem:
        first, past = _in_space(space, low, high)
        message = f"reads {first:#x} to {past:#x} of {space.name}, which no task before it has written"
        return Problem("read-before-write", _where(self._steps[task]), message, "", space.name, first, past)

    def _overwritten(self, space: Space, conflict: Conflict) -> Problem:
        (other, _, other_box, _), (task, _, box, _) = conflict
        first, past = _in_space(space, max(other_box.addr, box.addr), min(other_box.end, box.end))
        message = f"reads {first:#x} to {past:#x} of {space.name}, where {self._title(self._steps[other])} has put another buffer"
        where, before = _where(self._steps[task]), _where(self._steps[other])
        return Problem("cmx-overlap", where, message, before, space.name, first, past)

    def _race(self, space: Space, conflict: Conflict) -> Problem:
        (first_task, first_writes, first_box, _), (task, writes, box, _) = conflict
        earlier, later = self._steps[first_task], self._steps[task]
        low, high = max(first_box.addr, box.addr), min(first_box.end, box.end)
        first, past = _in_space(space, low, high)
        does = {(True, True): "both write", (True, False): "it reads and the other writes"}
        what = does.get((first_writes, writes), "it writes and the other reads")
        message = (
            f"nothing orders it after {self._title(earlier)}; {what} {first:#x} to {past:#x} of {space.name}; "
            f"{self._fix(earlier, later)}"
        )
        return Problem("missing-barrier", _where(later), message, _where(earlier), space.name, first, past)

    def _fix(self, earlier: Step, later: Step) -> str:
        """Return the smallest edge that is missing, in words."""
        ours = [virtual for virtual in earlier.posts if virtual in later.waits]
        assert not ours
        if earlier.posts:
            virtual = earlier.posts[0]
            number = int(self._image.tasks[".npu.barriers"]["real_id"][virtual])
            return f"let it wait for virtual barrier {virtual} (id {number}), which the other posts"
        return "let it wait for a barrier that the other posts"

    def _without_second(self, lost: set[int]) -> list[int]:
        """Leave out the tasks that bring what another one brings, too: loaded early, then given up for room; or to a tile more."""
        if not lost:
            return []
        brought: dict[Box, set[int]] = {}
        for space, touched in self._touched.items():
            for task, writes, box in touched if not space.is_cmx else ():
                if not writes:
                    brought.setdefault(box, set()).add(task)
        again = [tasks for tasks in brought.values() if tasks - lost]
        return [task for task in sorted(lost) if not any(task in tasks for tasks in again)]

    def _unread_loads(self, assigned: dict[Space, list[int]]) -> Iterator[tuple[int, Problem]]:
        """Yield loads of constants into a buffer that is read, of which some bytes are not: too much, or a wrong address."""
        loads = {
            task
            for space, touched in self._touched.items()
            for task, _, _ in (touched if space.name == elf.WEIGHTS else ())
            if self._steps[task].engine[0] == C.NPU_ENGINE_DMA
        }
        for space, indices in assigned.items():
            brought: dict[int, list[tuple[int, Box]]] = {}
            computed: set[int] = set()
            for (task, writes, box), index in zip(self._touched[space], indices, strict=True):
                if writes and task in loads:
                    brought.setdefault(index, []).append((task, box))
                elif writes:
                    computed.add(index)
            read = {index: Filled(self._stays[index].addr, self._stays[index].end) for index in brought if index >= 0}
            seen: set[int] = set()
            for (_, writes, box), index in zip(self._touched[space], indices, strict=True):
                if not writes and index in read:
                    read[index].write(box)
                    seen.add(index)
            for index in sorted(seen - computed):
                for task, box in brought[index]:
                    gap = read[index].gap(box, _LINE_BYTES)
                    if gap is not None:
                        message = f"loads {gap[0]:#x} to {gap[1]:#x} of {space.name}, which nobody reads"
                        yield task, Problem("unread-load", _where(self._steps[task]), message, "", space.name, *gap)

    def _lost(self, task: int) -> Problem:
        message = "nobody reads what it writes to CMX: it is written over before, or left at the end"
        return Problem("lost-write", _where(self._steps[task]), message)

    def _title(self, step: Step) -> str:
        task_id = int(self._image.tasks[step.section]["task_id"][step.index])
        name = self._names[task_id] if task_id < len(self._names) else ""
        return f"{_where(step)} ({name})" if name else _where(step)


def _moment(item: tuple[Entry, Space]) -> tuple[int, bool]:
    return item[0].task, item[0].writes


def _joined(touched: list[Touched], stays: list[int]) -> list[Entry]:
    """Return accesses as entries in order; boxes joined that one task reads or writes of one buffer, to be one run if they can."""
    entries: list[Entry] = []
    own: dict[tuple[bool, int], list[Box]] = {}
    latest = -1
    for (task, writes, box), stay in zip(touched, stays, strict=True):
        if task != latest:
            entries += _of_task(latest, own)
            latest, own = task, {}
        own.setdefault((writes, stay), []).append(box)
    return entries + _of_task(latest, own)


def _of_task(task: int, own: dict[tuple[bool, int], list[Box]]) -> list[Entry]:
    return [
        Entry(task, writes, box, stay)
        for (writes, stay), boxes in own.items()
        for box in (coalesce(boxes) if len(boxes) > 1 else boxes)
    ]


def _in_space(space: Space, low: int, high: int) -> tuple[int, int]:
    """Return addresses as `Problem` has them: of CMX as they are, of symbols from their first byte."""
    base = 0 if space.is_cmx else space.first
    return low - base, high - base


def _where(step: Step) -> str:
    return f"{step.section}[{step.index}]"


def _task(entry: tuple[int, Problem]) -> tuple[int, bool]:
    return entry[0], entry[1].rule != "missing-barrier"  # from which others follow
