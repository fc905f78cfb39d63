"""The example that goes from producers to a report, run as its README says, but with less and with our Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from examples.clickstream.clicks import clicks
from examples.clickstream.run import PRODUCERS, broker, clickstream


def test_the_clickstream_runs_from_end_to_end(spark: Any, tmp_path: Path) -> None:
    count = 2_000
    with broker(tmp_path / "data") as url:
        found = clickstream(spark, url, tmp_path / "out", count)

    every = [click for seed in range(PRODUCERS) for click in clicks(seed, count // PRODUCERS)]
    crawled = sum(click["agent"] == "crawler" for click in every)
    assert (found["pushed"], found["refused"], found["learnt"]) == (count, crawled, count - crawled)
    assert {window["page"] for window in found["windows"]} == {click["page"] for click in every}
    # The last minute is still open when the stream has seen everything.
    closed = [click for click in every if click["agent"] != "crawler" and click["clicked_at"] < "2026-01-05T09:09:00"]
    assert sum(window["clicks"] for window in found["windows"]) == len(closed)
    assert all(Path(file).stat().st_size for file in found["files"])
    assert any(file.endswith(".html") for file in found["files"])
    assert list((tmp_path / "out" / "archive").rglob("*.parquet"))
