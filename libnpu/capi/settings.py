"""What the environment says when the library starts: NPU_PROFILE, NPU_SEMANTICS, NPU_SCHEDULE, NPU_LAUNCH_BLOCKING,
NPU_TRACE, NPU_KMD_PARAMS, NPU_FAULTS, NPU_DEVICE.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from libnpu.capi.refusal import Refusal
from libnpu.errors import NpuError

if TYPE_CHECKING:
    from npu_model.armed import Armed

DEFAULT_PROFILE = "npu-37xx"
MAX_DEVICES = 128  # npu.h


@dataclass(frozen=True, slots=True)
class Settings:
    """`profiles` has one for each device, "" for what npud has at `device`, `semantics` and `schedule` are names as `libnpu.open` takes them,
    `faults` those of the process.
    """

    profiles: tuple[str, ...] = ()
    semantics: str = "ascend"
    schedule: str = "timed"
    launch_blocking: bool = False
    trace: bool = False
    module_params: str = ""
    faults: tuple[Armed, ...] = ()
    device: str = ""


def read_settings(getenv: Callable[[str], str | None]) -> Settings:
    """Return what `getenv` says; an empty variable counts as one that is not set. Raises INVALID_VALUE naming the variable."""
    from npu_model.profile import ProfileError, load_profile

    from libnpu.faults import faults_of_process
    from libnpu.ioctl_trace import wanted_of
    from libnpu.runtime.arguments import environment_switch
    from libnpu.runtime.schedule import schedule_of
    from libnpu.runtime.semantics import semantics_of
    from libnpu.syscalls import check_faults, check_module_params, remote_path

    device = getenv("NPU_DEVICE") or ""
    profiles = tuple(name.strip() for name in (getenv("NPU_PROFILE") or ("" if device else DEFAULT_PROFILE)).split(","))
    if device:
        try:
            remote_path(device)
        except NpuError as error:
            raise Refusal("NPU_ERROR_INVALID_VALUE", error.message) from None
        if len(profiles) > 1:
            raise Refusal("NPU_ERROR_INVALID_VALUE", f"NPU_PROFILE: {len(profiles)} devices, NPU_DEVICE is one")
    if len(profiles) > MAX_DEVICES:
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"NPU_PROFILE: {len(profiles)} devices, above {MAX_DEVICES}")
    try:
        for name in dict.fromkeys(profiles):
            if name or not device:
                load_profile(name)
    except (ProfileError, OSError) as error:
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"NPU_PROFILE: {error}") from None
    try:
        semantics = semantics_of(getenv("NPU_SEMANTICS") or Settings().semantics).name
    except NpuError as error:
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"NPU_SEMANTICS: {error.message}") from None
    try:
        schedule = schedule_of(getenv("NPU_SCHEDULE") or Settings().schedule).name
    except NpuError as error:
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"NPU_SCHEDULE: {error.message}") from None
    launch_blocking = environment_switch("NPU_LAUNCH_BLOCKING", getenv)
    trace, _ = wanted_of(getenv("NPU_TRACE") or "")
    module_params = getenv("NPU_KMD_PARAMS") or ""
    try:
        check_module_params(module_params)
    except NpuError as error:
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"NPU_KMD_PARAMS: {error.message}") from None
    try:
        faults = faults_of_process(getenv("NPU_FAULTS") or "")
        check_faults(faults)
    except NpuError as error:
        raise Refusal("NPU_ERROR_INVALID_VALUE", f"NPU_FAULTS: {error.message}") from None
    return Settings(profiles, semantics, schedule, launch_blocking, trace, module_params, faults, device)
