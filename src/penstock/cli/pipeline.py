"""`penstock pipeline`: list, explain, run, status. Only `run` needs Spark.

`run NAME` has the flags of the pipeline it names: the name is looked for before the arguments are parsed, and the
pipeline's options then are flags like all others, in the help too.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.markup import escape
from typer.core import TyperCommand
from typer.main import get_command

from penstock.cli import human, output, spark_session
from penstock.cli.options import AsJson, Since, Until, command
from penstock.cli.pipeline_runs import reported
from penstock.cli.spark_session import Bar, Conf, Master, parsed_conf
from penstock.cli.target import Broker
from penstock.units import plural

if TYPE_CHECKING:
    from penstock.spark.pipelines.base import Option, Options, Pipeline, Report, Run
    from penstock.spark.pipelines.state import Record


PANEL: Final = "Options of"
_NAMED: Final = "penstock.pipeline"
_GIVEN: Final = "penstock.given"
_PREFIX: Final = "own_"  # keeps a pipeline's options apart from those of the command


class PipelineCommand(TyperCommand):
    """A command whose flags depend on its argument."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Find the pipeline, then parse."""
        from penstock.spark.pipelines.runner import find

        name = first_word(args, self.params)
        ctx.meta[_NAMED] = find(name) if name is not None and not ctx.resilient_parsing else None
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def get_params(self, ctx: Any) -> list[Any]:
        """The command's own, and the pipeline's."""
        *own, last = super().get_params(ctx)
        pipeline = ctx.meta.get(_NAMED)
        return [*own, *(parameters(pipeline) if pipeline else ()), last]

    def invoke(self, ctx: Any) -> Any:
        """Take the pipeline's options out of the way of the function."""
        own = [name for name in ctx.params if name.startswith(_PREFIX)]
        values = {name.removeprefix(_PREFIX): ctx.params.pop(name) for name in own}
        ctx.meta[_GIVEN] = {name: value for name, value in values.items() if value not in (None, [], ())}
        return super().invoke(ctx)


def named(ctx: typer.Context) -> Pipeline:
    """The pipeline that a command line names."""
    pipeline: Pipeline = ctx.meta[_NAMED]
    return pipeline


def chosen(ctx: typer.Context) -> Options:
    """Its options, parsed."""
    from penstock.spark.pipelines.base import parse_options

    return parse_options(named(ctx).options, ctx.meta[_GIVEN])


def first_word(words: Sequence[str], parameters: Sequence[Any]) -> str | None:
    """The first word that is neither a flag nor the value of one."""
    takes_value = {name for each in parameters if not getattr(each, "is_flag", False) for name in each.opts}
    rest = iter(words)
    for word in rest:
        if word in takes_value:
            next(rest, None)
        elif not word.startswith("-"):
            return word
    return None


def parameters(pipeline: Pipeline) -> list[Any]:
    """A parameter for each option of a pipeline."""
    from penstock.spark.pipelines.base import option_list

    def shape() -> None:
        """Nothing but its parameters."""

    options = option_list(pipeline.options)
    shape.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [_parameter(option, f"{PANEL} {pipeline.name}") for option in options]
    )
    app = typer.Typer(add_completion=False)
    app.command()(shape)
    return [each for each in get_command(app).params if each.name.startswith(_PREFIX)] if options else []


def _parameter(option: Option, panel: str) -> inspect.Parameter:
    shown = f"{option.about} [default: {option.default_shown}]" if option.default_shown else option.about
    kind: Any = str | None
    flag = option.flag
    if option.is_switch:
        kind = bool | None
        flag = f"{flag}/--no-{flag.removeprefix('--')}" if option.default else flag
    elif option.is_repeated:
        kind, shown = list[str] | None, f"{shown.rstrip('.')}; repeatable."
    made = typer.Option(flag, metavar=option.metavar or None, help=shown, rich_help_panel=panel, show_default=False)
    return inspect.Parameter(
        _PREFIX + option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, made]
    )


FILES_SHOWN_MAX: Final = 12
WRAPPED: Final = 36  # text that is longer than this may be wrapped; a trace id is not


def write_explanation(pipeline: Pipeline, *, as_json: bool) -> None:
    """A pipeline, and how it is run."""
    from penstock.spark.pipelines.base import option_list

    options = option_list(pipeline.options)
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


def write_report(pipeline: Pipeline, run: Run, report: Report, *, as_json: bool) -> None:
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


def write_runs(runs_by_place: Mapping[Path, Sequence[Record]], *, as_json: bool) -> None:
    """Earlier runs, by directory."""
    if as_json:
        output.write_json([{"out": str(out), **_plain(run)} for out, runs in runs_by_place.items() for run in runs])
        return
    for index, (out, runs) in enumerate(runs_by_place.items()):
        if index:
            output.write("")
        output.write(f"[bold]{escape(runs[-1].pipeline)}[/]  [dim]{escape(str(out))}[/]")
        rows = [(human.moment(run.started_at), human.duration(run.seconds), _came(run)) for run in runs]
        output.write(output.table(("started", "took", "result"), rows, text_columns=2, has_excerpt=True))
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
    needed = [
        1 + (natural if is_number else min(natural, WRAPPED))
        for natural, is_number in zip(widths, numeric, strict=True)
    ]
    if sum(needed) <= width + 1:
        return [list(range(len(needed)))]
    lead = 1
    while lead < len(needed) - 1 and not numeric[lead] and sum(needed[: lead + 1]) <= width // 3:
        lead += 1
    columns: list[list[int]] = []
    room = 0
    for column in range(lead, len(needed)):
        if not columns or needed[column] > room:
            columns.append(list(range(lead)))
            room = width + 1 - sum(needed[:lead])
        columns[-1].append(column)
        room -= needed[column]
    return columns


def _write_files(files: Sequence[str]) -> None:
    if not files:
        return
    output.write(f"\n[bold]{plural(len(files), 'file')}[/]")
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
    from penstock.spark.pipelines.state import plain

    plain_value: dict[str, Any] = msgspec.to_builtins(value, enc_hook=plain)
    return plain_value


app = typer.Typer(help="Spark jobs over history: list, explain, run, status.", no_args_is_help=True)


def complete_pipeline(incomplete: str) -> list[str]:
    """Pipelines that begin like this."""
    from penstock.spark.pipelines.runner import names

    return sorted(name for name in names() if name.startswith(incomplete))


ABOUT_NAME = "A pipeline that ships with Penstock, or module:function of your own."
Name = Annotated[str, typer.Argument(metavar="NAME", help=ABOUT_NAME, autocompletion=complete_pipeline)]
NameOrAll = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Only this pipeline.", autocompletion=complete_pipeline)
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="DIR", help="The directory for its output. [default: ./pipelines/NAME]"),
]


@command(app, "list")
def list_(as_json: AsJson = False) -> None:
    """List the pipelines that ship with Penstock."""
    from penstock.spark.pipelines.runner import shipped

    pipelines = shipped()
    if as_json:
        output.write_json([{"name": pipeline.name, "summary": pipeline.summary} for pipeline in pipelines])
        return
    output.write(
        output.table(
            ("pipeline", "what it does"), [(pipeline.name, pipeline.summary) for pipeline in pipelines], text_columns=2
        )
    )
    output.write("\n[dim]'penstock pipeline explain NAME' says more; your own: docs/pipelines.md[/]")


@command(app)
def explain(name: Name, as_json: AsJson = False) -> None:
    """Show what a pipeline reads, does and writes, and its options."""
    from penstock.spark.pipelines.runner import find

    write_explanation(find(name), as_json=as_json)


@command(app, cls=PipelineCommand)
def run(
    broker: Broker,
    ctx: typer.Context,
    name: Name,
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", "-q", metavar="QUEUE", help="A queue, or a pattern such as orders.*; repeatable."),
    ] = None,
    since: Since = None,
    until: Until = None,
    out: Out = None,
    master: Master = "local[*]",
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline. It continues where the last run ended.

    Each pipeline has options of its own: `penstock pipeline run rollup --help`
    """
    from penstock.spark.pipelines.base import Run
    from penstock.spark.pipelines.runner import default_out, execute

    where, options, place = broker.readable_address(), chosen(ctx), out or default_out(name)
    settings = parsed_conf(conf)
    made = Run(None, where, queue or (), options=options, out=place, since=since, until=until)
    named(ctx).check(made)
    with (
        Bar(is_shown=not as_json) as bar,
        spark_session.started(name, master=master, settings=settings, bar=bar) as spark,
    ):
        bar.step("reading")
        made.spark, made.progress = spark, bar
        with reported(broker, named(ctx).name, made) as done:
            report = execute(named(ctx), made)
            done(report)
    write_report(named(ctx), made, report, as_json=as_json)


@command(app)
def status(name: NameOrAll = None, out: Out = None, as_json: AsJson = False) -> None:
    """Show earlier runs: when, what and how far."""
    from penstock.spark.pipelines.runner import default_out
    from penstock.spark.pipelines.state import records

    if name is None:
        home = out or default_out("")
        places = sorted(path for path in home.glob("*") if path.is_dir())
    else:
        home = out or default_out(name)
        places = [home]
    runs_by_place = {place: runs for place in places if (runs := records(place))}
    if not runs_by_place:
        what = "no pipeline has" if name is None else f"{name} has not"
        output.write_nothing(f"{what} run in {home}", "look elsewhere with --out")
        return
    write_runs(runs_by_place, as_json=as_json)
