"""Traces as pictures: one bar per hop over time, as SVG inside a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any, Final

Row = Mapping[str, Any]  # of the table of journeys

WIDTH, LABEL, ROW, TOP = 1060, 250, 22, 24
WAIT, WORK, FAILED, OPEN = "#e0a030", "#1f6f8b", "#c8413b", "#9aa5b1"
_MARK: Final = "#c8413b"

LEGEND: Final = (
    "<p class='note'>"
    f"<b style='color:{WAIT}'>■</b> waiting &nbsp; <b style='color:{WORK}'>■</b> from first lease to end &nbsp; "
    f"<b style='color:{FAILED}'>■</b> the same, failed &nbsp; <b style='color:{OPEN}'>■</b> not ended yet &nbsp; "
    f"<b style='color:{_MARK}'>│</b> on the critical path</p>"
)


def gantt(rows: Sequence[Row], failed: Sequence[str]) -> str:
    """The hops of one trace, in the order in which they were pushed."""
    start = min(row["pushed_at"] for row in rows)
    end = max(time for row in rows for time in (row["pushed_at"], row["leased_at"], row["settled_at"]) if time)
    span_ms = max(_ms(start, end), 0.001)
    height = TOP + ROW * len(rows) + 8
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" font-size="11.5">']
    parts += [_tick(share, span_ms, height) for share in (0, 0.25, 0.5, 0.75, 1)]
    parts += [_hop(row, place, start, span_ms, failed) for place, row in enumerate(rows)]
    return "".join(parts) + "</svg>"


def duration(ms: float) -> str:
    """A length of time as people say it."""
    for unit, size in (("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= size:
            return f"{ms / size:.3g} {unit}" if ms / size < 1000 else f"{ms / size:,.0f} {unit}"
    return f"{ms:.3g} ms"


def _tick(share: float, span_ms: float, height: int) -> str:
    x = LABEL + share * (WIDTH - LABEL - 10)
    anchor = {0.0: "start", 1.0: "end"}.get(share, "middle")
    line = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height - 6}" stroke="currentColor" opacity=".15"/>'
    text = f'<text x="{x:.1f}" y="12" text-anchor="{anchor}" fill="currentColor" opacity=".7">'
    return f"{line}{text}+{duration(share * span_ms)}</text>"


def _hop(row: Row, place: int, start: datetime, span_ms: float, failed: Sequence[str]) -> str:
    y = TOP + place * ROW
    pushed = _ms(start, row["pushed_at"])
    end = span_ms if row["is_open"] else _ms(start, row["settled_at"])
    leased = _ms(start, row["leased_at"]) if row["leased_at"] else end
    work = OPEN if row["is_open"] else FAILED if row["outcome"] in failed else WORK
    wait = OPEN if row["is_open"] and not row["leased_at"] else WAIT
    group = "" if row["group"] in (None, "default") else f" · {row['group']}"
    label = escape(_short(f"{row['queue']}/{row['partition']}/{row['offset']}{group}"))
    mark = f'<rect x="0" y="{y + 3}" width="3" height="{ROW - 6}" fill="{_MARK}"/>' if row["is_critical"] else ""
    return (
        f"<g><title>{escape(_told(row))}</title>{mark}"
        f'<text x="8" y="{y + 15}" fill="currentColor">{label}</text>'
        f"{_bar(y, pushed, leased, span_ms, wait)}{_bar(y, leased, end, span_ms, work)}</g>"
    )


def _bar(y: int, first_ms: float, last_ms: float, span_ms: float, colour: str) -> str:
    scale = (WIDTH - LABEL - 10) / span_ms
    width = (last_ms - first_ms) * scale
    if width <= 0:
        return ""
    return (
        f'<rect x="{LABEL + first_ms * scale:.1f}" y="{y + 4}" width="{max(width, 1):.1f}" height="{ROW - 8}" '
        f'rx="2" fill="{colour}"/>'
    )


def _told(row: Row) -> str:
    facts = [f"{row['id']} ({row['group'] or 'no group yet'})", f"{row['outcome'] or 'not delivered yet'}"]
    facts += [f"deliveries {row['deliveries']}"]
    facts += [f"waited {duration(row['wait_ms'])}"] if row["wait_ms"] is not None else []
    facts += [f"processing {duration(row['processing_ms'])}"] if row["processing_ms"] is not None else []
    facts += [f"from {row['parent']}"] if row["parent"] else []
    return "\n".join([*facts, *([row["error"]] if row["error"] else [])])


def _short(text: str, length: int = 36) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _ms(first: datetime, last: datetime) -> float:
    return (last - first).total_seconds() * 1000
