"""What a backtest found, as tables and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.pipelines.base import Report, Table
from penstock.spark.pipelines.state import write_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILE: Final = "backtest.json"
PERCENTILES: Final = (0.5, 0.95, 0.99)
VERDICTS: Final = ("same", "broken", "fixed", "failing", "other")
ERRORS_SHOWN: Final = 20
ERROR_CHARS_SHOWN: Final = 100


def report(table: DataFrame, out: Path, handler: str, samples: int) -> Report:
    """The report of a table as `compared` gives it, with a signature."""
    counts = table.groupBy("before", "outcome", "verdict").count().collect()
    by_verdict = {verdict: sum(row["count"] for row in counts if row.verdict == verdict) for verdict in VERDICTS}
    times = latency(table)
    figures: dict[str, Any] = {"messages": sum(by_verdict.values()), **by_verdict, **_by_name(times)}
    tables = [
        confusion(counts),
        _latency_table(times),
        errors(table),
        _samples(table, "broken", "Newly failing", "outcome", "error", samples),
        _samples(table, "fixed", "Newly passing", "before", "was_error", samples),
    ]
    tables = [each for each in tables if each.rows]
    notes = _notes(counts)
    write_state(out / FILE, {"handler": handler, **figures, "notes": notes, "tables": tables})
    return Report(
        summary=verdict(handler, figures),
        figures=figures,
        tables=tables,
        files=[str(out / FILE), str(out / "results")],
        notes=notes,
    )


def verdict(handler: str, figures: dict[str, Any]) -> str:
    """One line: would it be better?"""
    if not figures["messages"]:
        return "there are no messages to run"
    broken, fixed = figures["broken"], figures["fixed"]
    worked, failed = figures["same"] + broken, figures["failing"] + fixed
    parts = [f"{broken:,} of {worked:,} that were acknowledged would fail" if worked else ""]
    parts += [f"{fixed:,} of {failed:,} that failed would pass" if failed else ""]
    parts += [f"{figures['other']:,} have nothing to compare with" if figures["other"] else ""]
    # However many it mends: what worked and would not is never called better.
    word = {(0, 0): "the same", (1, 0): "worse", (0, 1): "better", (1, 1): "mixed"}[bool(broken), bool(fixed)]
    return f"{handler} is {word}: " + "; ".join(filter(None, parts))


def confusion(counts: Sequence[Any]) -> Table:
    """What happened in rows, what would happen now in columns."""
    now = sorted({row.outcome for row in counts})
    found = {(row.before, row.outcome): row["count"] for row in counts}
    rows = [(was, *(found.get((was, each), 0) for each in now)) for was in sorted({row.before for row in counts})]
    return Table("What happened, and what would now", ("it was", *(f"now {each}" for each in now)), rows)


def latency(table: DataFrame) -> dict[str, list[float] | None]:
    """p50, p95 and p99 in ms of the messages that were acknowledged then and would be now."""
    from pyspark.sql import functions as f

    shares = f.array(*map(f.lit, PERCENTILES))
    found = (
        table.where("verdict = 'same'")
        .agg(f.percentile("was_ms", shares).alias("before"), f.percentile("ms", shares).alias("after"))
        .collect()[0]
    )
    return found.asDict()


def _by_name(times: dict[str, list[float] | None]) -> dict[str, float]:
    return {
        f"p{share * 100:g}_ms_{when}": ms
        for when, values in times.items()
        for share, ms in zip(PERCENTILES, values or (), strict=False)
    }


def _latency_table(found: dict[str, list[float] | None]) -> Table:
    rows = [(when, *(round(ms, 3) for ms in values)) for when, values in found.items() if values]
    return Table("Latency of what was and would be acknowledged, ms", ("", "p50", "p95", "p99"), rows)


def errors(table: DataFrame) -> Table:
    """The errors of the handler by signature, the most frequent first."""
    from pyspark.sql import functions as f

    found = (
        table.where("error is not null")
        .groupBy("outcome", "signature")
        .agg(f.count("*").alias("n"), f.count_if(f.col("verdict") == "broken").alias("broken"), f.min("id").alias("id"))
        .orderBy(f.desc("broken"), f.desc("n"), "signature")
        .limit(ERRORS_SHOWN)
    )
    rows = [(_cut(row.signature), row.outcome, row.id, row.n, row.broken) for row in found.collect()]
    return Table("Errors of the handler", ("error", "now", "for example", "messages", "newly failing"), rows)


def _samples(table: DataFrame, verdict: str, title: str, state: str, error: str, count: int) -> Table:
    chosen = table.where(table.verdict == verdict).select("id", state, error).orderBy("id").limit(count)
    rows = [(row[0], row[1], _cut(_last_line(row[2] or ""))) for row in chosen.collect()]
    return Table(title, ("id", "now" if state == "outcome" else "it was", "error"), rows)


def _notes(counts: Sequence[Any]) -> list[str]:
    skipped = sum(row["count"] for row in counts if row.outcome == "skipped")
    told = "the time before runs from the lease to the settlement: messages leased together share it"
    return [told, *([f"{skipped:,} messages were not run: the handler hung or died too often"] if skipped else [])]


def _last_line(text: str) -> str:
    return text.strip().rsplit("\n", 1)[-1]


def _cut(text: str) -> str:
    return text if len(text) <= ERROR_CHARS_SHOWN else text[: ERROR_CHARS_SHOWN - 1] + "…"
