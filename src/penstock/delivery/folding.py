"""Deciding single pushes that came together: one batch, one partition, one entry that says whose rows they are.

A row that its producer has pushed before is left out and gets the place of the first time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.batch import Alike, Batch, encode_plain
from penstock.delivery.core import DeliveryState
from penstock.delivery.entries import Entry, Produced
from penstock.delivery.log import Queue
from penstock.delivery.producers import NOBODY
from penstock.delivery.push import decide_push
from penstock.delivery.same import check_same, used_otherwise
from penstock.errors import InvalidField
from penstock.model import ContentType
from penstock.requests import Producer


class Folded(NamedTuple):
    """Pushes that may go ahead: the partition that all of them are in, and the offset of each."""

    entries: list[Entry]
    partition: int
    offsets: Sequence[int]


def decide_folded(
    core: DeliveryState,
    queue: Queue,
    payloads: Sequence[bytes],
    producers: Sequence[Producer | None],
    now: int,
    content: ContentType | Alike = ContentType.BYTES,
) -> Folded:
    """Refuse them all, or say what they do."""
    if not any(producers):
        return _fresh(core, queue, payloads, now, content)
    places = core.producers.find_rows(producers, queue.id)
    repeats = _repeats(producers)
    for row, place in places.items():
        check_same(queue, producers[row] or NOBODY, [place], [payloads[row]])
    for row, first in repeats.items():
        if payloads[row] != payloads[first]:
            raise used_otherwise(producers[row] or NOBODY)
    if not places and not repeats:
        return _with_producers(_fresh(core, queue, payloads, now, content), queue.id, producers, now)
    rows = [row for row in range(len(payloads)) if row not in places and row not in repeats]
    if rows:
        folded = _fresh(core, queue, [payloads[row] for row in rows], now, content)
        folded = _with_producers(folded, queue.id, [producers[row] for row in rows], now)
        places |= {row: (folded.partition, offset) for row, offset in zip(rows, folded.offsets, strict=True)}
    else:
        folded = Folded([], next(iter(places.values()))[0], ())
    places |= {row: places[first] for row, first in repeats.items() if row not in places}
    if {partition for partition, _ in places.values()} != {folded.partition}:
        raise InvalidField(
            "producer: some of these pushes are known from other partitions", hint="push them one by one"
        )
    return folded._replace(offsets=[places[row][1] for row in range(len(payloads))])


def _fresh(
    core: DeliveryState, queue: Queue, payloads: Sequence[bytes], now: int, content: ContentType | Alike
) -> Folded:
    decided = decide_push(core, queue, Batch(encode_plain(payloads, content)), now)
    ((partition, count, first),) = decided.push.parts
    return Folded(decided.entries, partition, range(first, first + count))


def _with_producers(folded: Folded, queue: int, producers: Sequence[Producer | None], now: int) -> Folded:
    pack = Produced.ROW.pack
    rows = b"".join([pack(each[0], each[2], each[1], row) for row, each in enumerate(producers) if each])
    produced = Produced(queue, now, folded.partition, folded.offsets[0], rows)
    return folded._replace(entries=[produced, *folded.entries])


def _repeats(producers: Sequence[Producer | None]) -> dict[int, int]:
    """Rows that say the same as an earlier one of this fold."""
    nobodies = producers.count(None)
    if len(set(producers)) == len(producers) - max(0, nobodies - 1):
        return {}
    firsts: dict[Producer, int] = {}
    return {
        row: first
        for row, producer in enumerate(producers)
        if producer is not None and (first := firsts.setdefault(producer, row)) != row
    }
