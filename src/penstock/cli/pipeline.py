"""`penstock pipeline`: list, explain, run, status. Only `run` needs Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import output, sparking
from penstock.cli.exits import nothing_there
from penstock.cli.options import AsJson, ContextOption, Since, Until, Url
from penstock.cli.pipeline_flags import PipelineCommand, chosen, named
from penstock.cli.pipeline_report import write_explanation, write_report, write_runs
from penstock.cli.sparking import Bar, Conf, Master, parsed_conf, readable

app = typer.Typer(help="Spark jobs over history: list, explain, run, status.", no_args_is_help=True)


def complete_pipeline(incomplete: str) -> list[str]:
    """Pipelines that begin like this."""
    from penstock.spark.pipelines.registry import names

    return sorted(name for name in names() if name.startswith(incomplete))


ABOUT_NAME = "A pipeline that ships with Penstock, or module:function of your own."
Name = Annotated[str, typer.Argument(metavar="NAME", help=ABOUT_NAME, autocompletion=complete_pipeline)]
NameOrAll = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="One pipeline only.", autocompletion=complete_pipeline)
]
Out = Annotated[Path | None, typer.Option("--out", "-o", metavar="DIR", help="Its files. [default: ./pipelines/NAME]")]


@app.command(name="list")
def list_(as_json: AsJson = False) -> None:
    """The pipelines that ship with Penstock."""
    from penstock.spark.pipelines.registry import shipped

    found = shipped()
    if as_json:
        output.write_json([{"name": each.name, "summary": each.summary} for each in found])
        return
    output.write(
        output.table(("pipeline", "what it does"), [(each.name, each.summary) for each in found], text_columns=2)
    )
    output.write("\n[dim]'penstock pipeline explain NAME' says more; your own: docs/pipelines.md[/]")


@app.command()
def explain(name: Name, as_json: AsJson = False) -> None:
    """What a pipeline reads, does and writes, and its options."""
    from penstock.spark.pipelines.registry import find

    write_explanation(find(name), as_json=as_json)


@app.command(cls=PipelineCommand)
def run(
    ctx: typer.Context,
    name: Name,
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", "-q", metavar="QUEUE", help="A queue, or a pattern such as orders.*; may repeat."),
    ] = None,
    since: Since = None,
    until: Until = None,
    out: Out = None,
    master: Master = "local[*]",
    conf: Conf = None,
    url: Url = None,
    context: ContextOption = None,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline. What earlier runs have done is not done again.

    Each pipeline has options of its own: `penstock pipeline run rollup --help`
    """
    from penstock.spark.pipelines.running import PipelineRun, default_out, execute

    where, options, place = readable(url, context), chosen(ctx), out or default_out(name)
    settings = parsed_conf(conf)
    made = PipelineRun(None, where, queue or (), options=options, out=place, since=since, until=until)
    named(ctx).check(made)
    with Bar(is_shown=not as_json) as bar, sparking.started(name, master=master, settings=settings, bar=bar) as spark:
        bar.step("reading")
        made.spark, made.progress = spark, bar
        report = execute(named(ctx), made)
    write_report(named(ctx), made, report, as_json=as_json)


@app.command()
def status(name: NameOrAll = None, out: Out = None, as_json: AsJson = False) -> None:
    """What earlier runs left behind: when, what, how far."""
    from penstock.spark.pipelines.records import records
    from penstock.spark.pipelines.running import default_out

    if name is None:
        home = out or default_out("")
        places = sorted(each for each in home.glob("*") if each.is_dir())
    else:
        home = out or default_out(name)
        places = [home]
    found = {place: runs for place in places if (runs := records(place))}
    if not found:
        what = "no pipeline has" if name is None else f"{name} has not"
        raise nothing_there(f"{what} run in {home}", "--out says where to look")
    write_runs(found, as_json=as_json)
