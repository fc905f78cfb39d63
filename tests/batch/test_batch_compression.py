"""Payloads shrink when that pays, and are never believed about their size."""

from __future__ import annotations

import random
import struct
import threading

import pytest
import zstandard

from penstock import limits
from penstock.batch import Batch, layout
from penstock.batch.fields import compress, decompress
from penstock.errors import BadBatch

TEXT = b'{"id": 1, "name": "penstock"}'


def bomb(frame: bytes, payload_bytes: int) -> bytes:
    """A batch of one whose compressed payload is `frame`."""
    return layout.seal(1, 0, [], struct.pack("<ii", 0, payload_bytes), frame, layout.ZSTD, payload_bytes)


def test_payloads_that_shrink_are_compressed_when_asked_for():
    items = [TEXT] * 1000

    plain, small = Batch.build(items), Batch.build(items, compress=True)

    assert not plain.compressed
    assert small.compressed
    assert small.nbytes < plain.nbytes / 3
    assert small.payload_bytes == plain.payload_bytes
    assert Batch.parse(small.data, validate=True).payloads() == items
    assert small.payload(999) == TEXT
    assert Batch.parse(bytes(small.data), validate=False).to_arrow().column("payload").to_pylist() == items


def test_short_payloads_are_left_alone():
    assert not Batch.build([b"a" * (limits.compression_threshold_bytes - 1)], compress=True).compressed
    assert Batch.build([b"a" * limits.compression_threshold_bytes], compress=True).compressed


def test_payloads_that_do_not_shrink_are_left_alone():
    noise = random.Random(7).randbytes(limits.compression_threshold_bytes * 4)

    assert not Batch.build([noise], compress=True).compressed


def test_noise_around_a_compressible_middle_is_left_alone():
    before, after = random.Random(7).randbytes(500_000), random.Random(8).randbytes(500_000)

    assert compress(before + bytes(9_000) + after) is None


def test_one_byte_more_or_less_than_announced_is_refused():
    frame = zstandard.ZstdCompressor().compress(bytes(1000))

    for length in (999, 1001):
        with pytest.raises(BadBatch, match="holds 1,000 bytes"):
            Batch.parse(bomb(frame, length), validate=True)


def test_a_bomb_is_refused_by_its_frame_before_anything_is_allocated():
    frame = zstandard.ZstdCompressor().compress(bytes(1 << 28))

    with pytest.raises(BadBatch, match="holds 268,435,456 bytes"):
        Batch.parse(bomb(frame, 1000), validate=True)


def test_a_batch_that_announces_more_than_a_batch_may_hold_is_refused():
    frame = zstandard.ZstdCompressor().compress(bytes(limits.batch_bytes_max))

    with pytest.raises(BadBatch, match="larger than"):
        Batch.parse(bomb(frame, limits.batch_bytes_max), validate=True)


def test_a_frame_that_does_not_say_its_size_is_refused():
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))

    with pytest.raises(BadBatch, match="frame"):
        Batch.parse(bomb(frame, 1000), validate=True)


def test_a_frame_that_lies_about_its_size_is_refused():
    frame = bytearray(zstandard.ZstdCompressor().compress(bytes(1000)))
    frame[5:7] = (2000 - 256).to_bytes(2, "little")  # the content size, in the form for 256 to 65,791

    with pytest.raises(BadBatch):
        Batch.parse(bomb(bytes(frame), 2000), validate=True)


@pytest.mark.parametrize("frame", [b"", b"\0" * 40, zstandard.ZstdCompressor().compress(bytes(1000))[:-4]])
def test_what_is_not_a_whole_frame_is_refused(frame):
    with pytest.raises(BadBatch):
        Batch.parse(bomb(frame, 1000), validate=True)


def test_bytes_after_the_frame_are_refused():
    frame = zstandard.ZstdCompressor().compress(bytes(1000))

    with pytest.raises(BadBatch, match="is damaged"):
        Batch.parse(bomb(frame + b"more", 1000), validate=True)


@pytest.mark.parametrize("more", [b"more", zstandard.ZstdCompressor().compress(b""), b"\x50\x2a\x4d\x18\4\0\0\0skip"])
def test_nothing_follows_a_frame_not_even_an_empty_one(more):
    frame = zstandard.ZstdCompressor().compress(bytes(1000))

    with pytest.raises(BadBatch, match="follows its zstd frame"):
        Batch.parse(bomb(frame + more, 1000), validate=True)


@pytest.mark.parametrize("length", [16_384, 65_791, 65_792, 1 << 20])
@pytest.mark.parametrize("options", [{}, {"write_checksum": True}, {"level": 19}], ids=str)
def test_frames_of_any_encoder_are_read(length, options):
    plain = (b"abcdefgh" * 1000 + random.Random(length).randbytes(9_000) + bytes(99_999)) * (length // 100_000 + 1)
    frame = zstandard.ZstdCompressor(**options).compress(plain[:length])

    assert decompress(frame, length) == plain[:length]


def test_every_byte_that_is_wrong_is_refused_or_harmless():
    plain = b"abcdefgh" * 4000
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(plain)
    for at in range(len(frame)):
        for cut in (frame[:at], frame[:at] + bytes([frame[at] ^ 0xFF]) + frame[at + 1 :]):
            try:
                assert decompress(cut, len(plain)) == plain
            except BadBatch:
                continue


def test_threads_compress_and_decompress_side_by_side():
    blobs = [bytes([seed]) * 50_000 + random.Random(seed).randbytes(10_000) for seed in range(8)]
    wrong: list[int] = []

    def work(blob: bytes) -> None:
        for _ in range(30):
            small = compress(blob)
            if small is None or decompress(small, len(blob)) != blob:
                wrong.append(blob[0])

    threads = [threading.Thread(target=work, args=(blob,)) for blob in blobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
