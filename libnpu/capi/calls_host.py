"""npu.h: the rules that hold, schedules, and host threads. Arguments are as C passed them, pointers as integers."""

from __future__ import annotations

from npu_abi import C

from libnpu.capi.library import Library
from libnpu.capi.refusal import Refusal
from libnpu.runtime import host_team
from libnpu.runtime.schedule import KINDS, schedule_of

VERSION = (int(C.NPU_VERSION_MAJOR), int(C.NPU_VERSION_MINOR))
SEMANTICS = {
    int(C.NPU_SEMANTICS_ASCEND): "ascend",
    int(C.NPU_SEMANTICS_CUDA): "cuda",
    int(C.NPU_SEMANTICS_STRICT): "strict",
}
SCHEDULES = {
    int(C.NPU_SCHED_TIMED): "timed",
    int(C.NPU_SCHED_EAGER): "eager",
    int(C.NPU_SCHED_LAZY): "lazy",
    int(C.NPU_SCHED_NEWEST_FIRST): "newest-first",
}
TEAM_CALLS = ("npu_team_begin", "npu_team_enter", "npu_team_leave", "npu_team_end")
assert set(SCHEDULES.values()) == KINDS.keys()


def check_version(flags: int) -> None:
    """Take the flags of npu_init for NPU_INIT_CHECK of some header. Raises INVALID_VALUE, VERSION_MISMATCH."""
    if flags & 0xFFFF:
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"flags is {flags:#x}, neither 0 nor NPU_INIT_CHECK")
    major, minor = flags >> 24, flags >> 16 & 0xFF
    if major != VERSION[0] or minor > VERSION[1]:
        raise Refusal(
            "NPU_ERROR_VERSION_MISMATCH",
            f"the program was compiled with npu.h {major}.{minor}, and the library is {VERSION[0]}.{VERSION[1]}",
        )


def npu_set_semantics(library: Library, semantics: int) -> None:
    """Choose the rules, before the first device is used."""
    if semantics not in SEMANTICS:
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"semantics {semantics} is none of enum npu_semantics")
    if library.devices_in_use:
        raise Refusal("NPU_ERROR_BAD_STATE", "a device is in use: the rules are chosen before that")
    library.choose_semantics(SEMANTICS[semantics])


def npu_get_semantics(library: Library, semantics: int) -> None:
    """Write the rules that hold."""
    library.door.probe(semantics, 4, "semantics")
    found = next(number for number, name in SEMANTICS.items() if name == library.settings.semantics)
    library.door.write_integer(semantics, found, 4)


def npu_set_schedule(library: Library, kind: int, seed: int) -> None:
    """Choose the order of work on the current device."""
    if kind != C.NPU_SCHED_SEED and kind not in SCHEDULES:
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"kind {kind} is none of enum npu_schedule_kind")
    if kind in SCHEDULES and seed:
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"seed is {seed}, and only NPU_SCHED_SEED has one")
    name = SCHEDULES.get(kind, f"seed:{seed}")
    library.device().device.set_schedule(schedule_of(name).name)


def npu_get_host_times(library: Library, busy_ps: int, blocked_ps: int) -> None:
    """Write how long the calling thread has worked and has been blocked on the current device's clock."""
    library.door.probe(busy_ps, 8, "busy_ps")
    library.door.probe(blocked_ps, 8, "blocked_ps")
    busy, blocked = library.device().device.host_times()
    library.door.write_integer(busy_ps, busy, 8)
    library.door.write_integer(blocked_ps, blocked, 8)


def npu_team_begin(library: Library, count: int) -> None:
    """Announce `count` threads on the current device."""
    if library.team is not None:
        raise Refusal("NPU_ERROR_BAD_STATE", "a team has not ended")
    library.team = library.device().device.team(count)


def npu_team_enter(library: Library, rank: int) -> None:
    """Take part in the team."""
    if library.team is None:
        raise Refusal("NPU_ERROR_BAD_STATE", "there is no team")
    library.team.enter(rank)


def npu_team_leave(library: Library) -> None:
    """Take part no longer."""
    if library.team is None:
        raise Refusal("NPU_ERROR_BAD_STATE", "there is no team")
    library.team.leave()


def npu_team_end(library: Library) -> None:
    """End the team that the calling thread has begun."""
    if library.team is None:
        raise Refusal("NPU_ERROR_BAD_STATE", "there is no team")
    library.team.end()
    library.team = None


def npu_suspend_host_thread(library: Library) -> None:
    """Let nobody wait for the calling thread until its next call."""
    host_team.suspend()


def npu_is_reproducible(library: Library, reproducible: int) -> None:
    """Write whether the current device's run depends on the program alone."""
    library.door.probe(reproducible, 4, "reproducible")
    library.door.write_integer(reproducible, int(library.device().device.reproducible), 4)
