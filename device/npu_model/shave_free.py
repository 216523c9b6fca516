"""Runs of a SHAVE program with free pointers: words of its argument block that it takes for addresses alone point far apart.

So every access tells through which pointer it is made, and what the program touches is known for all places that they may point to.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from npu_model.shave_memory import ADDRESS_LIMIT
from npu_model.shave_pointers import WORD

# Where pointers point, one after the other; chosen: beyond all that is addressed else.
FREE_VA, FREE_STEP = 1 << 46, 1 << 40
FREE_POINTERS = (ADDRESS_LIMIT - FREE_VA) // FREE_STEP - 1  # as many as there are addresses for


def freed(block: bytes, words: Sequence[int]) -> tuple[bytes, tuple[int, ...]]:
    """Return `block` with free pointers in place of the first FREE_POINTERS of `words`, offsets of 64-bit integers; and what these were."""
    content = bytearray(block)
    pointers = []
    for number, word in enumerate(words[:FREE_POINTERS]):
        pointers.append(int.from_bytes(block[word : word + WORD], "little"))
        struct.pack_into("<Q", content, word, FREE_VA + number * FREE_STEP)
    return bytes(content), tuple(pointers)


def pointer_of(address: int) -> tuple[int, int]:
    """Return the pointer that an access was made through, from 1, and the offset from it; (0, address) for one through none."""
    number = max((address - FREE_VA + FREE_STEP // 2) // FREE_STEP + 1, 0)
    return number, address - (FREE_VA + (number - 1) * FREE_STEP if number else 0)
