"""Schedules: how long tasks take, apart from what the model says. All are legal timings of the same program."""

from __future__ import annotations

from math import isqrt

from npu_abi import C

MASK = (1 << 64) - 1
MAX_STRETCH = 1000  # chosen: a stretched task lasts 1 to 1000 times as long, log-uniformly
SLOW_UNIT = (
    1000  # chosen: half of the units, by the seed, are slower by this much, so that others run far ahead of them
)
SHORTEST_HOLD_PS = 100_000_000  # chosen: 100 us, in which the host submits several jobs; holds are 1 to 1000 times this
STEP_BITS = 6
REST_BITS = 47  # of a draw of 53 bits, behind the step
FRACTION_BITS = 16


def _factor(step: int) -> int:
    """Return MAX_STRETCH ** (step / 2**STEP_BITS) in units of 2**-FRACTION_BITS, rounded down: roots of integers are exact."""
    power: int = MAX_STRETCH**step << (FRACTION_BITS << STEP_BITS)
    for _ in range(STEP_BITS):
        power = isqrt(power)
    return power


FACTORS = tuple(_factor(step) for step in range((1 << STEP_BITS) + 1))


def splitmix64(state: int) -> int:
    """Return the splitmix64 output for a state (Steele, Lea, Flood 2014)."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


class Schedule:
    """TIMED leaves durations alone. SEED makes some units slow, stretches each task, drawn by a counter of started tasks,
    and holds half of the jobs back before they start on the engines, drawn by a counter of job slots: what no event, fence
    or barrier orders comes in another order.

    All draws are integers, the same on every machine.
    """

    __slots__ = ("_count", "_held", "_seed", "kind", "stretches")

    def __init__(self, kind: int = C.NPU_SCHEDULE_TIMED, seed: int = 0) -> None:
        self.kind = kind
        self.stretches = kind == C.NPU_SCHEDULE_SEED
        self._seed = splitmix64(seed & MASK)
        self._count = 0
        self._held = 0

    @property
    def patience(self) -> int:
        """The most that a task is stretched: what waits for a task to end waits so many times as long."""
        return MAX_STRETCH * SLOW_UNIT if self.stretches else 1

    def is_slow(self, kind: int, unit: int) -> bool:
        """Whether all tasks of a unit (enum npu_engine, unit as in traces) take SLOW_UNIT times as long under this seed."""
        return bool(splitmix64(self._seed ^ splitmix64(kind << 8 | unit)) & 1)

    def stretch(self, cycles: int, kind: int, unit: int) -> int:
        """Return the duration that a task of `cycles` on a unit gets; at least one cycle."""
        self._count += 1
        draw = splitmix64((self._seed + self._count * 0x9E3779B97F4A7C15) & MASK) >> 11
        base = max(cycles, 1) * (SLOW_UNIT if self.is_slow(kind, unit) else 1)
        return _stretched(base, draw)

    def hold(self) -> int:
        """Return for how many picoseconds nothing starts of a job that comes to the engines: 0 for about half of them."""
        self._held += 1
        draw = splitmix64(self._seed ^ splitmix64(self._held << 32)) >> 10
        return _stretched(SHORTEST_HOLD_PS, draw >> 1) if draw & 1 else 0


def _stretched(base: int, draw: int) -> int:
    """Return `base` times 1 to MAX_STRETCH, log-uniform, by a draw of 53 bits."""
    step, rest = draw >> REST_BITS, draw & (1 << REST_BITS) - 1
    low, high = FACTORS[step], FACTORS[step + 1]
    factor = (low << REST_BITS) + (high - low) * rest
    return base * factor >> FRACTION_BITS + REST_BITS
