"""The checkers of histories over a network find what is wrong: each sees one lie that nothing else would show."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.history import UNKNOWN, Got, History, Place, Row, Settle
from tests.support.client_load import RESULTS, one_result
from tests.support.recorded import Record, attempts_have_causes, problems, sent

A, B = Place("jobs", "0", 0), Place("jobs", "0", 1)


def story() -> Record:
    """Two pushes, each delivered and acknowledged, one of them at the second attempt."""
    record = Record("jobs")
    record.history.queues["jobs"]["groups"] = ("default",)
    for place, payload in ((A, b"a"), (B, b"b")):
        with record.doing("producer", "push", pushes=[("jobs", sent(payload))]) as row:
            row.result = [[place]]
    deliver(record, Got(A, 1, b"a", 7, 0), "nack")
    deliver(record, Got(A, 2, b"a", 8, 0), "ack")
    deliver(record, Got(B, 1, b"b", 9, 0), "ack")
    with record.doing("end", "read", queue="jobs") as row:
        row.result = [(A, b"a"), (B, b"b")]
    return record


def deliver(record: Record, got: Got, how: str | None) -> None:
    with record.doing("consumer", "lease", queue="jobs", group="default", auto_ack=False, asked=True) as row:
        row.result = [got]
    if how is not None:
        with record.doing("consumer", "settle", settles=[Settle(got, "default", how)]):
            pass


def found(record: Record) -> list[str]:
    return problems(record.history, attempts_have_causes)


def rows(history: History, op: str) -> list[Row]:
    return [row for row in history.rows if row.op == op]


def test_a_true_story_is_believed():
    assert found(story()) == []


def test_what_nobody_knows_may_have_happened_or_not():
    record = story()
    with record.doing("producer", "push", pushes=[("jobs", sent(b"c", b"d"))]) as row:
        pass
    row.outcome = UNKNOWN
    assert found(record) == []

    rows(record.history, "read")[0].result += [(Place("jobs", "0", 2), b"c"), (Place("jobs", "0", 3), b"d")]
    assert found(record) == []


def lose(record: Record) -> None:
    rows(record.history, "lease")[2].result = []


def store_twice(record: Record) -> None:
    rows(record.history, "read")[0].result.append((Place("jobs", "0", 2), b"b"))


def store_in_part(record: Record) -> None:
    record.begun("producer", "push", pushes=[("jobs", sent(b"c", b"d"))])
    rows(record.history, "read")[0].result.append((Place("jobs", "0", 2), b"c"))


def misplace(record: Record) -> None:
    rows(record.history, "push")[1].result = [[Place("jobs", "0", 5)]]


def leave_a_hole(record: Record) -> None:
    rows(record.history, "read")[0].result.append((Place("jobs", "0", 7), b"x"))


def turn_round(record: Record) -> None:
    first, second = rows(record.history, "push")
    first.result, second.result = second.result, first.result


def invent(record: Record) -> None:
    deliver(record, Got(Place("jobs", "0", 9), 1, b"nobody's", 11, 0), None)


def deliver_after_the_ack(record: Record) -> None:
    deliver(record, Got(A, 2, b"a", 12, 0), None)


def mistake_one_for_another(record: Record) -> None:
    rows(record.history, "lease")[2].result = [Got(A, 1, b"b", 9, 0)]


def ack_another(record: Record) -> None:
    rows(record.history, "settle")[2].args["settles"] = [Settle(Got(B, 1, b"a", 9, 0), "default", "ack")]


def ack_twice(record: Record) -> None:
    deliver(record, Got(A, 2, b"a", 8, 0), "ack")


def deliver_without_a_cause(record: Record) -> None:
    rows(record.history, "settle")[0].args["settles"] = []


def hide_an_attempt(record: Record) -> None:
    rows(record.history, "lease")[0].outcome = UNKNOWN


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (lose, "was never delivered"),
        (store_twice, "stored twice"),
        (store_in_part, "stored in part"),
        (misplace, "stored at"),
        (leave_a_hole, "has holes"),
        (turn_round, "comes before"),
        (invent, "was never pushed"),
        (deliver_after_the_ack, "after"),
        (mistake_one_for_another, "is b'a' in"),
        (ack_another, "is b'b' in"),
        (ack_twice, "acknowledged 2 times"),
        (deliver_without_a_cause, "nobody asked for it"),
        (hide_an_attempt, "was seen in attempts [2]"),
    ],
)
def test_a_lie_is_found(lie: Callable[[Record], None], words: str):
    record = story()
    lie(record)

    assert [line for line in found(record) if words in line], found(record)


def test_a_second_result_of_one_job_is_found():
    record = Record("jobs", RESULTS)
    with record.doing("end", "read", queue=RESULTS) as row:
        row.result = [(Place(RESULTS, "0", 0), b"3: result of a"), (Place(RESULTS, "0", 1), b"5: result of b")]
    assert list(one_result(record.history)) == []

    row.result.append((Place(RESULTS, "0", 2), b"8: result of a"))

    assert list(one_result(record.history)) == ["b'a' has 2 results"]
