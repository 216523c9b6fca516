"""The models that a program loads: whether the order inside of their jobs is proved (libnpu/blob/proof.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libnpu.blob import prove
from libnpu.checker import rules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npu_model.profile import Profile

    from libnpu.blob import BlobImage
    from libnpu.checker.findings import Finding
    from libnpu.checker.steps import Act

RULES = {
    "missing barrier": "MISSING-BARRIER",
    "barrier count mismatch": "BARRIER-COUNT",
    "unreachable task": "UNREACHABLE-TASK",
    "CMX overlap": "CMX-OVERLAP",
    "read before write": "READ-BEFORE-WRITE",
    "out-of-tile access": "OUT-OF-TILE",
}  # by kind of a problem; others are of no order, and the loader refuses what it cannot run
SLOW = "unread-load"  # which is no fault


def faults(image: BlobImage, profile: Profile, load: Act) -> Iterator[Finding]:
    """Yield what is wrong inside of a model's blob, which act `load` loads; of a library of kernels nothing is known."""
    for problem in prove(image, profile) if not image.kernels else ():
        rule = RULES.get(problem.kind)
        if rule is not None and problem.rule != SLOW:
            yield rules.in_blob(rule, load, image.name, problem)
