"""What the machine has: cores and memory."""

from __future__ import annotations

import os
import sys

_UNKNOWN_MEMORY = 2**33


def can_fork() -> bool:
    """Tell whether processes can be forked safely: only on Linux."""
    return sys.platform == "linux"


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def physical_memory() -> int:
    """Return the bytes of the machine's memory, or 8 GiB on a system that does not report it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return _UNKNOWN_MEMORY
