"""What the kernel generators refuse."""

from __future__ import annotations


class Unsupported(Exception):
    """A kernel that the vector core cannot hold or address; the message names the expression or the limit."""


class Unimplemented(Exception):
    """A kernel that is not there yet; the message names it."""
