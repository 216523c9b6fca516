"""Attention: finds it in a canonical graph, however the source spells it, and chooses how each is computed.

`match` recognises, `select` decides and rewrites, `masks` says what a tile of scores needs of its masks. The lowering of the two
operators that this makes is `lower/flash.py` and `lower/incremental.py`, their kernels are `kernels/attention.py`.
"""

from __future__ import annotations

from libnpu.compiler.attention.select import Choice, choices_text, select_attention, select_path

__all__ = ["Choice", "choices_text", "select_attention", "select_path"]
