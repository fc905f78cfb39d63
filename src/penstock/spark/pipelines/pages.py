"""Reports as one HTML file: tables and pictures inside it, nothing fetched, no script. It prints well, too."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import Any, Final

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
