"""Plain batches: payloads of one content type and nothing else, the most common kind; or with the same few options.

A few of them are packed by `struct`: below some dozens of messages NumPy costs more than all the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final

from penstock import limits
from penstock.batch import fields, layout
from penstock.batch.layout import PADS, Buffer
from penstock.batch.one import Alike, encode_one, encode_one_like, encode_one_with
from penstock.batch.sealing import seal_columns
from penstock.model import ContentType

FEW: Final = 100


def encode_plain(payloads: Sequence[bytes], content: ContentType | Alike = ContentType.BYTES) -> bytes:
    """The batch of these payloads, of which there is at least one, all with the same content type or options."""
    count = len(payloads)
    if count == 1:
        return fields.each(lambda payload: _one(bytes(payload), content), payloads)[0]
    flags, columns = _alike(content, count) if isinstance(content, Alike) else _content_types(content, count)
    if count <= FEW:
        ends = list(accumulate(map(len, payloads)))
        if ends[-1] <= limits.payload_bytes_max:  # then none of them is over it, and neither is the batch
            return layout.seal(count, flags, columns, _offsets(count).pack(0, *ends), b"".join(payloads))
    return seal_columns(flags, columns, fields.binary(payloads, "payload", limits.payload_bytes_max))


def _one(payload: bytes, content: ContentType | Alike) -> bytes:
    if isinstance(content, Alike):
        return encode_one_like(payload, content)
    return encode_one_with(payload, content_type=content) if content else encode_one(payload)


@lru_cache(maxsize=FEW)
def _offsets(count: int) -> struct.Struct:
    return struct.Struct(f"<{count + 1}i")


def _content_types(content_type: ContentType, count: int) -> tuple[int, list[Buffer]]:
    if not content_type:
        return 0, []
    return layout.CONTENT_TYPE, [bytes((content_type,)) * count, PADS[-count % 8]]


def _alike(alike: Alike, count: int) -> tuple[int, list[Buffer]]:
    columns: list[Buffer] = []
    position = 0
    for flag, dtype in layout.FIXED.items():
        if alike.flags & flag:
            column = alike.words[position : position + dtype.itemsize] * count
            columns += (column, PADS[-len(column) % 8])
            position += 8
    return alike.flags, columns
