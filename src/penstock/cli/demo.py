"""`penstock demo`: everything once, in a directory of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    directory: Annotated[
        Path | None, typer.Option("--dir", help="A new directory to work in; a temporary one if not given.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer messages and no pauses.")] = False,
) -> None:
    """Show Penstock at work: push, lease, retry, delay, kill -9, recover, read the history. About 20 seconds."""
    from penstock.cli.demo_play import play

    play(directory, quick=quick)
