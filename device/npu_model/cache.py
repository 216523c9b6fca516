"""The user's cache folder of this project: where it is, and that nobody else can put anything into it.

What is built on a machine (the C helpers, libnpu.so) and the models of scripts/models.py are kept there. Libraries from it
are loaded into the process, so it must belong to the user and be writable for nobody else.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder, whether it exists or not: in $XDG_CACHE_HOME, ~/.cache, or else in the folder of temporary files.

    A relative $XDG_CACHE_HOME counts as none, as the XDG specification says; so does a home that cannot be written.
    """
    base, home = os.environ.get("XDG_CACHE_HOME", ""), os.environ.get("HOME", "")
    if os.path.isabs(base):
        return Path(base) / "libnpu"
    if os.path.isabs(home) and os.access(home, os.W_OK):
        return Path(home) / ".cache" / "libnpu"
    return Path(tempfile.gettempdir()) / f"libnpu-{os.getuid()}"


def make_private(folder: Path) -> Path:
    """Make `folder`, for this user alone, if it is not there, and return it.

    Raises PermissionError when it belongs to another user or others may write into it, OSError when it cannot be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, f"it belongs to user {found.st_uid}", str(folder))
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(errno.EPERM, "others may write into it (chmod go-w ends that)", str(folder))
    return folder
