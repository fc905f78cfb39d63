"""Compression of the payload blob: zstd, level 1, only when it pays.

A sample is tried first, so that payloads that do not shrink cost next to nothing. What comes from outside says how
long it will be, and is believed only after its zstd frame said the same: nothing is allocated for a bomb.
"""

from __future__ import annotations

import threading
from typing import Final

import zstandard

from penstock import limits
from penstock.batch.layout import Buffer
from penstock.errors import BadBatch

LEVEL: Final = 1
SAMPLE_BYTES: Final = 8 * limits.KIB


class _Contexts(threading.local):
    # A zstd context must not be used by two threads at once, and costs more to make than a small blob to compress.
    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=LEVEL)
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=limits.batch_bytes_max)


_contexts: Final = _Contexts()


def compress(blob: Buffer) -> bytes | None:
    """The blob compressed, or None when it is short or would hardly shrink."""
    if len(blob) < limits.compression_threshold_bytes:
        return None
    middle = (len(blob) - SAMPLE_BYTES) // 2
    if not _saves(blob[middle : middle + SAMPLE_BYTES]):
        return None
    return _saves(blob)


def _saves(blob: Buffer) -> bytes | None:
    small = _contexts.compressor.compress(blob)
    return small if len(small) <= len(blob) * (1 - limits.compression_saving_min) else None


def decompress(blob: Buffer, length: int) -> bytes:
    """The blob as it was before `compress`; `BadBatch` unless it is exactly `length` bytes."""
    try:
        announced = zstandard.get_frame_parameters(blob).content_size
        if announced != length:
            raise BadBatch(f"payload: its zstd frame holds {announced:,} bytes, the header says {length:,}")
        return _contexts.decompressor.decompress(blob, allow_extra_data=False)  # refuses any other length
    except zstandard.ZstdError as error:
        raise BadBatch(f"payload: the compressed blob is not sound: {error}") from None
