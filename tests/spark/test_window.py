"""`window`: specs that make sense, windows as plain Python would make them, and a stream from queue to queue."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock import Message
from penstock.client.handles import Penstock
from penstock.embedded.blocking import BlockingSession
from penstock.embedded.session import Session
from penstock.errors import InvalidField
from penstock.spark.pipelines.base import Run, parse_options
from penstock.spark.pipelines.window import (
    PIPELINE,
    Aggregate,
    Shape,
    StreamCounts,
    WindowOptions,
    WindowSpec,
    find_spec,
    spec_from,
    types_of,
    windowed,
)

START = datetime(2026, 1, 1, tzinfo=UTC)

SPEC = {
    "source": "clicks",
    "sink": "clicks.minutes",
    "event_time": "at",
    "keys": ["user.country"],
    "window": {"type": "tumbling", "size": "1m"},
    "aggregates": [
        {"function": "count"},
        {"function": "sum", "field": "price", "name": "total"},
        {"function": "avg", "field": "price"},
        {"function": "max", "field": "price"},
        {"function": "first", "field": "page"},
        {"function": "collect", "field": "page"},
        {"function": "approx_distinct", "field": "page", "name": "pages"},
        {"function": "p50", "field": "price"},
    ],
}


def changed(**changes: Any) -> dict[str, Any]:
    return {**SPEC, **changes}


@pytest.mark.parametrize(
    ("raw", "problem", "hint"),
    [
        (changed(sorce="x"), "sorce: there is no such field", "'source'"),
        (changed(window={"type": "tumbling", "sise": "1m"}), "window.sise: there is no such field", "'size'"),
        (changed(window={"type": "tumbling"}), "window.size: a tumbling window needs it", "size ="),
        (
            changed(window={"type": "session", "gap": 5, "size": 5}),
            "window.size: a session window does not have it",
            "gap",
        ),
        (
            changed(window={"type": "hopping", "size": 5}),
            "window.type: 'hopping' is not one of session, sliding, tumbling",
            None,
        ),
        (changed(window={"type": "tumbling", "size": "1 minute"}), "window.size: '1 minute' is not a duration", "5m"),
        (changed(window={"type": "tumbling", "size": 0}), "window.size: 0 is shorter than a millisecond", None),
        (changed(window={"type": "sliding", "size": "1m", "slide": "2m"}), "window.slide: longer than the size", None),
        (changed(aggregates=[{"function": "cuont"}]), "aggregates[0].function: there is no 'cuont'", "'count'"),
        (changed(aggregates=[{"function": "p0", "field": "x"}]), "there is no 'p0'", None),
        (changed(aggregates=[{"function": "sum"}]), "aggregates[0].field: sum needs one", None),
        (changed(aggregates=[{"function": "count"}] * 2), "aggregates[1].name: 'count' exists already", "count_2"),
        (changed(aggregates=[]), "aggregates: there are none", None),
        (changed(keys=["message.kee"]), "keys: messages have no 'kee'", "'key'"),
        (changed(keys=["message"]), "keys: 'message' stands for the message", None),
        (changed(keys=["a..b"]), "keys: 'a..b' is not the name of a field", "a.b.c"),
        (changed(sink="clicks"), "sink: 'clicks' is also the source", None),
        (changed(sink="no spaces"), "sink: 'no spaces' is not a valid name", "letters"),
        (changed(lateness="soon"), "lateness: 'soon' is not a duration", "5m"),
        (changed(fields={"x": "number"}), "fields[...]: 'number' is not one of bool, float, int", None),
        (changed(mode="update", window={"type": "session", "gap": 1}), "mode: sessions can merge", "append"),
        ({"source": "a", "sink": "b"}, "window: it is required", None),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused_by_name(raw: dict[str, Any], problem: str, hint: str | None) -> None:
    with pytest.raises(InvalidField) as refused:
        spec_from(raw)

    assert problem in refused.value.message
    assert hint is None or hint in refused.value.hint


def test_a_spec_is_read_from_toml_or_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spec.toml").write_text(
        'source = "a"\nsink = "b"\nlateness = "10s"\n[window]\ntype = "session"\ngap = 30\n', encoding="utf-8"
    )
    (tmp_path / "my_windows.py").write_text(
        "from penstock.spark.pipelines.window import Shape, WindowSpec\n"
        "BY_SESSION = WindowSpec(source='a', sink='b', lateness='10s', window=Shape(type='session', gap=30))\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)

    expected = WindowSpec(source="a", sink="b", lateness="10s", window=Shape(type="session", gap=30))
    assert [find_spec("spec.toml"), find_spec("my_windows:BY_SESSION")] == [expected, expected]
    with pytest.raises(InvalidField, match="shows a whole spec"):
        find_spec("none.toml")
    for name in ("none.toml", "my_windows:NONE", "no_such_module:X", "my_windows.py"):
        with pytest.raises(InvalidField, match="spec: "):
            find_spec(name)


def test_fields_are_what_their_use_suggests_unless_the_spec_says_otherwise() -> None:
    spec = spec_from(changed(fields={"price": "int", "vip": "bool"}))

    assert types_of(spec) == {"user.country": "text", "price": "int", "page": "text", "at": "text", "vip": "bool"}


def clicks() -> list[dict[str, Any]]:
    """Clicks of two countries over ten minutes, in no order, each with its time in another way."""
    rng = random.Random(3)
    found = []
    for number in range(80):
        at = START + timedelta(milliseconds=rng.randrange(600_000))
        written = [at.isoformat(), at.timestamp(), round(at.timestamp() * 1000), round(at.timestamp() * 1e6)]
        country = rng.choice(["DE", "FR"])
        page = f"/p{rng.randrange(5)}"
        found.append(
            {"at": written[number % 4], "when": at, "user": {"country": country}, "page": page, "price": number}
        )
    return found


def table_of(found: list[dict[str, Any]]) -> pa.Table:
    payloads = [msgspec.json.encode({name: each[name] for name in each if name != "when"}) for each in found]
    payloads += [b"no json", b'{"price": 3}', b'{"at": "tomorrow"}']
    return pa.table({"payload": payloads, "pushed_at": pa.array([START] * len(payloads), pa.timestamp("us", "UTC"))})


def starts(at: datetime, size: float, slide: float) -> Iterator[datetime]:
    first = START + ((at - START) // timedelta(seconds=slide)) * timedelta(seconds=slide)
    while first > at - timedelta(seconds=size):
        yield first
        first -= timedelta(seconds=slide)


def in_windows(found: list[dict[str, Any]], size: float, slide: float) -> dict[tuple[datetime, str], list[Any]]:
    """The oracle: events by the start of their windows and their country."""
    groups: dict[tuple[datetime, str], list[Any]] = {}
    for each in sorted(found, key=lambda each: each["when"]):
        for start in starts(each["when"], size, slide):
            groups.setdefault((start, each["user"]["country"]), []).append(each)
    return groups


def in_sessions(found: list[dict[str, Any]], gap: float) -> list[tuple[datetime, datetime, int]]:
    """The oracle: start, end and size of every session, whoever clicked."""
    sessions: list[list[datetime]] = []
    for at in sorted(each["when"] for each in found):
        if sessions and at < sessions[-1][-1] + timedelta(seconds=gap):
            sessions[-1].append(at)
        else:
            sessions.append([at])
    return [(each[0], each[-1] + timedelta(seconds=gap), len(each)) for each in sessions]


@pytest.mark.parametrize(
    ("shape", "size", "slide"),
    [
        ({"type": "tumbling", "size": "1m"}, 60, 60),
        ({"type": "sliding", "size": "2m", "slide": "30s"}, 120, 30),
    ],
)
def test_windows_are_those_of_plain_python(spark: Any, shape: dict[str, Any], size: float, slide: float) -> None:
    found = clicks()

    rows = windowed(spark.createDataFrame(table_of(found)), spec_from(changed(window=shape))).collect()

    payloads = [msgspec.json.decode(row.payload) for row in rows]
    by_group = {(datetime.fromisoformat(each["window_start"]), each["user.country"]): each for each in payloads}
    oracle = in_windows(found, size, slide)
    assert len(rows) == len(by_group)
    assert by_group.keys() == oracle.keys()
    assert all(row.key == each["user.country"] for row, each in zip(rows, payloads, strict=True))
    for group, each in by_group.items():
        events = oracle[group]
        prices = [event["price"] for event in events]
        assert datetime.fromisoformat(each["window_end"]) == group[0] + timedelta(seconds=size)
        assert (each["count"], each["total"], each["max_price"]) == (len(events), sum(prices), max(prices))
        assert each["avg_price"] == pytest.approx(mean(prices))
        assert each["first_page"] == events[0]["page"]
        assert each["collect_page"] == sorted(event["page"] for event in events)
        assert each["pages"] == len({event["page"] for event in events})
        assert each["p50_price"] in prices


def test_sessions_end_after_a_silence_and_a_filter_chooses(spark: Any) -> None:
    found = clicks()
    spec = spec_from(
        changed(
            keys=[],
            window={"type": "session", "gap": "10s"},
            aggregates=[{"function": "count"}],
            fields={"price": "int"},
            filter="price % 2 = 0 and user.country = 'DE'",
        )
    )
    spec = msgspec.structs.replace(spec, fields={"price": "int", "user.country": "text"})
    wanted = [each for each in found if each["price"] % 2 == 0 and each["user"]["country"] == "DE"]

    rows = windowed(spark.createDataFrame(table_of(found)), spec).collect()

    payloads = [msgspec.json.decode(row.payload) for row in rows]
    times = [(each["window_start"], each["window_end"], each["count"]) for each in payloads]
    sessions = sorted((datetime.fromisoformat(first), datetime.fromisoformat(end), n) for first, end, n in times)
    assert sessions == in_sessions(wanted, 10)
    assert {row.key for row in rows} == {None}


def test_a_filter_that_cannot_be_is_refused(spark: Any) -> None:
    messages = spark.createDataFrame(table_of([]))

    for text, problem in (("colour = 1", "colour"), ("price >", "filter: "), ("price + 1", "not boolean")):
        with pytest.raises(InvalidField, match=problem):
            windowed(messages, spec_from(changed(filter=text)))


def push(data: Path, *seconds: float) -> None:
    with Penstock(BlockingSession(Session(data, background=False))) as ps:
        times = (START + timedelta(seconds=each) for each in seconds)
        ps.queue("clicks").push_many(
            [Message(payload={"at": at.isoformat(), "user": {"country": "DE"}}) for at in times]
        )


def popped(data: Path) -> list[tuple[str, int]]:
    with Penstock(BlockingSession(Session(data, background=False))) as ps:
        if "clicks.minutes" not in ps.queues():
            return []
        read = [each.json() for each in ps.queue("clicks.minutes").read(limit=100)]
    return [(each["window_start"][11:16], each["count"]) for each in read]


def test_a_stream_gives_out_each_window_once_and_drops_what_comes_too_late(spark: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    spec = tmp_path / "spec.toml"
    spec.write_text(TOML, encoding="utf-8")
    options = WindowOptions(spec=str(spec), available_now=True)
    run = Run(spark, str(data), options=options, out=tmp_path / "out")
    push(data, 5, 10, 70, 130)

    first = PIPELINE.run(run)
    assert (first.figures["messages"], sorted(popped(data))) == (4, [("00:00", 2), ("00:01", 1)])

    push(data, 20, 131, 250)
    second = PIPELINE.run(run)
    assert sorted(popped(data)) == [("00:00", 2), ("00:01", 1), ("00:02", 2)]
    assert {name: second.figures[name] for name in ("messages", "late", "windows")} == {
        "messages": 3, "late": 1, "windows": 1,
    }  # fmt: skip
    assert any("too late" in note for note in second.notes)
    assert PIPELINE.run(run).summary == "nothing new in clicks"

    spec.write_text(TOML.replace("1m", "2m"), encoding="utf-8")
    with pytest.raises(InvalidField, match="window changed"):
        PIPELINE.run(run)


def test_in_update_mode_a_window_is_given_out_whenever_it_has_changed(spark: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    spec = tmp_path / "spec.toml"
    spec.write_text('mode = "update"\n' + TOML, encoding="utf-8")
    push(data, 5, 10, 70)

    options = WindowOptions(spec=str(spec), available_now=True)
    report = PIPELINE.run(Run(spark, str(data), options=options, out=tmp_path / "out"))

    assert sorted(popped(data)) == [("00:00", 2), ("00:01", 1)]
    assert (report.figures["messages"], report.figures["windows"]) == (3, 2)


TOML = """
source = "clicks"
sink = "clicks.minutes"
event_time = "at"
keys = ["user.country"]
window = { type = "tumbling", size = "1m" }
"""


def test_options_are_given_as_text() -> None:
    given: dict[str, Any] = {
        "spec": "a.toml",
        "preview": "20",
        "messages_max": "5",
        "trigger_seconds": "2s",
        "available_now": True,
    }

    assert parse_options(WindowOptions, given) == WindowOptions(
        spec="a.toml", preview=20, messages_max=5, trigger_seconds=2.0, available_now=True
    )
    with pytest.raises(InvalidField, match="--preview"):
        parse_options(WindowOptions, {"spec": "a.toml", "preview": "0"})


def test_what_a_query_tells_is_added_up_once() -> None:
    counts = StreamCounts()
    batch = {
        "batchId": 0,
        "numInputRows": 5,
        "stateOperators": [{"numRowsDroppedByWatermark": 2}],
        "observedMetrics": {"events": {"messages": 5, "unwanted": 1, "untimed": 0}, "windows": {"windows": 3}},
        "eventTime": {"watermark": "2026-01-01T00:00:00.000Z"},
    }
    idle = {"batchId": 0, "numInputRows": 0, "stateOperators": [{"numRowsDroppedByWatermark": 0}]}

    for progress in (batch, batch, idle):
        counts.add(progress)

    assert counts.figures == {"messages": 5, "unwanted": 1, "untimed": 0, "late": 2, "windows": 3}
    assert counts.watermark == "2026-01-01T00:00:00.000Z"


def test_an_aggregate_has_a_name() -> None:
    assert [Aggregate(function="count").shown, Aggregate(function="p95", field="a.b").shown] == ["count", "p95_a.b"]
