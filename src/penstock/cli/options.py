"""Options that several commands take, spelt once."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from penstock import units
from penstock.cli import human
from penstock.cli.completion import complete_context, complete_group, complete_queue

WHERE = "Which broker"

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        "-u",
        envvar="PENSTOCK_URL",
        show_envvar=False,
        help="penstock://host:port, http://host:port, or a data directory. [env: PENSTOCK_URL]",
        rich_help_panel=WHERE,
    ),
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        "-c",
        envvar="PENSTOCK_CONTEXT",
        show_envvar=False,
        help="A broker by name; see 'penstock context'. [env: PENSTOCK_CONTEXT]",
        rich_help_panel=WHERE,
        autocompletion=complete_context,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
QueueName = Annotated[
    str, typer.Argument(metavar="QUEUE", help="The name of the queue.", autocompletion=complete_queue)
]
GroupName = Annotated[
    str, typer.Argument(metavar="GROUP", help="The name of the group.", autocompletion=complete_group)
]
Group = Annotated[str, typer.Option("--group", "-g", help="The consumer group.", autocompletion=complete_group)]
Partition = Annotated[str | None, typer.Option("--partition", "-p", help="A partition, by number or name.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")]
PayloadOnly = Annotated[
    bool, typer.Option("--payload-only", help="Print the payloads and nothing else, each followed by a newline.")
]


def seconds_option(*names: str, about: str) -> typer.models.OptionInfo:
    """A duration."""
    found: typer.models.OptionInfo = typer.Option(*names, parser=units.seconds, metavar="DURATION", help=about)
    return found


def instant_option(*names: str, about: str) -> typer.models.OptionInfo:
    """An instant."""
    found: typer.models.OptionInfo = typer.Option(*names, parser=human.instant, metavar="TIME", help=about)
    return found


Since = Annotated[datetime | None, instant_option("--since", about="From this time on; -1h is an hour ago.")]
Until = Annotated[datetime | None, instant_option("--until", about="Before this time.")]
