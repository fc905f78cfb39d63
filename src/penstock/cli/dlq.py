"""`penstock dlq`: dead letters, looked at, sent back, thrown away."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.markup import escape

from penstock.cli import human, output, shapes
from penstock.cli.bulk import BulkFlags, run_bulk
from penstock.cli.exits import CommandError, nothing_there
from penstock.cli.options import AsJson, Flags, Limit, QueueName, Since, Until, Yes, command
from penstock.cli.target import Broker
from penstock.model import DLQ_SUFFIX, Message, MessageId
from penstock.model_letters import SignatureView

if TYPE_CHECKING:
    from penstock import Penstock

app = typer.Typer(help="Dead letters: list, show, redrive, edit, purge.", no_args_is_help=True)

WIDTH = len("first delivered at") + 1
FILTER = "Filters (all must match)"
LetterId = Annotated[str, typer.Argument(metavar="ID", help="The id, from 'penstock dlq list'.")]


ALL = 2**62
Ids = Annotated[list[str] | None, typer.Option("--id", help="This dead letter; repeatable.", rich_help_panel=FILTER)]


@dataclass(frozen=True)
class FilterFlags(Flags):
    """Which dead letters a command is about."""

    panel = FILTER
    group: Annotated[str | None, typer.Option("--group", "-g", help="Dead letters of this group.")] = None
    reason: Annotated[str | None, typer.Option(help="Why it died: dead (attempts ran out), rejected, …")] = None
    error: Annotated[str | None, typer.Option(help="The error contains this text.")] = None
    key: Annotated[str | None, typer.Option("--key", "-k", help="Messages with this key.")] = None
    signature: Annotated[
        str | None, typer.Option(metavar="ID", help="The error signature, from 'penstock dlq signatures'.")
    ] = None
    since: Since = None
    until: Until = None

    def fields(self) -> dict[str, Any]:
        """The arguments of `dlq.list` and `dlq.redrive`."""
        fields = asdict(self)
        return {"error_contains": fields.pop("error"), **fields}


@command(app, "list")
def list_(filters: FilterFlags, broker: Broker, queue: QueueName, limit: Limit = 100, as_json: AsJson = False) -> None:
    """List dead letters, oldest first."""
    with broker.opened() as ps:
        letters = ps.queue(queue).dlq.list(**filters.fields(), limit=limit)
    if as_json:
        for letter in letters:
            output.write_json_line(shapes.letter(letter))
        return
    if not letters:
        output.write_nothing(f"no dead letters in {queue!r}{_if_filtered(filters)}")
        return
    rows = [_row(letter) for letter in letters]
    output.write(output.table(("id", "age", "tries", "reason", "error"), rows, text_columns=4, has_excerpt=True))


@command(app)
def show(broker: Broker, id: LetterId, as_json: AsJson = False) -> None:
    """Show a dead letter: its origin, why it died, and its payload."""
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
def signatures(
    broker: Broker,
    queue: Annotated[
        str | None, typer.Argument(metavar="[QUEUE]", help="The name of the queue. [default: all]")
    ] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Group dead letters by error signature, with what sets them apart from healthy messages."""
    from penstock import operations as ops

    operation = ops.AllSignatures(limit) if queue is None else ops.LetterSignatures(queue, limit)
    with broker.opened() as ps:
        report = ps.session.execute(operation)
    if as_json:
        output.write_json(msgspec.to_builtins(report))
        return
    if not report.signatures:
        output.write_nothing("no dead letters" if queue is None else f"no dead letters in {queue!r}")
        return
    rows = [
        (found.signature, found.queue, human.age(found.last_seen_at), found.count, _shared(found), found.text)
        for found in report.signatures
    ]
    headings = ("id", "queue", "last", "letters", "share", "signature")
    output.write(output.table(headings, rows, text_columns=3, has_excerpt=True))
    for sampled in report.queues:
        if sampled.is_sampled:
            output.write(f"[dim]{escape(sampled.queue)}: the newest {sampled.looked_at:,} of {sampled.letters:,}[/]")


def _shared(found: SignatureView) -> str:
    if not found.shares:
        return human.EMPTY
    share = found.shares[0]
    return f"{share.field} = {share.value} ({share.failed_percent:.0f} % / {share.healthy_percent:.0f} %)"


@command(app)
def redrive(
    broker: Broker,
    queue: QueueName,
    filters: FilterFlags,
    bulk: BulkFlags,
    id: Ids = None,
    limit: Limit = 1_000_000,
    edit: Annotated[
        str | None,
        typer.Option(metavar="JSON", help='Change the JSON payloads first: {"currency": "EUR", "old": null}.'),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Return dead letters to the group where they died, with attempts reset."""
    from penstock import operations as ops
    from penstock.client.values import split

    filter, name, options = split({**filters.fields(), "ids": _ids(id), **bulk.options()}, limit)
    patch = b"" if edit is None else edit.encode()
    with broker.opened() as ps:
        operation = ops.RedriveLetters(queue, filter, patch, name, options)
        run_bulk(ps, operation, f"no dead letters in {queue!r}{_if_filtered(filters, id)}", as_json=as_json)


@command(app)
def edit(
    broker: Broker,
    id: LetterId,
    payload: Annotated[str | None, typer.Option(help="The new payload, as text.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="A file with the new payload; - is standard input."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The new key. [default: unchanged]")] = None,
    as_json: AsJson = False,
) -> None:
    """Replace a dead letter with a changed message, in one step.

    Without --payload and --file, the payload is opened in $EDITOR. The result is a new message for all groups.
    """
    chosen = letter_id(id)
    if payload is not None and file is not None:
        raise CommandError("--payload and --file exclude each other", hint="use one of them")
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
    content = output.edit(before)
    if content is None:
        raise CommandError("nothing was changed", hint="save the file in the editor to push it")
    return content if before.endswith(b"\n") else content.removesuffix(b"\n")  # which editors add


@command(app)
def purge(
    broker: Broker,
    queue: QueueName,
    filters: FilterFlags,
    bulk: BulkFlags,
    id: Ids = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete dead letters of a queue, all or those that match."""
    from penstock import operations as ops
    from penstock.client.values import split

    filter, name, options = split({**filters.fields(), "ids": _ids(id), **bulk.options()}, ALL)
    nothing = f"no dead letters in {queue!r}{_if_filtered(filters, id)}"
    with broker.opened() as ps:
        if not bulk.dry_run:
            if not ps.queue(queue).dlq.list(limit=1):
                raise nothing_there(nothing)
            output.confirm(f"Delete dead letters of {queue}{_if_filtered(filters, id)}?", yes=yes)
        run_bulk(ps, ops.DiscardLetters(queue, filter, name, options), nothing, as_json=as_json)


def _ids(texts: list[str] | None) -> list[MessageId] | None:
    return None if texts is None else [letter_id(text) for text in texts]


def letter_id(text: str) -> MessageId:
    """The id of a dead letter."""
    id = MessageId.parse(text)
    if not id.queue.endswith(DLQ_SUFFIX):
        hint = "a dead letter has its own id: 'penstock dlq list QUEUE' prints it"
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
