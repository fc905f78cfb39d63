"""The bytes of journal files: golden pictures and what each checksum covers."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from penstock.errors import Damaged, StorageError
from penstock.storage.frames import (
    FRAME,
    HEADER_BYTES,
    Header,
    decode_header,
    encode_header,
    frame_head,
    frame_is_sound,
    seed_of,
)

SHARD = bytes(range(16))

GOLDEN_HEADER = (
    "50454e53544f434b"  # PENSTOCK
    "01000000" "00000000"  # version, zero
    "000102030405060708090a0b0c0d0e0f"  # shard
    "0300000000000000"  # incarnation
    "e803000000000000"  # first sequence
    "000000000000000000000000"
    "1db95eb3"  # crc32c
)  # fmt: skip

GOLDEN_FRAME = (
    "18000000"  # length: 24 bytes follow the checksum
    "bec0a5c9"  # crc32c
    "0700000000000000"  # sequence
    "0500000000000000"  # durable sequence
    "6162636465666768"  # entries
)


def test_the_header_is_these_bytes_and_reads_back():
    header = Header(SHARD, incarnation=3, first_sequence=1000)
    assert encode_header(header).hex() == GOLDEN_HEADER
    assert decode_header(encode_header(header), "file") == header
    assert len(encode_header(header)) == HEADER_BYTES == 64


def test_the_frame_is_these_bytes():
    assert (frame_head(b"abcdefgh", 7, 5, seed_of(SHARD)) + b"abcdefgh").hex() == GOLDEN_FRAME


def test_the_checksum_of_a_frame_is_what_the_documentation_says():
    frame = frame_head(b"abcdefgh", 7, 5, seed_of(SHARD)) + b"abcdefgh"
    length, crc, sequence, durable_sequence = FRAME.unpack_from(frame)
    assert (length, sequence, durable_sequence) == (24, 7, 5)
    assert crc == crc32c(frame[8:], crc32c(SHARD) ^ length)


def test_every_flipped_bit_of_a_header_is_found():
    data = encode_header(Header(SHARD, 3, 1000))
    for bit in range(len(data) * 8):
        with pytest.raises(Damaged, match="header"):
            decode_header(_flipped(data, bit), "file")


def test_every_flipped_bit_of_a_frame_is_found():
    seed = seed_of(SHARD)
    frame = frame_head(b"abcdefgh" * 4, 7, 5, seed) + b"abcdefgh" * 4
    for bit in range(len(frame) * 8):
        assert not _is_sound(_flipped(frame, bit), seed)
    assert _is_sound(frame, seed)


def test_a_frame_of_another_shard_is_not_sound():
    frame = frame_head(b"abcdefgh", 7, 5, seed_of(SHARD)) + b"abcdefgh"
    assert not _is_sound(frame, seed_of(bytes(16)))


def test_a_header_that_is_cut_short_or_of_a_later_format_is_refused():
    data = encode_header(Header(SHARD, 3, 1000))
    with pytest.raises(Damaged, match="cut short"):
        decode_header(data[:63], "file")
    later = bytearray(data)
    later[8] = 2
    later[60:] = crc32c(bytes(later[:60])).to_bytes(4, "little")
    with pytest.raises(StorageError, match="format 2"):
        decode_header(bytes(later), "file")


def _is_sound(frame: bytes, seed: int) -> bool:
    length, crc, _, _ = FRAME.unpack_from(frame)
    return length == len(frame) - 8 and frame_is_sound(memoryview(frame), 0, length, crc, seed)


def _flipped(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)
