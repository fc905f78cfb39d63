"""Giving memory back to the operating system.

After a seal tens of megabytes of batches are free, and the allocators keep them for later. A process that idles for
hours should not.
"""

from __future__ import annotations

import ctypes

import pyarrow as pa

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only


def release_memory() -> None:
    """Hand back what is free."""
    pa.default_memory_pool().release_unused()
    if _trim is not None:
        _trim(0)
