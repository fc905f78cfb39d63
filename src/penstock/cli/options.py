"""Options that several commands take, their completion, and a flag for every queue option.

Completion asks the broker for names if it answers at once; a shell must not hang, so whatever goes wrong means no
names. A data directory is never opened for this: that would take its lock. Flags of queue options are made from
`QueueOptions`: `--lease-seconds 5m`, `--retention-bytes 10GiB`, `--max-length none`.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

import msgspec
import typer

from penstock import units
from penstock.cli import human
from penstock.cli.exits import CommandError
from penstock.model import QueueOptions
from penstock.units import seconds, size_bytes

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
    from penstock.cli import target

    with suppress(Exception):
        return _beginning(incomplete, target.load().contexts)
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


# what describes a task, for the commands that submit one now or by the clock

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

# a flag for every queue option

PANEL = "Queue options (docs/options.md)"


def with_queue_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with a flag for each queue option; what is given arrives as the keyword `options`, parsed."""

    def run(**arguments: Any) -> None:
        given = {name: arguments.pop(name) for name in DEFAULTS}
        command(**arguments, options=parsed({name: text for name, text in given.items() if text is not None}))

    plain = inspect.signature(command, eval_str=True)
    kept = [parameter for name, parameter in plain.parameters.items() if name != "options"]
    run.__signature__ = plain.replace(parameters=[*kept, *map(_parameter, DEFAULTS)])  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


TYPES: dict[str, Any] = {field.name: field.type for field in msgspec.structs.fields(QueueOptions)}
DEFAULTS: dict[str, Any] = {field.name: field.default for field in msgspec.structs.fields(QueueOptions)}


def flag(name: str) -> str:
    """How an option is written on a command line."""
    return f"--{name.replace('_', '-')}"


def parsed(given: dict[str, str]) -> dict[str, Any]:
    """The values of options; what they may be is checked where queues are made."""
    return {name: _value(name, text) for name, text in given.items()}


def _parameter(name: str) -> inspect.Parameter:
    about = f"{_choices(name)}[default: {shown(name, DEFAULTS[name])}]"
    option = typer.Option(flag(name), metavar=_metavar(name), help=about, rich_help_panel=PANEL)
    annotation = Annotated[str | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def shown(name: str, value: Any) -> str:
    """The value of an option, for people."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if name.endswith("_seconds"):
        return human.duration(value) if value else "0s"
    return human.size(value) if name.endswith("_bytes") else str(value)


def _metavar(name: str) -> str:
    if name.endswith("_seconds"):
        return "DURATION"
    return "SIZE" if name.endswith("_bytes") else "VALUE"


def _choices(name: str) -> str:
    """The words that an option takes, if it takes nothing else."""
    kind = TYPES[name]
    if kind is bool:
        return "true, false "
    words = _words(name)
    return "" if int in get_args(kind) or not words else f"{', '.join(words)} "


def _words(name: str) -> list[str]:
    """The words in the type of an option, which may be a choice, or a choice or nothing."""
    kind = TYPES[name]
    found = (word for part in (kind, *get_args(kind)) for word in get_args(part) if isinstance(word, str))
    return list(dict.fromkeys(found))


def _value(name: str, text: str) -> Any:
    if text.lower() == "none" and "none" not in _words(name):
        return None
    if name.endswith("_seconds"):
        return seconds(text)
    if name.endswith("_bytes"):
        return size_bytes(text)
    if isinstance(DEFAULTS[name], bool):
        if text.lower() not in ("true", "false", "yes", "no"):
            raise CommandError(f"{flag(name)}: {text!r} is neither true nor false", hint="say true or false")
        return text.lower() in ("true", "yes")
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
