"""From columns to the bytes of a batch, within its limits."""

from __future__ import annotations

from penstock import limits
from penstock.batch import layout
from penstock.batch.columns import Binary
from penstock.batch.compression import compress
from penstock.batch.layout import OFFSET, Buffer
from penstock.batch.rules import check_batch_bytes, check_lengths


def seal_columns(flags: int, columns: list[Buffer], payloads: Binary, *, small: bool = False) -> bytes:
    """The bytes of a batch, within its limits; its payload compressed when that is wanted and pays."""
    count, blob = len(payloads.offsets) - 1, payloads.blob
    if len(blob) > limits.payload_bytes_max:  # otherwise no single payload can be over it
        check_lengths(payloads.lengths(), "payload", limits.payload_bytes_max)
    columns_bytes = layout.HEADER_BYTES + sum(map(len, columns)) + layout.offsets_bytes(count)
    check_batch_bytes(columns_bytes + layout.padded(len(blob)))
    offsets = payloads.rebased().astype(OFFSET, copy=False).tobytes()
    compressed = compress(blob) if small else None
    if compressed is None:
        return layout.seal(count, flags, columns, offsets, blob)
    return layout.seal(count, flags, columns, offsets, compressed, layout.ZSTD, len(blob))
