"""Roll-ups against an account kept in plain Python."""

from __future__ import annotations

import math
import os
import random
from collections import Counter, defaultdict
from typing import Any

import pytest

from penstock.errors import InvalidField
from penstock.spark.pipelines import rollup
from penstock.spark.pipelines import rollup_frames as rolling
from penstock.spark.pipelines.rollup import RollupFiles, RollupOptions, State
from penstock.spark.pipelines.rollup_frames import ERROR_MAX
from penstock.spark.pipelines.state import write_state
from tests.spark.handmade_tables import EVENTS, MESSAGES, MadeRun, at, event, frame, message

COUNTED = ("pushed", "bytes", "delivered", *rolling.OUTCOMES)


def history(seed: int = 3, count: int = 120) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Two queues over two hours, settled in runs."""
    rng = random.Random(seed)
    messages, events = [], []
    for queue in ("orders", "mails"):
        offset, time = 0, 0.0
        while offset < count:
            size = rng.randint(1, 8)
            time += rng.uniform(0, 900 * size / count * 8)
            keys = [rng.choice(["eu:1", "us:2", "us:3"]) for _ in range(size)]
            messages += [
                message(queue, offset + place, time, key=key, payload=b"x" * rng.randint(0, 50))
                for place, key in enumerate(keys)
            ]
            wait, work = rng.expovariate(0.1), rng.expovariate(0.5)
            outcome = rng.choice(["acked", "acked", "retried", "timed_out", "dead", "expired", "released"])
            leased = None if outcome == "expired" else time + wait
            attempt = 1 if rng.random() < 0.8 else 2
            settled = (time + wait + work, offset + size - 1)
            events.append(event(queue, offset, settled[1], outcome, time, leased, settled[0], attempt=attempt))
            offset += size
    return messages, events


def expected(messages: list[dict[str, Any]], events: list[dict[str, Any]], seconds: int) -> dict[Any, dict[str, Any]]:
    """By bucket, queue and group: counts, and every wait and processing time."""
    column = {outcome: name for name, outcomes in rolling.OUTCOMES.items() for outcome in outcomes}
    rows: dict[Any, dict[str, Any]] = defaultdict(lambda: {"counts": Counter(), "wait": [], "processing": []})

    def bucket(time: Any) -> int:
        return int(time.timestamp()) // seconds * seconds

    for each in messages:
        rows[bucket(each["pushed_at"]), each["queue"], None]["counts"].update(pushed=1, bytes=len(each["payload"]))
    for each in events:
        row = rows[bucket(each["settled_at"]), each["queue"], each["group"]]
        row["counts"][column[each["outcome"]]] += each["count"]
        if each["leased_at"] is not None:
            row["counts"]["delivered"] += each["count"]
            row["processing"] += [each["processing_ms"]] * each["count"]
            row["wait"] += [each["wait_ms"]] * each["count"] if each["attempt"] == 1 else []
    return rows


def check(found: list[dict[str, Any]], wanted: dict[Any, dict[str, Any]]) -> None:
    keyed = {(int(row["bucket"].timestamp()), row["queue"], row["group"]): row for row in found}
    assert keyed.keys() == wanted.keys()
    for key, row in keyed.items():
        assert {name: row[name] for name in COUNTED} == {name: wanted[key]["counts"][name] for name in COUNTED}
        for name in ("wait", "processing"):
            values = sorted(wanted[key][name])
            for label, share in rolling.SHARES.items():
                got = row[f"{name}_{label}_ms"]
                if values:
                    exact = values[math.ceil(share * len(values)) - 1]
                    assert got == pytest.approx(exact, rel=ERROR_MAX + 1e-6, abs=0.002)
                else:
                    assert got is None


def rows_of(table: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.toArrow().to_pylist()
    return found


def test_minutes_agree_with_an_account_in_plain_python(spark):
    messages, events = history()

    found = rolling.rollup(frame(spark, messages, MESSAGES), frame(spark, events, EVENTS))

    check(rows_of(found), expected(messages, events, 60))


def test_keys_are_counted_by_what_is_before_their_delimiter(spark):
    messages = [message("q", 0, 0, key="eu:1"), message("q", 1, 0, key="us:2"), message("q", 2, 30, key="us:3")]
    events = [event("q", 0, 2, "acked", 0, 40, 50)]

    tables = frame(spark, messages, MESSAGES), frame(spark, events, EVENTS)
    found = rows_of(rolling.rollup(*tables, "day", key_prefix=":"))

    counts = {(row["group"], row["key_prefix"]): (row["pushed"], row["acked"]) for row in found}
    assert counts == {(None, "eu"): (1, 0), (None, "us"): (2, 0), ("default", "eu"): (0, 1), ("default", "us"): (0, 2)}
    # Of the two messages in `us` one waited 40 s and one 10 s: with keys every message has its own wait.
    us = next(row for row in found if (row["group"], row["key_prefix"]) == ("default", "us"))
    assert us["wait_p50_ms"] == pytest.approx(10_000, rel=ERROR_MAX)
    assert us["wait_p99_ms"] == pytest.approx(40_000, rel=ERROR_MAX)


def test_a_run_adds_what_is_new_and_what_came_late_and_nothing_twice(spark, tmp_path):
    messages, events = history()
    late = [each for each in events if each["settled_at"] < at(3000)][:3]
    run = MadeRun(spark, tmp_path, RollupOptions(charts=1))
    run.message_rows = [each for each in messages if each["pushed_at"] < at(3600)]
    run.event_rows = [each for each in events if each["settled_at"] < at(3600) and each not in late]

    first = rollup.run(run)
    again = rollup.run(run)
    # Retention has removed what was counted; a late message comes into an old minute.
    run.message_rows = [each for each in messages if each["pushed_at"] >= at(3600)]
    run.message_rows.append(message("orders", 500, 100, payload=b"late"))
    run.event_rows = events
    third = rollup.run(run)

    assert first.figures["pushed"] == sum(each["pushed_at"] < at(3600) for each in messages)
    assert again.figures["pushed"] == again.figures["events"] == 0
    assert again.summary.startswith("Nothing new")
    assert third.figures["pushed"] == len(messages) - first.figures["pushed"] + 1
    everything = [*messages, message("orders", 500, 100, payload=b"late")]
    tables = spark.read.parquet(str(tmp_path / "tables"))
    for grain, seconds in (("minute", 60), ("hour", 3600), ("day", 86400)):
        found = rows_of(tables.where(f"grain = '{grain}'").drop("date"))
        check(found, expected(everything, events, seconds))
    page = (tmp_path / "report.html").read_text()
    assert "data:image/png;base64," in page
    assert "http" not in page


def test_another_rule_for_keys_is_refused_in_the_same_directory(tmp_path):
    write_state(tmp_path / "rollup.json", State(url="penstock://made", generation=1, dates={"2026-11-16": 1}))

    with pytest.raises(InvalidField, match="--key-prefix"):
        RollupFiles(tmp_path).open("penstock://made", ":", is_rebuild=False)


def test_files_of_a_run_that_died_are_removed(tmp_path):
    write_state(tmp_path / "rollup.json", State(url="penstock://made", generation=1, dates={"2026-11-16": 1}))
    date = tmp_path / "tables" / "grain=day" / "date=2026-11-16"
    date.mkdir(parents=True)
    for name in ("00000001.parquet", "00000002.parquet"):
        (date / name).touch()

    RollupFiles(tmp_path).open("penstock://made", None, is_rebuild=False)

    assert [path.name for path in date.iterdir()] == ["00000001.parquet"]


def test_a_report_older_than_the_tables_is_drawn_again(tmp_path):
    (tmp_path / "report.html").touch()
    os.utime(tmp_path / "report.html", (0, 0))
    write_state(tmp_path / "rollup.json", State(url="penstock://made", generation=1))

    assert not RollupFiles(tmp_path).is_drawn
    os.utime(tmp_path / "report.html")
    assert RollupFiles(tmp_path).is_drawn
