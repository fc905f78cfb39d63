"""Producers as bytes, for checkpoints, and back.

Like queues they are taken in slices, each with the sequence at which it was taken: replay teaches a producer only what
came after.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.delivery.producers import Known, Producers


class ProducerState(msgspec.Struct, array_like=True):
    """One producer in a checkpoint."""

    id: int
    epoch: int
    seen_at: int
    last: int
    floor: int
    rows: bytes
    beside: list[tuple[int, int, bytes]]  # sequence, queue, answer


class ProducersSlice(msgspec.Struct, array_like=True):
    """Some producers, all at one sequence of the journal."""

    sequence: int
    producers: list[ProducerState]


class ProducersPart(msgspec.Struct, array_like=True):
    """All of them, in slices, so that the shard is never held for long."""

    look_at: int
    slices: list[ProducersSlice]


def take_slice(producers: Producers, ids: Iterable[int], sequence: int) -> ProducersSlice:
    """Some producers as they are now, without those that have been forgotten meanwhile."""
    states = []
    for id in ids:
        known = producers.known.get(id)
        if known is not None:
            beside = [(*place, answer) for place, answer in known.beside.items()]
            rows = bytes(known.rows)
            states.append(ProducerState(id, known.epoch, known.seen_at, known.last, known.floor, rows, beside))
    return ProducersSlice(sequence, states)


def restore_producers(producers: Producers, data: bytes) -> None:
    """Put the producers of a checkpoint back; what a slice includes is not learnt again from the journal."""
    part = msgspec.msgpack.decode(data, type=ProducersPart)
    producers.look_at = part.look_at
    for piece in part.slices:
        for state in piece.producers:
            known = producers.known[state.id] = Known(state.epoch, state.seen_at)
            known.last, known.floor = state.last, state.floor
            known.rows = bytearray(state.rows)
            known.beside = {(sequence, queue): answer for sequence, queue, answer in state.beside}
            known.beside_bytes = sum(map(len, known.beside.values()))
            known.applied = piece.sequence


def encode_producers(look_at: int, slices: list[ProducersSlice]) -> bytes:
    """The bytes of the part."""
    return msgspec.msgpack.encode(ProducersPart(look_at, slices))
