"""`penstock completion`, and what a shell is offered after TAB.

Names come from the broker if it answers at once; a shell must not hang, so whatever goes wrong means no names. A data
directory is never opened for this: that would take its lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

if TYPE_CHECKING:
    from penstock import Penstock

PATIENCE_SECONDS: Final = 1.0

Shell = Annotated[
    Literal["bash", "zsh", "fish", "powershell"], typer.Argument(metavar="SHELL", help="bash, zsh, fish or powershell.")
]


def completion(shell: Shell) -> None:
    """Print the completion script of a shell; `penstock --install-completion` installs it.

    For this session only: `eval "$(penstock completion bash)"`
    """
    from typer._completion_shared import get_completion_script

    typer.echo(get_completion_script(prog_name="penstock", complete_var="_PENSTOCK_COMPLETE", shell=shell))


def complete_queue(ctx: typer.Context, incomplete: str) -> list[str]:
    """Queues that begin like this."""
    return _beginning(incomplete, _answer(ctx, lambda ps: ps.queues()))


def complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    """Groups of the queue named before."""
    queue = ctx.params.get("queue")
    return _beginning(incomplete, _answer(ctx, lambda ps: ps.queue(str(queue)).groups()) if queue else [])


def complete_context(incomplete: str) -> list[str]:
    """Contexts that begin like this."""
    from penstock.cli import contexts

    with suppress(Exception):
        return _beginning(incomplete, contexts.load().contexts)
    return []


def _beginning(incomplete: str, names: Any) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def _answer(ctx: typer.Context, question: Callable[[Penstock], Any]) -> Any:
    """What a broker answers within a moment; nothing otherwise."""
    from penstock.cli import target

    answers: list[Any] = []

    def ask() -> None:
        with suppress(Exception):
            where = target.address(ctx.params.get("url"), ctx.params.get("context"))
            if not target.is_directory(where):
                with target.opened(where) as ps:
                    answers.append(question(ps))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE_SECONDS)
    return answers[0] if answers else []
