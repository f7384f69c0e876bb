"""Large arrays come and go with every message: let the process keep their memory."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_BYTES = 1 << 30
_SET_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@cache
def keep_freed_memory() -> None:
    """Tell glibc to keep what is freed, where it is the allocator and nobody has set it up.

    Otherwise every array of some megabytes is given back to the kernel, which clears its pages
    when they are asked for again: a fifth of the time of a simulation with large messages.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _SET_BY_USER):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _BYTES)
        mallopt(_MMAP_THRESHOLD, _BYTES)
