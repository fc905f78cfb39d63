"""What is pushed: 100-byte payloads that look like small JSON documents, none like its neighbours.

Enough different batches that neither a dictionary nor a compressor's window in a sealed segment sees one twice.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from itertools import cycle, islice

import numpy as np
import pyarrow as pa

from penstock import Batch, Message
from penstock.model import PRIORITY_NAMES

PAYLOAD_BYTES = 100
BATCH = 1_000
BATCHES_DISTINCT = 64
# What a frame and a push entry add to the bytes of a batch, for writing "the same bytes" without Penstock.
FRAME_BYTES = 80


def payload(rng: random.Random) -> bytes:
    """One payload."""
    text = f'{{"order":{rng.randrange(10**9)},"customer":"{rng.getrandbits(64):016x}","note":"'
    return (text + f"{rng.getrandbits(256):064x}").encode()[: PAYLOAD_BYTES - 2] + b'"}'


@cache
def lists() -> list[list[bytes]]:
    """Lists of a thousand payloads."""
    rng = random.Random(1)
    return [[payload(rng) for _ in range(BATCH)] for _ in range(BATCHES_DISTINCT)]


@cache
def prioritised() -> list[pa.Table]:
    """Tables with one of the five named priorities at random."""
    rng = np.random.default_rng(2)
    priorities = np.array(sorted(PRIORITY_NAMES.values()), np.int16)
    return [
        pa.table({"payload": pa.array(items, pa.binary()), "priority": pa.array(rng.choice(priorities, BATCH))})
        for items in lists()
    ]


@cache
def delayed(seconds_max: float) -> list[list[Message]]:
    """Messages that are due at random within `seconds_max`, and not within the first minute."""
    rng = random.Random(3)
    return [[Message(payload=item, delay=rng.uniform(60, seconds_max)) for item in items] for items in lists()]


def delayed_tables(count: int, seconds_max: float) -> Iterator[pa.Table]:
    """Delayed messages as `count` tables, each with delays of its own."""
    rng = np.random.default_rng(4)
    for items in islice(cycle(lists()), count):
        delays = rng.integers(60_000_000, round(seconds_max * 1e6), len(items)).astype("timedelta64[us]")
        yield pa.table({"payload": pa.array(items, pa.binary()), "delay": pa.array(delays)})


def cycled(count: int) -> Iterator[list[bytes]]:
    """`count` lists of a thousand."""
    return islice(cycle(lists()), count)


def frame(count: int) -> bytes:
    """As many bytes as the journal writes for a batch of `count`."""
    return bytes(Batch.build(lists()[0][:count]).data) + b"\x55" * FRAME_BYTES
