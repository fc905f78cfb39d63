"""The way of one trace through the queues: which hop led to which, and which of them decided when it ended.

A hop is one message as one group saw it. Times are µs. A message says which span pushed it, not which message that span
was working on, so where a hop came from is found out, in this order:

1. a dead letter names its origin;
2. messages pushed by the same span have the same origin, in a trace of several spans;
3. the hop that was being worked on when this message was pushed; of several the one leased last;
4. the hop that had ended last before.

The critical path is the hop that ended last, where that came from, and so on to the beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Hop(NamedTuple):
    """One message as one group saw it."""

    id: str  # queue/partition/offset
    span: str | None
    origin: str | None  # id of the message that this is the dead letter of
    pushed_us: int
    leased_us: int | None  # first
    settled_us: int | None  # last
    is_open: bool


class Step(NamedTuple):
    """What a hop is within its journey."""

    parent: int | None  # place of the hop that led to it
    is_critical: bool
    gap_us: int  # pushed so long after its parent had ended
    wait_us: int  # waited so long on the critical path
    work_us: int  # and held it up so long after that


def journey(hops: Sequence[Hop]) -> list[Step]:
    """One step per hop, in the same order. Hops come in the order in which they were pushed."""
    parents = _parents(hops)
    path = _critical_path(hops, parents)
    follower = dict(zip(path[1:], path[:-1], strict=True))  # a hop on the path → the one that it led to
    return [_step(hops, place, parents[place], place in path, follower.get(place)) for place in range(len(hops))]


def _parents(hops: Sequence[Hop]) -> list[int | None]:
    by_id = {hop.id: place for place, hop in enumerate(hops)}
    spans = {hop.span for hop in hops if hop.span}
    of_message: dict[str, int | None] = {}
    of_span: dict[str, int | None] = {}
    for hop in hops:
        if hop.id in of_message:
            continue  # another group of the same message
        if hop.origin is not None:
            of_message[hop.id] = by_id.get(hop.origin)
        elif len(spans) > 1 and hop.span in of_span:
            of_message[hop.id] = of_span[hop.span]
        else:
            of_message[hop.id] = _at_work(hops, hop)
            if hop.span:
                of_span[hop.span] = of_message[hop.id]
    return [of_message[hop.id] for hop in hops]


def _at_work(hops: Sequence[Hop], pushed: Hop) -> int | None:
    """The hop that was being worked on at a push, else the one that had ended last."""
    before = [
        (place, hop.leased_us, hop.settled_us)
        for place, hop in enumerate(hops)
        if hop.id != pushed.id and hop.pushed_us <= pushed.pushed_us
        and hop.leased_us is not None and hop.leased_us <= pushed.pushed_us
    ]  # fmt: skip
    working = [(leased, place) for place, leased, ended in before if ended is None or ended >= pushed.pushed_us]
    if working:
        return max(working)[1]
    return max(((ended or 0, place) for place, _, ended in before), default=(0, None))[1]


def _critical_path(hops: Sequence[Hop], parents: Sequence[int | None]) -> list[int]:
    """From the hop that ended last back to the first. What is still open ends after everything else."""
    place: int | None = max(range(len(hops)), key=lambda each: (hops[each].is_open, _end(hops[each])))
    path: list[int] = []
    while place is not None and place not in path:  # messages pushed at the same moment might point at each other
        path.append(place)
        place = parents[place]
    return path


def _end(hop: Hop) -> int:
    return hop.settled_us or hop.leased_us or hop.pushed_us


def _step(hops: Sequence[Hop], place: int, parent: int | None, is_critical: bool, follower: int | None) -> Step:
    hop = hops[place]
    gap_us = max(0, hop.pushed_us - _end(hops[parent])) if parent is not None else 0
    if not is_critical:
        return Step(parent, False, gap_us, 0, 0)
    begun = hop.leased_us if hop.leased_us is not None else hop.pushed_us
    handed_on = _end(hop) if follower is None else min(_end(hop), hops[follower].pushed_us)
    return Step(parent, True, gap_us, max(0, begun - hop.pushed_us), max(0, handed_on - begun))
