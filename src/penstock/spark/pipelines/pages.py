"""Reports as one HTML file, with tables and pictures inside it: nothing is fetched, and there is no script.

Charts are PNG, drawn without a display: plain arrays in, the bytes of a picture out.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any, Final

import msgspec

from penstock.errors import InvalidField
from penstock.spark.pipelines.base import Table

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #5c6b7a; --line: #dde3ea; --page: #f5f7f9; --card: #fff;
  --accent: #1f6f8b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e9ef; --soft: #9fb0c0; --line: #33404d; --page: #141a20;
  --card: #1d252d; --accent: #6fc3df; } }
* { box-sizing: border-box }
body { margin: 0; padding: 2rem 1rem 4rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif }
main { max-width: 72rem; margin: 0 auto }
h1 { font-size: 1.7rem; margin: 0 } h2 { font-size: 1.1rem; margin: 0 0 .7rem }
header { margin-bottom: 1.5rem; border-left: 4px solid var(--accent); padding-left: .9rem }
header p, .note { color: var(--soft); margin: .2rem 0 0 }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1.1rem 1.3rem;
  margin: 0 0 1.2rem; overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: .86rem; font-variant-numeric: tabular-nums }
th { text-align: left; vertical-align: bottom; font-weight: 600; color: var(--soft); font-size: .78rem;
  border-bottom: 2px solid var(--line) }
th, td { padding: .34rem 1rem .34rem 0; white-space: nowrap }
th { white-space: normal } td { border-bottom: 1px solid var(--line) }
tr:last-child td { border-bottom: 0 } .number { text-align: right }
img, svg { max-width: 100%; height: auto; display: block } img { background: #fff; border-radius: 6px }
"""


def page(title: str, lead: str, sections: Sequence[str]) -> str:
    """A whole page."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head>\n<body><main><header><h1>{escape(title)}</h1><p>{escape(lead)}</p></header>\n"
        + "\n".join(sections)
        + "\n</main></body></html>\n"
    )


def section(title: str, body: str, note: str = "") -> str:
    """A part of a page; `body` is HTML."""
    below = f'<p class="note">{escape(note)}</p>' if note else ""
    above = f"<h2>{escape(title)}</h2>" if title else ""
    return f"<section>{above}{body}{below}</section>"


def table_section(table: Table, note: str = "") -> str:
    """A table of a report as a part of a page."""
    numeric = [all(_is_number(row[index]) for row in table.rows) for index in range(len(table.columns))]
    head = "".join(_cell("th", name, is_number) for name, is_number in zip(table.columns, numeric, strict=True))
    rows = "".join(
        f"<tr>{''.join(_cell('td', value, is_number) for value, is_number in zip(row, numeric, strict=True))}</tr>"
        for row in table.rows
    )
    body = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if table.rows else "<p>None.</p>"
    return section(table.title, body, note)


def picture(png: bytes, about: str) -> str:
    """A picture, inside the page."""
    return f'<img alt="{escape(about)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'


def shown(value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return (f"{value:.3g}" if abs(value) < 10 else f"{value:,.1f}") if isinstance(value, float) else str(value)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _cell(tag: str, value: Any, is_number: bool) -> str:
    mark = ' class="number"' if is_number else ""
    return f"<{tag}{mark}>{escape(shown(value))}</{tag}>"


# The types of matplotlib know nothing of times on an axis.
Axes = Any
Figure = Any
Values = Sequence[float]

COLOURS: Final = {
    "pushed": "#1d2733",
    "acked": "#3a9d6e",
    "retried": "#e0a030",
    "returned": "#6a8fd8",
    "dead": "#c8413b",
    "dropped": "#9aa5b1",
}
CYCLE: Final = ("#1f6f8b", "#c8413b", "#e0a030", "#7a5ea8", "#3a9d6e", "#5c6b7a")
FEW: Final = 12
SHADES: Final = {"p50": "#8cc3d6", "p95": "#1f6f8b", "p99": "#0c3847"}
_RC: Final[dict[Any, Any]] = {
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa5b1",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e6eaee",
    "legend.frameon": False,
    "xtick.color": "#5c6b7a",
    "ytick.color": "#5c6b7a",
}


class Flow(msgspec.Struct, kw_only=True):
    """One queue over time, one value per bucket; NaN where there is none."""

    times: Sequence[datetime]
    seconds: float  # length of a bucket
    counts: Mapping[str, Values]  # pushed and the outcomes
    backlog: Mapping[str, Values]  # by group
    wait_ms: Mapping[str, Values]  # p50, p95, p99
    processing_ms: Mapping[str, Values]


class Outlook(msgspec.Struct, kw_only=True):
    """The forecast of one queue and group."""

    times: Sequence[datetime]
    arrivals: Values  # messages per second
    capacity: float  # the same, of the workers there are
    wait_seconds: Values
    wait_high_seconds: Values
    wait_enough_seconds: Values | None  # with as many workers as are enough
    target_seconds: float
    workers: int
    workers_enough: int | None


def flow_chart(title: str, flow: Flow) -> bytes:
    """Throughput by outcome, backlog, waits and processing times."""
    figure, (rates, backlog, wait, processing) = _figure(title, 4, (2.0, 1.2, 1.2, 1.2))
    _draw_rates(rates, flow)
    for (group, values), colour in zip(flow.backlog.items(), CYCLE * len(flow.backlog), strict=False):
        backlog.fill_between(flow.times, values, step="post", color=colour, alpha=0.15, linewidth=0)
        backlog.step(flow.times, values, where="post", color=colour, linewidth=1.2, label=group)
    _title(backlog, "Unsettled messages, by group")
    # With nothing waiting the scale would be one of tiny parts of a message.
    backlog.set_ylim(bottom=0, top=max(1.0, backlog.get_ylim()[1]))
    backlog.yaxis.get_major_locator().set_params(integer=True)
    _legend(backlog)
    _draw_times(wait, "Wait before the first delivery (ms)", flow.times, flow.wait_ms)
    _draw_times(processing, "Processing (ms)", flow.times, flow.processing_ms)
    return _png(figure, processing)


def outlook_chart(title: str, outlook: Outlook) -> bytes:
    """Arrivals against capacity, and the wait that follows from them against what is allowed."""
    figure, (rates, waits) = _figure(title, 2, (1.0, 1.2))
    times = outlook.times
    rates.plot(times, outlook.arrivals, color=COLOURS["pushed"], linewidth=1.6, label="arrivals")
    rates.axhline(outlook.capacity, color=COLOURS["acked"], linewidth=1.6, label=f"capacity of {outlook.workers}")
    over = [max(rate, outlook.capacity) for rate in outlook.arrivals]
    rates.fill_between(times, outlook.capacity, over, color=COLOURS["dead"], alpha=0.2, linewidth=0)
    _title(rates, "Messages per second")
    rates.set_ylim(bottom=0)
    _legend(rates)
    waits.fill_between(times, outlook.wait_seconds, outlook.wait_high_seconds, color=CYCLE[0], alpha=0.15, linewidth=0)
    waits.plot(times, outlook.wait_seconds, color=CYCLE[0], linewidth=1.6, label=_with(outlook.workers))
    if outlook.wait_enough_seconds is not None and outlook.workers_enough != outlook.workers:
        enough = _with(outlook.workers_enough)
        waits.plot(times, outlook.wait_enough_seconds, color=COLOURS["acked"], linewidth=1.6, label=enough)
    waits.axhline(outlook.target_seconds, color=COLOURS["dead"], linewidth=1.2, linestyle="--", label="target")
    highest = max(*outlook.wait_seconds, *outlook.wait_high_seconds)
    if highest > 10 * outlook.target_seconds:
        waits.set_yscale("symlog", linthresh=outlook.target_seconds)
        waits.yaxis.set_major_formatter("{x:g}")
    _title(waits, "Expected wait (seconds); shaded: a busy week")
    waits.set_ylim(bottom=0)
    _legend(waits)
    return _png(figure, waits)


def _with(workers: int | None) -> str:
    return f"with {workers} worker{'' if workers == 1 else 's'}"


def _draw_rates(axes: Axes, flow: Flow) -> None:
    outcomes = {name: values for name, values in flow.counts.items() if name != "pushed" and any(values)}
    stacked = [[value / flow.seconds for value in values] for values in outcomes.values()]
    if stacked:
        colours = [COLOURS[name] for name in outcomes]
        axes.stackplot(flow.times, *stacked, labels=list(outcomes), colors=colours, alpha=0.75, step="post")
    pushed = [value / flow.seconds for value in flow.counts["pushed"]]
    axes.step(flow.times, pushed, where="post", color=COLOURS["pushed"], linewidth=1.3, label="pushed")
    _title(axes, "Messages per second, by outcome")
    axes.set_ylim(bottom=0)
    _legend(axes)


def _draw_times(axes: Axes, title: str, times: Sequence[datetime], percentiles: Mapping[str, Values]) -> None:
    from matplotlib import ticker

    # Few points make hardly a line: they must be seen by themselves.
    known = sum(not math.isnan(value) for value in percentiles.get("p50", ()))
    size = 2.5 if known > FEW else 7.0
    for name, values in percentiles.items():
        axes.plot(times, values, color=SHADES[name], linewidth=1.2, marker=".", markersize=size, label=name)
    _title(axes, title)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low / 1.5, high * 1.5)
    # Where there are few powers of ten, lines between them, so that there are some to read from.
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    _legend(axes)


def _figure(title: str, rows: int, heights: Sequence[float]) -> tuple[Figure, Any]:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise InvalidField("charts need matplotlib", hint="pip install 'penstock-mq[spark]'") from None
    with mpl.rc_context(_RC):
        figure = Figure(figsize=(10.5, 0.8 + 1.75 * sum(heights)), dpi=110, layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
        axes = figure.subplots(rows, 1, sharex=True, height_ratios=heights)
    return figure, axes


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=10, fontweight="bold", color="#33404d")


def _legend(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        position: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.1}
        axes.legend(handles, labels, ncols=len(labels), frameon=False, fontsize=8.5, **position)


def _png(figure: Figure, last: Axes) -> bytes:
    from matplotlib import dates

    drawing: Any = dates
    locator = drawing.AutoDateLocator()
    last.xaxis.set_major_locator(locator)
    last.xaxis.set_major_formatter(drawing.ConciseDateFormatter(locator))
    last.margins(x=0.01)
    kept = io.BytesIO()
    figure.savefig(kept, format="png")
    return kept.getvalue()
