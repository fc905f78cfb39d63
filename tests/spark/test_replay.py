"""The replay pipeline: what it selects, that it says so first, and that it pushes everything once."""

from __future__ import annotations

import pytest

import penstock
from penstock import Message
from penstock import operations as ops
from penstock.errors import GroupNotFound, InvalidField, QueueNotFound
from penstock.spark.pipelines import replay as pipeline
from penstock.spark.pipelines.archive import PIPELINE as ARCHIVE
from penstock.spark.pipelines.archive import ArchiveOptions
from penstock.spark.pipelines.base import Run
from penstock.spark.pipelines.replay import PIPELINE, ReplayOptions
from penstock.spark.pipelines.runner import execute
from tests.support.operations import run_operation


@pytest.fixture
def data(tmp_path):
    """A directory with ten messages, of which the first four are acknowledged."""
    with penstock.open(tmp_path / "data") as ps:
        queue = ps.create_queue("orders")
        headers = {"color": "red", pipeline.ORIGIN: "orders/0/99"}
        queue.push_many(
            [
                Message(
                    payload=f'{{"n": {n}}}'.encode(), key=f"k{n % 2}", priority=77, headers=headers, dedup_key=str(n)
                )
                for n in range(10)
            ]
        )
        queue.lease(4).ack()
        run_operation(ps._session, ops.Seal())
    return tmp_path / "data"


@pytest.fixture
def replay(spark, data, tmp_path):
    def replay(*queues, to="again", **options):
        made = Run(
            spark,
            str(data),
            options=ReplayOptions(to=to, **options),
            out=tmp_path / "out",
            queues=queues or ("orders",),
        )
        return execute(PIPELINE, made)

    return replay


def pushed(data, queue="again"):
    with penstock.open(data) as ps:
        return ps.queue(queue).read(limit=1000) if queue in ps.queues() else []


def numbers(messages):
    return sorted(message.json()["n"] for message in messages)


def test_nothing_is_pushed_before_it_is_asked_for_and_then_once(replay, data):
    options = {"where": "get_json_object(cast(payload as string), '$.n') >= 3", "key": ("k1",)}

    dry = replay(**options)

    assert dry.summary == "would push 4 messages to 'again'; add --go to do it"
    assert [row[:5] for row in dry.tables[0].rows] == [("orders", "0", 4, 3, 9)]
    assert [row[0] for row in dry.tables[1].rows] == [f"orders/0/{n}" for n in (3, 5, 7, 9)]
    assert pushed(data) == []

    assert replay(**options, go=True).figures["messages"] == 4
    assert "is already complete" in replay(**options, go=True).summary
    assert replay(**options, go=True, id="once-more").figures["messages"] == 4

    found = pushed(data)
    assert numbers(found) == [3, 3, 5, 5, 7, 7, 9, 9]
    first = min(found, key=lambda message: message.payload)
    assert (first.key, first.priority, first.dedup_key) == ("k1", 77, None)
    assert first.headers == {"color": "red", pipeline.ORIGIN: "orders/0/3"}


def test_what_a_group_has_acknowledged_is_left_out(replay, data):
    assert replay(skip_acked_by="default", go=True).figures["messages"] == 6

    assert numbers(pushed(data)) == [4, 5, 6, 7, 8, 9]


def test_a_slow_replay_keeps_the_order_of_the_past(replay, data):
    report = replay(per_second=10_000.0, go=True)

    assert report.figures["messages"] == 10
    assert [message.json()["n"] for message in pushed(data)] == list(range(10))
    assert "is already complete" in replay(per_second=10_000.0, go=True).summary


def test_the_archive_and_the_log_together_have_every_message_once(spark, replay, data, tmp_path):
    archive = tmp_path / "archive"
    execute(ARCHIVE, Run(spark, str(data), options=ArchiveOptions(), out=archive))
    with penstock.open(data) as ps:
        ps.update_queue("orders", retention_seconds=0)
        ps.compact()
        ps.queue("orders").push_many([b'{"n": 10}', b'{"n": 11}'])
    assert replay(archive=str(archive), skip_acked_by="default").figures["messages"] == 8

    assert replay(archive=str(archive), go=True).figures["messages"] == 12

    assert numbers(pushed(data)) == list(range(12))


@pytest.mark.parametrize(
    ("queues", "options", "error", "words"),
    [
        ((), {"where": "nothing = 1"}, InvalidField, "where: 'nothing = 1'.*nothing"),
        ((), {"where": "1 +"}, InvalidField, "where"),
        ((), {"per_second": 0.0}, InvalidField, "--per-second: 0 is not more than 0"),
        ((), {"to": "no queue"}, Exception, "no queue"),
        ((), {"skip_acked_by": "defualt"}, GroupNotFound, "defualt"),
        ((), {"archive": "/nowhere"}, InvalidField, "archive"),
        (("ordres",), {}, QueueNotFound, "ordres"),
        (("x*",), {}, QueueNotFound, r"x\*"),
    ],
)
def test_bad_input_is_named(replay, queues, options, error, words):
    with pytest.raises(error, match=words) as refused:
        replay(*queues, **options)
    assert refused.value.hint or options == {"per_second": 0.0}  # which says all there is to say


def test_an_archive_of_other_data_is_replayed_beside_the_log(spark, replay, tmp_path):
    with penstock.open(tmp_path / "lost") as ps:
        ps.create_queue("orders").push_many([Message(payload=f'{{"n": {n}}}'.encode()) for n in range(100, 103)])
    out = tmp_path / "archive"
    execute(ARCHIVE, Run(spark, str(tmp_path / "lost"), options=ArchiveOptions(), out=out))

    assert replay(archive=str(out), go=True).figures["messages"] == 13
    with pytest.raises(InvalidField, match="of different data"):
        replay(archive=str(out), skip_acked_by="default")
