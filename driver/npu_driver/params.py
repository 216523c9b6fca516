"""The kernel module's parameters: `name=value name=value`, as insmod takes them. Read once, when the module is loaded."""

from __future__ import annotations

import errno
from dataclasses import dataclass, fields, replace
from typing import Any, get_type_hints

from npu_driver.boot import check_image, read_image
from npu_driver.error import KernelError

POLICIES = ("cached", "uncached", "wc")
BUGS = ("skip_tlbi", "skip_wmb", "skip_sync")
NOT_NEGATIVE = "a whole number, 0 or more"


@dataclass(frozen=True, slots=True)
class Params:
    """Values of a loaded module. Times are in virtual milliseconds.

    weight_policy: how pages of NPU_BO_READONLY_WEIGHT objects are cached; cached: device accesses snoop.
    allow_uncached: 1: NPU_BO_UNCACHED objects may be made.
    coherent: 0: the board has no snooping: every CACHED mapping is a shadow.
    wc_drain_on_uc: 1: an access to a register drains write-combining buffers, as on x86; 0: only a barrier does.
    evict: when the CPU's caches write dirty lines back by themselves: never (lazy), whenever a job has ended (evict), or N lines by a
        PRNG at every doorbell (seed:N).
    dma_debug: 1: keep account of DMA mappings, and report their misuse.
    tdr_timeout_ms: after this time without an end the watchdog looks at a job; 0: never. 2000 as the public driver.
    disable_recovery: 1: report hangs, reset nothing.
    max_contexts, max_doorbells: of one user; 0: NPU_USER_CONTEXTS and NPU_USER_DOORBELLS of one who is not privileged, else as many as there are.
    firmware: file of the image that boots; empty: the one that is installed.
    force_coherent: 1: cached mappings are made also with a firmware that has no cache-coherent DMA.
    bugs: mistakes of drivers to show on purpose, separated by commas (BUGS).
    """

    weight_policy: str = "cached"
    allow_uncached: int = 0
    coherent: int = 1
    wc_drain_on_uc: int = 0
    evict: str = "lazy"
    dma_debug: int = 1
    tdr_timeout_ms: int = 2000
    disable_recovery: int = 0
    max_contexts: int = 0
    max_doorbells: int = 0
    firmware: str = ""
    force_coherent: int = 0
    bugs: str = ""

    def has(self, bug: str) -> bool:
        """Whether the driver makes a mistake, one of BUGS, on purpose."""
        return bug in self.bugs.split(",")

    def text(self) -> str:
        """Return one "name=value" a line."""
        return "".join(f"{field.name}={getattr(self, field.name)}\n" for field in fields(self))


def parse(text: str) -> Params:
    """Return the parameters that `text` sets, the others as they are by default. EINVAL names what is wrong; a firmware file must be there,
    and hold an image that this driver starts.
    """
    if not text.isascii():
        raise _bad("they are ASCII")
    types = get_type_hints(Params)
    values: dict[str, Any] = {}
    for word in text.split():
        if not word.isprintable():
            raise _bad(f"{word!r} has characters that do not print")
        name, found, value = word.partition("=")
        if name not in types or not found:
            raise _bad(f"unknown parameter {word!r}; there are {', '.join(types)}")
        if name in values:
            raise _bad(f"{name} is given twice")
        if types[name] is int:
            if not value.isdigit() or len(value) > 9:
                raise _bad(f"{name}={value}: {NOT_NEGATIVE} of at most nine digits is needed")
            values[name] = int(value)
        else:
            values[name] = value
    _check(params := replace(Params(), **values))
    return params


def _check(params: Params) -> None:
    if params.weight_policy not in POLICIES:
        raise _bad(f"weight_policy={params.weight_policy}; there are {', '.join(POLICIES)}")
    kind, colon, number = params.evict.partition(":")
    if params.evict not in ("lazy", "evict") and not (
        kind == "seed" and colon and number.isdigit() and len(number) <= 20 and int(number) < 1 << 64
    ):
        raise _bad(f"evict={params.evict}; there are lazy, evict, seed:N")
    for name in ("allow_uncached", "coherent", "wc_drain_on_uc", "dma_debug", "disable_recovery", "force_coherent"):
        if getattr(params, name) > 1:
            raise _bad(f"{name}={getattr(params, name)}; 0 or 1 is needed")
    for bug in params.bugs.split(",") if params.bugs else ():
        if bug not in BUGS:
            raise _bad(f"bugs={bug}; there are {', '.join(BUGS)}")
    if params.firmware:
        try:
            check_image(read_image(params.firmware))
        except KernelError as error:
            raise _bad(error.why) from None


def _bad(why: str) -> KernelError:
    return KernelError(errno.EINVAL, f"module parameters: {why}")
