"""`penstock dlq`: dead letters, looked at, sent back, thrown away."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from rich.markup import escape

from penstock.cli import human, output, shapes
from penstock.cli.exits import CommandError, nothing_there
from penstock.cli.options import AsJson, Flags, Limit, QueueName, Since, Until, Yes, command
from penstock.cli.target import Broker
from penstock.model import DLQ_SUFFIX, Message, MessageId
from penstock.units import plural

if TYPE_CHECKING:
    from penstock import Penstock

app = typer.Typer(help="Dead letters: list, show, redrive, edit, purge.", no_args_is_help=True)

WIDTH = len("first delivered at") + 1
FILTER = "Which ones: all that is given must match"
LetterId = Annotated[str, typer.Argument(metavar="ID", help="As 'penstock dlq list' prints it.")]


@dataclass(frozen=True)
class FilterFlags(Flags):
    """Which dead letters a command is about."""

    panel = FILTER
    group: Annotated[str | None, typer.Option("--group", "-g", help="Died in this group.")] = None
    reason: Annotated[str | None, typer.Option(help="Why: dead (its attempts ran out), rejected, …")] = None
    error: Annotated[str | None, typer.Option(help="The error has this text.")] = None
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of the message.")] = None
    since: Since = None
    until: Until = None

    def fields(self) -> dict[str, Any]:
        """The arguments of `dlq.list` and `dlq.redrive`."""
        fields = asdict(self)
        return {"error_contains": fields.pop("error"), **fields}


@command(app, "list")
def list_(filters: FilterFlags, broker: Broker, queue: QueueName, limit: Limit = 100, as_json: AsJson = False) -> None:
    """Dead letters, oldest first."""
    with broker.opened() as ps:
        letters = ps.queue(queue).dlq.list(**filters.fields(), limit=limit)
    if not letters:
        raise nothing_there(f"no dead letters in {queue!r}{_if_filtered(filters)}")
    if as_json:
        for letter in letters:
            output.write_json_line(shapes.letter(letter))
        return
    rows = [_row(letter) for letter in letters]
    output.write(output.table(("id", "age", "tries", "reason", "error"), rows, text_columns=4, has_excerpt=True))


@command(app)
def show(broker: Broker, id: LetterId, as_json: AsJson = False) -> None:
    """One dead letter: where it comes from, why it died, and its payload."""
    chosen = letter_id(id)
    with broker.opened() as ps:
        letter = _letter(ps, chosen)
    if as_json:
        output.write_json(shapes.letter(letter))
        return
    for name, value in _about(letter):
        output.write(f"[dim]{name:<{WIDTH}}[/] {escape(human.excerpt(value.encode(), 4000))}")
    output.write("")
    output.write_bytes(shapes.content(letter))


@command(app)
def redrive(
    broker: Broker,
    queue: QueueName,
    filters: FilterFlags,
    id: Annotated[
        list[str] | None, typer.Option("--id", help="This dead letter; may repeat.", rich_help_panel=FILTER)
    ] = None,
    limit: Limit = 1_000_000,
    rate: Annotated[float | None, typer.Option(help="At most this many a second.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send dead letters back to the group where they died, with their attempts counted from zero."""
    ids = None if id is None else [letter_id(text) for text in id]
    with broker.opened() as ps:
        dlq = ps.queue(queue).dlq
        if dry_run:
            letters = dlq.list(**filters.fields(), limit=min(limit, 100_000))
            count = sum(ids is None or letter.id in ids for letter in letters)
        else:
            count = dlq.redrive(ids=ids, **filters.fields(), limit=limit, rate=rate)
    if not count:
        raise nothing_there(f"no dead letters in {queue!r}{_if_filtered(filters, id)}")
    verb = "would go" if dry_run else "went"
    value = {"queue": queue, "redriven": 0 if dry_run else count, "matching": count, "dry_run": dry_run}
    output.done(f"{plural(count, 'dead letter')} {verb} back to {queue}", value, as_json=as_json)


@command(app)
def edit(
    broker: Broker,
    id: LetterId,
    payload: Annotated[str | None, typer.Option(help="The new payload, as text.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="The new payload; - is stdin."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The new key; as before if it is not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Push a changed message in place of a dead letter, in one step.

    Without --payload and --file the payload is opened in $EDITOR. It is a new message, for all groups of the queue.
    """
    chosen = letter_id(id)
    if payload is not None and file is not None:
        raise CommandError("--payload and --file are both given", hint="one of them")
    queue = chosen.queue.removesuffix(DLQ_SUFFIX)
    with broker.opened() as ps:
        letter = _letter(ps, chosen)
        content = _new_payload(shapes.content(letter), payload, file)
        changed = replace(letter, payload=content, key=letter.key if key is None else key, headers=_own(letter))
        ps.queue(queue).dlq.replace({chosen: replace(changed, id=None, partition=None, dedup_key=None)})
    output.done(f"{id} is replaced by a message of {queue}", {"id": id, "queue": queue}, as_json=as_json)


def _letter(ps: Penstock, id: MessageId) -> Message:
    messages = ps.queue(id.queue).read(id.partition, id.offset, limit=1)
    if not messages or messages[0].id != id:
        raise nothing_there(f"no dead letter {id}", "'penstock dlq list QUEUE' lists them")
    return messages[0]


def _own(letter: Message) -> dict[str, str] | None:
    return shapes.own_headers(letter) or None


def _new_payload(before: bytes, text: str | None, file: Path | None) -> bytes:
    if text is not None:
        return text.encode()
    if file is not None:
        try:
            return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        except OSError as error:
            raise CommandError(f"--file: {file} cannot be read: {error.strerror}", hint="check the path") from None
    changed = click.edit(before.decode(errors="surrogateescape"), extension=".txt")
    if changed is None:
        raise CommandError("nothing was changed", hint="save the file in the editor to push it")
    content = changed.encode(errors="surrogateescape")
    return content if before.endswith(b"\n") else content.removesuffix(b"\n")  # which editors add


@command(app)
def purge(broker: Broker, queue: QueueName, yes: Yes = False, as_json: AsJson = False) -> None:
    """Throw all dead letters of a queue away."""
    with broker.opened() as ps:
        if not ps.queue(queue).dlq.list(limit=1):
            raise nothing_there(f"no dead letters in {queue!r}")
        output.confirm(f"Throw all dead letters of {queue} away?", yes=yes)
        ps.queue(queue).dlq.purge()
    output.done(f"{queue} has no dead letters any more", {"queue": queue, "status": "purged"}, as_json=as_json)


def letter_id(text: str) -> MessageId:
    """The id of a dead letter."""
    id = MessageId.parse(text)
    if not id.queue.endswith(DLQ_SUFFIX):
        hint = "dead letters have ids of their own: 'penstock dlq list QUEUE' prints them"
        raise CommandError(f"{text} is not the id of a dead letter", hint=hint)
    return id


def _row(letter: Message) -> tuple[Any, ...]:
    facts = shapes.death(letter)
    error = human.excerpt(facts["error"].encode(errors="replace"), 200)
    return letter.id, human.age(letter.pushed_at), facts["attempts"] or 0, facts["reason"], error or human.EMPTY


def _about(letter: Message) -> list[tuple[str, str]]:
    facts = shapes.death(letter)
    rows = [("id", str(letter.id)), ("key", letter.key or ""), ("died", human.moment(letter.pushed_at))]
    rows += [(name.replace("_", " "), "" if value is None else str(value)) for name, value in facts.items()]
    rows += [(f"header {name}", value) for name, value in shapes.own_headers(letter).items()]
    return [(name, value) for name, value in rows if value]


def _if_filtered(filters: FilterFlags, ids: list[str] | None = None) -> str:
    return "" if ids is None and filters == FilterFlags() else " that match"
