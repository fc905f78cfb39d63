"""The arithmetic of streaming offsets: fair shares, losses, new partitions, and leases as runs."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import HistoryLost, InvalidField
from penstock.history import OffsetRange, PartitionView, QueueView
from penstock.model import QueueOptions
from penstock.replies import LeaseReply, Piece
from penstock.spark import consume, stream_offsets
from penstock.spark.stream_offsets import QueueOffset, StreamOffset, advance, losses, offset_of, shared


def queue(name, incarnation=1, **partitions):
    """A queue whose partitions `p0`, `p1` … keep the offsets [start, end)."""
    views = {
        each: PartitionView(each, number, start, end) for number, (each, (start, end)) in enumerate(partitions.items())
    }
    return QueueView(name, incarnation, QueueOptions(), views, ())


def offset(**queues):
    return StreamOffset("ab", "q", {name: QueueOffset(1, dict(each)) for name, each in queues.items()})


def moved(start, queues, count_max=None):
    positions, _ = losses(start, queues)
    return advance(start, positions, queues, count_max)


def test_the_next_offset_is_the_end_of_everything():
    assert moved(offset(a={"p0": 2}), {"a": queue("a", p0=(0, 5))}) == offset(a={"p0": 5})


def test_nothing_new_gives_back_the_very_same_offset():
    start = offset(a={"p0": 5, "p1": 0})

    assert moved(start, {"a": queue("a", p0=(0, 5), p1=(0, 0), p2=(0, 0)), "b": queue("b", p0=(0, 0))}) is start


def test_an_offset_survives_spark_as_the_same_text():
    start = offset(b={"1": 5, "0": 2}, a={})
    text = json.dumps(start.as_dict())

    assert json.dumps(offset_of(json.loads(text)).as_dict()) == text


def test_new_partitions_and_queues_are_read_from_their_beginning():
    queues = {"a": queue("a", p0=(0, 5), p1=(3, 4)), "b": queue("b", p0=(7, 9))}
    end = moved(offset(a={"p0": 5}), queues)

    assert end == offset(a={"p0": 5, "p1": 4}, b={"p0": 9})
    assert list(stream_offsets.requested(offset(a={"p0": 5}), end, queues)) == [
        OffsetRange("a", "p1", 3, 4),
        OffsetRange("b", "p0", 7, 9),
    ]


def test_a_limit_is_shared_alike_and_what_one_does_not_need_the_others_get():
    backlog = {("a", "0"): 100, ("a", "1"): 2, ("b", "0"): 100}

    assert shared(backlog, 20, 0) == {("a", "0"): 9, ("a", "1"): 2, ("b", "0"): 9}
    assert shared(backlog, None, 0) == backlog
    assert shared(backlog, 500, 0) == backlog


def test_a_limit_below_the_number_of_partitions_serves_all_of_them_in_turn():
    start, queues = offset(a={"p0": 0, "p1": 0, "p2": 0}), {"a": queue("a", p0=(0, 9), p1=(0, 9), p2=(0, 9))}
    seen = []
    for _ in range(6):
        end = moved(start, queues, 1)
        seen += [each.partition for each in stream_offsets.requested(start, end, queues)]
        start = end

    assert sorted(seen) == ["p0", "p0", "p1", "p1", "p2", "p2"]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 300), st.integers(0, 1000))
def test_shares_are_fair_and_make_the_limit_exactly(sizes, count_max, turn):
    backlog = {("q", str(index)): size for index, size in enumerate(sizes)}

    taken = shared(backlog, count_max, turn)

    assert sum(taken.values()) == min(count_max, sum(sizes))
    assert all(0 < count <= backlog[place] for place, count in taken.items())
    hungry = [count for place, count in taken.items() if count < backlog[place]]
    most = max(taken.values())
    assert not hungry or most - min(hungry) <= 1


def test_offsets_that_retention_has_removed_are_a_loss_with_their_number():
    positions, lost = losses(offset(a={"p0": 2, "p1": 6}), {"a": queue("a", p0=(5, 9), p1=(5, 9))})

    assert positions == {("a", "p0"): 5, ("a", "p1"): 6}
    assert [(each.text, each.count) for each in lost] == [
        ("queue 'a', partition 'p0': offsets 2 to 4 were removed by retention", 3)
    ]
    with pytest.raises(HistoryLost, match="failOnDataLoss=false"):
        stream_offsets.refuse(lost)
    stream_offsets.refuse([])


def test_a_log_that_ends_before_the_checkpoint_is_a_loss():
    _, lost = losses(offset(a={"p0": 8}), {"a": queue("a", p0=(0, 5))})

    assert "has read up to offset 8, and the log ends at 5" in lost[0].text


@pytest.mark.parametrize(("queues", "text"), [({}, "was deleted since"), ({"a": queue("a", 2)}, "created again")])
def test_a_queue_that_was_deleted_is_a_loss(queues, text):
    _, lost = losses(offset(a={"p0": 8}), queues)

    assert text in lost[0].text


def test_a_queue_made_again_is_read_from_its_beginning_by_who_can_do_without_the_old_one():
    queues = {"a": queue("a", 2, p0=(0, 3))}
    start = offset(a={"p0": 8})
    end = moved(start, queues)

    assert end.queues == {"a": QueueOffset(2, {"p0": 3})}
    assert list(stream_offsets.requested(start, end, queues)) == [OffsetRange("a", "p0", 0, 3)]


def test_a_batch_that_is_planned_again_misses_what_went_meanwhile():
    end = offset(a={"p0": 8}, b={"p0": 4})
    wanted = [OffsetRange("a", "p0", 2, 8), OffsetRange("b", "p0", 1, 4)]

    assert stream_offsets.missing(wanted, end, {"a": queue("a", p0=(0, 9)), "b": queue("b", p0=(1, 4))}) == []
    lost = stream_offsets.missing(wanted, end, {"a": queue("a", p0=(20, 30)), "b": queue("b", 2, p0=(1, 4))})
    assert [each.count for each in lost] == [6, None]
    assert len(stream_offsets.missing(wanted, end, {"a": queue("a", p0=(3, 4)), "b": queue("b", p0=(1, 4))})) == 2


def test_checkpoints_of_others_are_recognised():
    with pytest.raises(InvalidField, match="over another directory or broker"):
        stream_offsets.check(offset(a={}), "cd", {"a": True})
    with pytest.raises(InvalidField, match=r"over queue 'a', not read here"):
        stream_offsets.check(offset(a={}), "ab", {"b": True})
    for given_offset in ({}, {"x": 1}, {"shard": "ab", "query": "q", "batch": 1, "leases": []}):
        with pytest.raises(InvalidField, match="checkpointLocation"):
            offset_of(given_offset)
    with pytest.raises(InvalidField, match="checkpointLocation"):
        consume.offset_of(offset(a={}).as_dict())


def test_with_targets_nothing_that_came_later_is_seen():
    queues = {"a": queue("a", p0=(0, 5)), "b": queue("b", p0=(0, 0))}
    targets = stream_offsets.ends(queues)
    later = {"a": queue("a", p0=(0, 9), p1=(0, 2)), "b": queue("b", p0=(0, 1)), "c": queue("c", p0=(0, 4))}

    start = offset(a={"p0": 1})
    positions, _ = losses(start, later)
    end = advance(start, positions, stream_offsets.capped(later, targets), None)

    assert end == offset(a={"p0": 5})
    positions, _ = losses(end, later)
    assert advance(end, positions, stream_offsets.capped(later, targets), None) is end


# leases


def test_a_lease_becomes_runs_in_order():
    pieces = [
        Piece(None, slice(0, 3), "0", range(7, 10), 1, 0),
        Piece(None, [0, 1, 2], ["1", "0", "1"], [4, 10, 6], 1, 0),
    ]

    lease = consume.lease_of(LeaseReply("mail", "default", 255, 0, pieces, 6), 4)

    assert lease.runs == [("0", 7, 4), ("1", 4, 1), ("1", 6, 1)]
    assert (lease.nonce, lease.count, lease.lease) == (255, 6, "00000000000000ff")


def test_an_offset_of_leases_survives_spark():
    lease = consume.Lease("mail", 4, "ff", [("0", 7, 4)])
    end = consume.LeaseOffset("ab", "q", 3, [lease])

    assert consume.offset_of(json.loads(json.dumps(end.as_dict()))) == end


@given(st.lists(st.integers(0, 20_000), min_size=1, max_size=60, unique=True))
def test_planned_ranges_cover_all_that_is_held_and_only_that_is_kept(offsets):
    runs = {"0": list(consume.runs_in(offsets))}
    planned = consume.ranges_of("mail", runs)
    covered = [offset for each in planned for offset in range(each.first, each.end)]
    rows = pa.record_batch({"partition": ["0"] * len(covered), "offset": covered})

    assert len(planned) <= consume.CLUSTERS_MAX
    assert len(covered) == len(set(covered))
    assert consume.held(rows, runs).column("offset").to_pylist() == sorted(offsets)


def test_rows_of_several_partitions_are_distinguished():
    rows = pa.record_batch({"partition": ["0", "1", "2"] * 10, "offset": np.repeat(np.arange(10), 3)})
    runs = {"0": [(2, 2), (7, 1)], "1": [(0, 1)]}

    kept = consume.held(rows, runs).to_pylist()

    assert {(row["partition"], row["offset"]) for row in kept} == {("0", 2), ("0", 3), ("0", 7), ("1", 0)}
