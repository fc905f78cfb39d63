"""`penstock history`: series over time, and what is expected after them."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta

import pytest

import penstock
from penstock.model import to_datetime
from tests.rollups.test_recorder import HOUR, Rig

LONG_AGO = ("--since", "2001-01-01T00:00:00Z", "--until", "2001-01-01T02:00:00Z", "--step", "1h")


@pytest.fixture
def rig(monkeypatch):
    rig = Rig(None)
    rig.ps.create_queue("mail")
    rig.ps.create_queue("new")
    for _ in range(10):
        rig.ps.queue("mail").push_many([b"x"] * 60)
        for _ in range(12):
            rig.skip(HOUR // 12)
    monkeypatch.setattr(penstock, "connect", lambda url, **options: nullcontext(rig.ps))
    yield rig
    rig.ps.close()


def span(rig: Rig) -> tuple[str, ...]:
    until = to_datetime(rig.clock.now())
    return ("--since", (until - timedelta(hours=2)).isoformat(), "--until", until.isoformat(), "--step", "1h")


def test_a_forecast_follows_the_series_with_its_range(run, rig):
    shown = run("history", "mail", *span(rig), "--metric", "pushed", "--forecast", "2h")
    assert shown.code == 0, shown.err
    _, ahead = shown.out.split("expected from")
    rows = [line.split() for line in ahead.splitlines() if "(" in line]
    assert [row[2:] for row in rows] == [["60", "(60", "to", "60)"]] * 2
    assert "expected" not in run("history", "mail", *span(rig), "--metric", "pushed").out


def test_json_has_the_forecast_as_the_api_has_it(run, rig):
    shown = run("history", "mail", *span(rig), "--metric", "pushed", "--forecast", "2h", "--json").json
    assert shown["forecast"]["series"]["pushed"]["value"] == [60, 60]
    assert len(shown["forecast"]["times"]) == 2


def test_too_little_history_for_a_forecast_is_said(run, rig):
    shown = run("history", "mail", *span(rig), "--metric", "latency_p99_ms,pushed", "--forecast", "2h")
    assert "latency_p99_ms" not in shown.out.split("expected from")[1]
    shown = run("history", "mail", *LONG_AGO, "--forecast", "1h")
    assert "nothing was recorded" in shown.out + shown.err
