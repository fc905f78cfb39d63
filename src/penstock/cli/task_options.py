"""Options that describe a task, for the commands that submit one now or by the clock."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.options import seconds_option

TaskType = Annotated[str, typer.Argument(metavar="TYPE", help="The name of the task, such as send.")]
Values = Annotated[
    list[str] | None, typer.Argument(metavar="[ARGUMENT]...", help="Its arguments: JSON, or else plain text.")
]
Arg = Annotated[list[str] | None, typer.Option("--arg", "-a", metavar="NAME=VALUE", help="May repeat.")]
Args = Annotated[str | None, typer.Option(metavar="JSON", help="All arguments, as a JSON array.")]
Kwargs = Annotated[str | None, typer.Option(metavar="JSON", help="All named arguments, as a JSON object.")]
Queue = Annotated[str, typer.Option("--queue", "-q", help="The queue that its workers look at.")]
Priority = Annotated[str, typer.Option(help="0 to 255, or background, low, normal, high, critical.")]
Key = Annotated[str | None, typer.Option("--key", "-k", help="For limits by key.")]
Timeout = Annotated[float | None, seconds_option("--timeout", about="Break a run off after so long.")]
MaxAttempts = Annotated[int | None, typer.Option(min=1, help="Runs before it is dead.")]
