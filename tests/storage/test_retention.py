"""Retention decides how far the start of each partition may move."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.model import queue_options
from penstock.storage.extents import Extent
from penstock.storage.retention import new_starts

SECOND = 1_000_000
NOW = 1_000 * SECOND
FAR = 10**9
UNLIMITED = {"retention_seconds": None, "retention_bytes": None}


def extent(partition: int = 0, first: int = 0, count: int = 10, *, at: int = 0, size: int = 100) -> Extent:
    """An extent whose messages were pushed at `at` seconds."""
    return Extent(1, partition, first, count, at * SECOND, at * SECOND, "f", 0, 0, 0, size, 0, 0)


def starts(extents: dict[int, list[Extent]], floors: dict[int, int] | None = None, **options: Any) -> dict[int, int]:
    if floors is None:
        floors = dict.fromkeys(extents, FAR)
    return new_starts(queue_options({**UNLIMITED, **options}), extents, floors, NOW)


def test_without_a_limit_nothing_goes():
    assert starts({0: [extent()]}) == {}


def test_extents_go_when_their_last_message_is_old_enough():
    run = [extent(first=0, at=100), extent(first=10, at=900), extent(first=20, at=901)]
    assert starts({0: run}, retention_seconds=100) == {0: 20}


def test_retention_of_zero_seconds_lets_everything_settled_go():
    assert starts({0: [extent(at=1000)]}, retention_seconds=0) == {0: 10}


def test_the_oldest_extents_go_until_the_bytes_fit():
    run = [extent(first=10 * n, at=n) for n in range(5)]
    assert starts({0: run}, retention_bytes=250) == {0: 30}
    assert starts({0: run}, retention_bytes=500) == {}


def test_bytes_are_those_of_the_queue_and_the_oldest_partition_gives_first():
    extents = {0: [extent(0, at=5), extent(0, 10, at=6)], 1: [extent(1, at=1), extent(1, 10, at=7)]}
    assert starts(extents, retention_bytes=300) == {1: 10}
    assert starts(extents, retention_bytes=200) == {0: 10, 1: 10}


def test_the_count_is_exact_and_may_end_inside_an_extent():
    run = [extent(first=10 * n, at=n) for n in range(3)]
    assert starts({0: run}, retention_messages=13) == {0: 17}
    assert starts({0: run}, retention_messages=0) == {0: 30}


def test_the_minimum_stays_whatever_its_age_and_size():
    run = [extent(first=10 * n, at=n) for n in range(3)]
    limits: dict[str, Any] = {"retention_seconds": 0, "retention_bytes": 0, "retention_messages": 0}
    assert starts({0: run}, **limits, retention_messages_min=15) == {0: 15}
    assert starts({0: run}, **limits, retention_messages_min=30) == {}
    assert starts({0: run}, **limits, retention_messages_min=99) == {}


def test_the_start_never_passes_the_floor():
    run = [extent(first=10 * n, at=n) for n in range(3)]
    assert starts({0: run}, {0: 14}, retention_seconds=0) == {0: 14}
    assert starts({0: run}, {0: 0}, retention_seconds=0) == {}


def test_a_partition_without_a_floor_stays():
    assert starts({0: [extent()]}, {}, retention_seconds=0) == {}


def test_a_queue_that_drops_unread_messages_passes_the_floor_but_keeps_its_minimum():
    run = [extent(first=10 * n, at=n) for n in range(3)]
    assert starts({0: run}, {0: 0}, retention_seconds=0, retention_drops_unread=True) == {0: 30}
    kept = starts({0: run}, {0: 0}, retention_seconds=0, retention_drops_unread=True, retention_messages_min=5)
    assert kept == {0: 25}


def test_nothing_goes_before_it_is_archived_not_even_what_may_go_unread():
    run = [extent(first=10 * n, at=n) for n in range(3)]
    for drops in (False, True):
        options = queue_options(
            {**UNLIMITED, "retention_seconds": 0, "retention_until_archived": True, "retention_drops_unread": drops}
        )
        assert new_starts(options, {0: run}, {0: FAR}, NOW, archived={0: 14}) == {0: 14}
        assert new_starts(options, {0: run}, {0: FAR}, NOW, archived={1: 14}) == {}
        assert new_starts(options, {0: run}, {0: FAR}, NOW) == {}


def test_a_partition_held_by_its_floor_does_not_keep_the_others_from_giving():
    extents = {0: [extent(0, at=1), extent(0, 10, at=2)], 1: [extent(1, at=3), extent(1, 10, at=4)]}
    assert starts(extents, {0: 0, 1: FAR}, retention_bytes=300) == {1: 10}


def test_what_is_still_in_the_journal_counts_but_never_goes():
    options = queue_options({**UNLIMITED, "retention_messages": 12, "retention_bytes": 150})
    run = {0: [extent(first=0, at=1), extent(first=10, at=2)]}
    assert new_starts(options, run, {0: FAR}, NOW, tail_messages=5, tail_bytes=40) == {0: 13}
    assert new_starts(options, {}, {}, NOW, tail_messages=50, tail_bytes=4000) == {}


def test_an_extent_stamped_by_a_clock_that_went_back_does_not_go_before_its_elders():
    run = [extent(first=0, at=500), extent(first=10, at=100)]
    assert starts({0: run}, retention_bytes=100) == {0: 10}
    assert starts({0: run}, retention_seconds=600) == {}


@given(
    counts=st.lists(st.lists(st.integers(1, 50), max_size=6), min_size=1, max_size=4),
    floors=st.lists(st.integers(0, 300), min_size=4, max_size=4),
    seconds=st.none() | st.integers(0, 30),
    messages=st.none() | st.integers(0, 400),
    size=st.none() | st.integers(0, 4000),
    least=st.integers(0, 400),
    drops=st.booleans(),
)
def test_floor_and_minimum_hold_for_any_history(counts, floors, seconds, messages, size, least, drops):
    extents: dict[int, list[Extent]] = {}
    for partition, run in enumerate(counts):
        firsts = [sum(run[:n]) for n in range(len(run))]
        extents[partition] = [
            extent(partition, first, count, at=970 + 5 * n, size=10 * count)
            for n, (first, count) in enumerate(zip(firsts, run, strict=True))
        ]
    result = starts(
        extents,
        dict(enumerate(floors)),
        retention_seconds=seconds,
        retention_messages=messages,
        retention_bytes=size,
        retention_messages_min=least,
        retention_drops_unread=drops,
    )
    total = sum(map(sum, counts))
    for partition, start in result.items():
        assert 0 < start <= sum(counts[partition])
        assert drops or start <= floors[partition]
    assert total - sum(result.values()) >= min(least, total)
