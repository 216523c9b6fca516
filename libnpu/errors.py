"""Exceptions that every layer of the library shares. What a device or driver answers becomes `NpuError` in the runtime."""

from __future__ import annotations


class Unsupported(Exception):
    """The feature is outside what this stack does, by design; the message names it and where it was met."""


class Unimplemented(Exception):
    """The feature belongs here but does not exist yet; the message names it and where it was met."""
