"""What pipelines are and what they did, for people and for programs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from rich.markup import escape

from penstock.cli import human, output
from penstock.spark.pipelines.base import Pipeline, Report
from penstock.spark.pipelines.state import plain
from penstock.spark.pipelines.typed import Option, described
from penstock.storage.findings import spelt

if TYPE_CHECKING:
    from penstock.spark.pipelines.records import Record
    from penstock.spark.pipelines.running import PipelineRun

FILES_SHOWN_MAX: Final = 12
WRAPPED: Final = 36  # text that is longer than this may be wrapped; a trace id is not


def write_explanation(pipeline: Pipeline, *, as_json: bool) -> None:
    """A pipeline, and how it is run."""
    options = described(pipeline.options)
    if as_json:
        shown = [_option(each) for each in options]
        head = {"name": pipeline.name, "summary": pipeline.summary, "explanation": pipeline.explanation}
        output.write_json({**head, "options": shown})
        return
    output.write(f"[bold]{escape(pipeline.name)}[/]: {escape(pipeline.summary)}\n")
    output.write(escape(pipeline.explanation.strip()))
    needed = "".join(f" {each.flag} {each.metavar}" for each in options if each.is_required)
    output.write(f"\n    penstock pipeline run {escape(pipeline.name)} --url ./data{escape(needed)}\n")
    if options:
        rows = [(f"{each.flag} {each.metavar}".strip(), _default(each), each.about) for each in options]
        output.write(output.table(("option", "default", "meaning"), rows, text_columns=3))
    output.write("[dim]and those of every pipeline: 'penstock pipeline run --help'[/]")


def write_report(pipeline: Pipeline, run: PipelineRun, report: Report, *, as_json: bool) -> None:
    """What a run did."""
    if as_json:
        output.write_json({"pipeline": pipeline.name, "url": run.url, "out": str(run.out), **_plain(report)})
        return
    output.write(f"[green]✓[/] {escape(pipeline.name)}: {escape(report.summary)}")
    if report.figures:
        output.write("")
        width = max(map(len, report.figures)) + 2
        for name, value in report.figures.items():
            output.write(f"  [dim]{escape(name.replace('_', ' ')):<{width}}[/]{escape(cell(value))}")
    for table in report.tables:
        output.write(f"\n[bold]{escape(table.title)}[/]")
        _write_table(table.columns, table.rows)
    _write_files(report.files)
    for note in report.notes:
        output.write(f"[yellow]·[/] {escape(note)}")


def write_runs(found: Mapping[Path, Sequence[Record]], *, as_json: bool) -> None:
    """Earlier runs, by directory."""
    if as_json:
        output.write_json([{"out": str(out), **_plain(run)} for out, runs in found.items() for run in runs])
        return
    for index, (out, runs) in enumerate(found.items()):
        if index:
            output.write("")
        output.write(f"[bold]{escape(runs[-1].pipeline)}[/]  [dim]{escape(str(out))}[/]")
        rows = [(human.moment(run.started_at), human.duration(run.seconds), _came(run)) for run in runs]
        output.write(output.table(("started", "took", "what came of it"), rows, text_columns=2, has_excerpt=True))
        last = next((run.report for run in reversed(runs) if run.report is not None), None)
        if last is not None:
            _write_files(last.files)


def cell(value: Any) -> str:
    """A value of a report, for people."""
    if value is None:
        return human.EMPTY
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return human.moment(value)
    if isinstance(value, bytes):
        return human.excerpt(value, 80)
    if isinstance(value, float):
        return f"{value:,.2f}".rstrip("0").rstrip(".") if abs(value) >= 0.01 or not value else f"{value:.2g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _write_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Text to the left, numbers to the right. One that is too wide goes on below, with its first columns again."""
    if not rows:
        output.write("[dim]none[/]")
        return
    numeric = [all(isinstance(row[index], int | float | None) for row in rows) for index in range(len(columns))]
    cells = [tuple(map(cell, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    paper = output.console()
    if not paper.is_terminal and "COLUMNS" not in os.environ:
        # Into a file or a pipe nothing needs to fit a screen.
        paper.width = max(paper.width, sum(widths) + 2 * len(widths))
    for number, block in enumerate(blocks(widths, numeric, paper.width)):
        if number:
            output.write("")
        text_columns = next((index for index, column in enumerate(block) if numeric[column]), len(block))
        shown = [tuple(row[column] for column in block) for row in cells]
        made = output.table([columns[column] for column in block], shown, text_columns=text_columns)
        if sum(widths[column] for column in block) + 2 * len(block) > paper.width:
            made.padding = (0, 1, 0, 0)
        output.write(made, paper)


def blocks(widths: Sequence[int], numeric: Sequence[bool], width: int) -> list[list[int]]:
    """Columns that fit side by side; those that say what a row is about are in every block. Long text is wrapped."""
    needed = [1 + (each if is_number else min(each, WRAPPED)) for each, is_number in zip(widths, numeric, strict=True)]
    if sum(needed) <= width + 1:
        return [list(range(len(needed)))]
    lead = 1
    while lead < len(needed) - 1 and not numeric[lead] and sum(needed[: lead + 1]) <= width // 3:
        lead += 1
    found: list[list[int]] = []
    room = 0
    for column in range(lead, len(needed)):
        if not found or needed[column] > room:
            found.append(list(range(lead)))
            room = width + 1 - sum(needed[:lead])
        found[-1].append(column)
        room -= needed[column]
    return found


def _write_files(files: Sequence[str]) -> None:
    if not files:
        return
    output.write(f"\n[bold]{spelt(len(files), 'file')}[/]")
    for name in files[:FILES_SHOWN_MAX]:
        output.write(f"  {escape(name)}")
    if len(files) > FILES_SHOWN_MAX:
        output.write(f"  [dim]and {len(files) - FILES_SHOWN_MAX:,} more[/]")


def _came(run: Record) -> str:
    return run.report.summary if run.report is not None else f"failed: {run.error}"


def _default(option: Option) -> str:
    return "required" if option.is_required else option.default_shown or human.EMPTY


def _option(option: Option) -> dict[str, Any]:
    shown = {"flag": option.flag, "meaning": option.about, "default": option.default}
    return {**shown, "choices": list(option.choices)} if option.choices else shown


def _plain(value: msgspec.Struct) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(value, enc_hook=plain)
    return found
