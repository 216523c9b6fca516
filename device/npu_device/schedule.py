"""Schedules: how long tasks take, apart from what the model says. All are legal timings of the same program."""

from __future__ import annotations

from npu_abi import C

MASK = (1 << 64) - 1
MAX_DECADES = 3.0  # chosen: a stretched task lasts 1 to 1000 times as long, log-uniformly


def splitmix64(state: int) -> int:
    """Return the splitmix64 output for a state (Steele, Lea, Flood 2014)."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


class Schedule:
    """TIMED leaves durations alone; SEED multiplies each by 10**U(0, 3), drawn by a counter of started tasks."""

    __slots__ = ("_count", "_seed", "kind", "stretches")

    def __init__(self, kind: int = C.NPU_SCHEDULE_TIMED, seed: int = 0) -> None:
        self.kind = kind
        self.stretches = kind == C.NPU_SCHEDULE_SEED
        self._seed = splitmix64(seed & MASK)
        self._count = 0

    def stretch(self, cycles: int) -> int:
        """Return the duration that a task of `cycles` gets; at least one cycle."""
        self._count += 1
        uniform = (splitmix64((self._seed + self._count * 0x9E3779B97F4A7C15) & MASK) >> 11) / (1 << 53)
        return int(max(cycles, 1) * 10.0 ** (MAX_DECADES * uniform))
