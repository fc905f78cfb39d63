"""Options that several commands take, their completion, and a flag for every queue option.

Completion asks the broker for names if it answers at once; a shell must not hang, so whatever goes wrong means no
names. A data directory is never opened for this: that would take its lock. Flags of queue options are made from
`QueueOptions`: `--lease-seconds 5m`, `--retention-bytes 10GiB`, `--max-length none`.
"""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, TypeVar, get_args

import msgspec
import typer

from penstock import units
from penstock.cli import human
from penstock.cli.exits import CommandError
from penstock.errors import InvalidField
from penstock.model import BACKOFFS, QueueOptions, check_priority
from penstock.model_options import OPTION_TEXTS
from penstock.units import seconds, size_bytes

if TYPE_CHECKING:
    from penstock import Penstock


PATIENCE_SECONDS: Final = 1.0
Parsed = TypeVar("Parsed")
Function = TypeVar("Function", bound=Callable[..., None])

Shell = Annotated[
    Literal["bash", "zsh", "fish", "powershell"], typer.Argument(metavar="SHELL", help="bash, zsh, fish or powershell.")
]


class Flags:
    """Options that several commands share. A command that has a parameter of such a type has a flag for each field."""

    are_last: ClassVar[bool] = False  # after all others, in the help
    panel: ClassVar[str | None] = None  # under which the help shows those that name none

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        """The flags, as parameters of a command."""
        flags = list(inspect.signature(cls, eval_str=True).parameters.values())
        return [_in_panel(flag, cls.panel) for flag in flags] if cls.panel else flags


def _in_panel(flag: inspect.Parameter, panel: str) -> inspect.Parameter:
    kind, about = get_args(flag.annotation)
    shown = copy.copy(about)
    shown.rich_help_panel = about.rich_help_panel or panel
    return flag.replace(annotation=Annotated[kind, shown])


def expanded(function: Callable[..., None]) -> Callable[..., None]:
    """The function of a command with flags in place of its parameters that are `Flags`."""
    signature = inspect.signature(function, eval_str=True)
    first: list[inspect.Parameter] = []
    last: list[inspect.Parameter] = []
    shared: dict[str, tuple[type[Flags], list[str]]] = {}
    for name, parameter in signature.parameters.items():
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, Flags):
            flags = kind.parameters()
            shared[name] = (kind, [flag.name for flag in flags])
            (last if kind.are_last else first).extend(flags)
        else:
            first.append(parameter)

    def run(**arguments: Any) -> None:
        for name, (kind, names) in shared.items():
            arguments[name] = kind(**{flag: arguments.pop(flag) for flag in names})
        function(**arguments)

    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in [*first, *last]]
    run.__signature__ = signature.replace(parameters=keywords)  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    return run


def command(app: typer.Typer, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
    """Add a command to an app; see `Flags`."""

    def add(function: Function) -> Function:
        app.command(name, **options)(expanded(function))
        return function

    return add


# completion


def completion(shell: Shell) -> None:
    """Print the completion script of a shell; `penstock --install-completion` installs it.

    For this session only: `eval "$(penstock completion bash)"`
    """
    from typer._completion_shared import get_completion_script

    typer.echo(get_completion_script(prog_name="penstock", complete_var="_PENSTOCK_COMPLETE", shell=shell))


def complete_queue(ctx: typer.Context, incomplete: str) -> list[str]:
    """Queues that begin like this."""
    return _beginning(incomplete, _reply(ctx, lambda ps: ps.queues()))


def complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    """Groups of the queue named before."""
    queue = ctx.params.get("queue")
    return _beginning(incomplete, _reply(ctx, lambda ps: ps.queue(str(queue)).groups()) if queue else [])


def complete_context(incomplete: str) -> list[str]:
    """Contexts that begin like this."""
    from penstock.cli import target

    with suppress(Exception):
        return _beginning(incomplete, target.load().contexts)
    return []


def _beginning(incomplete: str, names: Any) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def _reply(ctx: typer.Context, request: Callable[[Penstock], Any]) -> Any:
    """What a broker replies within a moment; nothing otherwise."""
    from penstock.cli.target import Broker

    replies: list[Any] = []

    def ask() -> None:
        with suppress(Exception):
            broker = Broker(ctx.params.get("url"), ctx.params.get("context"))
            if not broker.is_directory:
                with broker.opened() as ps:
                    replies.append(request(ps))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    return replies[0] if replies else []


WHERE = "Which broker"

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        "-u",
        envvar="PENSTOCK_URL",
        show_envvar=False,
        help="penstock://host:port, http://host:port (TLS: penstocks, https), or a data directory. [env: PENSTOCK_URL]",
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
        help="A saved broker; see 'penstock context'. [env: PENSTOCK_CONTEXT]",
        rich_help_panel=WHERE,
        autocompletion=complete_context,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
QueueName = Annotated[
    str, typer.Argument(metavar="QUEUE", help="The name of the queue.", autocompletion=complete_queue)
]
QueueNames = Annotated[
    list[str],
    typer.Argument(
        metavar="QUEUE…", help="Names of queues, or prefixes such as 'shop.*'.", autocompletion=complete_queue
    ),
]
GroupName = Annotated[
    str, typer.Argument(metavar="GROUP", help="The name of the group.", autocompletion=complete_group)
]
Group = Annotated[str, typer.Option("--group", "-g", help="The consumer group.", autocompletion=complete_group)]
Partition = Annotated[str | None, typer.Option("--partition", "-p", help="A partition, by number or name.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="At most this many.")]
PayloadOnly = Annotated[bool, typer.Option("--payload-only", help="Print only the payloads, one per line.")]


def of_flag(name: str, parse: Callable[[str], Parsed]) -> Callable[[str], Parsed]:
    """A parser whose refusals name the flag that has the value."""

    def parsed(text: str) -> Parsed:
        try:
            return parse(text)
        except InvalidField as error:
            raise InvalidField(f"{name}: {error.message}", hint=error.hint) from None

    return parsed


def seconds_option(*names: str, about: str) -> typer.models.OptionInfo:
    """A duration."""
    option: typer.models.OptionInfo = typer.Option(
        *names, parser=of_flag(names[0], units.seconds), metavar="DURATION", help=about
    )
    return option


def instant_option(*names: str, about: str) -> typer.models.OptionInfo:
    """An instant."""
    option: typer.models.OptionInfo = typer.Option(
        *names, parser=of_flag(names[0], human.instant), metavar="TIME", help=about
    )
    return option


Since = Annotated[datetime | None, instant_option("--since", about="At or after this time; -1h is an hour ago.")]
Until = Annotated[datetime | None, instant_option("--until", about="Before this time.")]


def pairs(texts: Iterable[str], flag: str, example: str) -> dict[str, str]:
    """Values from `name=value`."""
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise CommandError(f"{flag}: {text!r} is not name=value", hint=f"such as {flag} {example}")
        values[name] = value
    return values


def priority(text: str) -> int:
    """A priority by number or by name; `InvalidField` names the flag."""
    return of_flag("--priority", _checked_priority)(text)


def _checked_priority(text: str) -> int:
    try:
        return check_priority(int(text) if text.isdigit() else text)
    except InvalidField as error:
        raise InvalidField(error.message.removeprefix("priority: "), hint=error.hint) from None


# a flag for every queue option

QUEUE_PANEL = "Queue options (docs/options.md)"
TYPES: dict[str, Any] = {field.name: field.type for field in msgspec.structs.fields(QueueOptions)}
DEFAULTS: dict[str, Any] = {field.name: field.default for field in msgspec.structs.fields(QueueOptions)}
TYPES["backoff"] = Literal[tuple(BACKOFFS)] | None  # a name for four of them


class QueueFlags(Flags):
    """A flag for each queue option: a new option has its flag the day it is declared."""

    are_last: ClassVar[bool] = True

    def __init__(self, **texts: str | None) -> None:
        # What values may be is checked where queues are made.
        self.values = {name: _value(name, text) for name, text in texts.items() if text is not None}

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        return [_parameter(name) for name in (*DEFAULTS, "backoff")]


def flag(name: str) -> str:
    """How an option is written on a command line."""
    return f"--{name.replace('_', '-')}"


def _parameter(name: str) -> inspect.Parameter:
    about = f"{OPTION_TEXTS[name]} {_choices(name)}[default: {shown(name, DEFAULTS.get(name))}]"
    unit = {"seconds": "DURATION", "bytes": "SIZE"}.get(name.rpartition("_")[2], "VALUE")
    option = typer.Option(flag(name), metavar=unit, help=about, rich_help_panel=QUEUE_PANEL)
    annotation = Annotated[str | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def shown(name: str, value: Any) -> str:
    """The value of an option, for people."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value) or "none"
    if name.endswith("_seconds"):
        return human.duration(value) if value else "0s"
    return human.size(value) if name.endswith("_bytes") else str(value)


def _choices(name: str) -> str:
    """The words that an option takes, if it takes nothing else."""
    kind = TYPES[name]
    if kind is bool:
        return "One of true, false. "
    words = _words(name)
    return "" if int in get_args(kind) or not words else f"One of {', '.join(words)}. "


def _words(name: str) -> list[str]:
    """The words in the type of an option, which may be a choice, or a choice or nothing."""
    kind = TYPES[name]
    words = (word for part in (kind, *get_args(kind)) for word in get_args(part) if isinstance(word, str))
    return list(dict.fromkeys(words))


def _value(name: str, text: str) -> Any:
    if isinstance(DEFAULTS.get(name), tuple):
        return () if text.lower() == "none" else tuple(text.split(","))
    if text.lower() == "none" and "none" not in _words(name):
        return None
    if name.endswith("_seconds"):
        return of_flag(flag(name), seconds)(text)
    if name.endswith("_bytes"):
        return of_flag(flag(name), size_bytes)(text)
    if isinstance(DEFAULTS.get(name), bool):
        if text.lower() not in ("true", "false", "yes", "no"):
            raise CommandError(f"{flag(name)}: {text!r} is neither true nor false", hint="use true or false")
        return text.lower() in ("true", "yes")
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
