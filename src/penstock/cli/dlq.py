"""`penstock dlq`: dead letters, looked at, sent back, thrown away."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer
from rich.markup import escape

from penstock.cli import human, output, shapes
from penstock.cli.exits import CommandError, nothing_there
from penstock.cli.options import AsJson, ContextOption, Limit, QueueName, Since, Until, Url, Yes
from penstock.cli.target import opened
from penstock.model import DLQ_SUFFIX, Message, MessageId
from penstock.units import plural

app = typer.Typer(help="Dead letters: list, show, redrive, purge.", no_args_is_help=True)

WIDTH = len("first delivered at") + 1
FILTER = "Which ones: all that is given must match"
OfGroup = Annotated[str | None, typer.Option("--group", "-g", help="Died in this group.", rich_help_panel=FILTER)]
Reason = Annotated[
    str | None, typer.Option("--reason", help="Why: dead (its attempts ran out), rejected, …", rich_help_panel=FILTER)
]
Error = Annotated[str | None, typer.Option("--error", help="The error has this text.", rich_help_panel=FILTER)]
Key = Annotated[str | None, typer.Option("--key", "-k", help="The key of the message.", rich_help_panel=FILTER)]
LetterId = Annotated[str, typer.Argument(metavar="ID", help="As 'penstock dlq list' prints it.")]


@app.command(name="list")
def list_(
    queue: QueueName,
    group: OfGroup = None,
    reason: Reason = None,
    error: Error = None,
    key: Key = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 100,
    url: Url = None,
    context: ContextOption = None,
    as_json: AsJson = False,
) -> None:
    """Dead letters, oldest first."""
    with opened(url, context) as ps:
        found = ps.queue(queue).dlq.list(
            group=group, reason=reason, error_contains=error, key=key, since=since, until=until, limit=limit
        )
    if not found:
        raise nothing_there(f"no dead letters in {queue!r}" + _if_filtered(group, reason, error, key, since, until))
    if as_json:
        for letter in found:
            output.write_json_line(shapes.letter(letter))
        return
    rows = [_row(letter) for letter in found]
    output.write(output.table(("id", "age", "tries", "reason", "error"), rows, text_columns=4, has_excerpt=True))


@app.command()
def show(id: LetterId, url: Url = None, context: ContextOption = None, as_json: AsJson = False) -> None:
    """One dead letter: where it comes from, why it died, and its payload."""
    chosen = letter_id(id)
    with opened(url, context) as ps:
        found = ps.queue(chosen.queue).read(chosen.partition, chosen.offset, limit=1)
    if not found or found[0].id != chosen:
        raise nothing_there(f"no dead letter {id}", "'penstock dlq list QUEUE' lists them")
    if as_json:
        output.write_json(shapes.letter(found[0]))
        return
    for name, value in _about(found[0]):
        output.write(f"[dim]{name:<{WIDTH}}[/] {escape(human.excerpt(value.encode(), 4000))}")
    output.write("")
    output.write_bytes(shapes.content(found[0]))


@app.command()
def redrive(
    queue: QueueName,
    id: Annotated[
        list[str] | None, typer.Option("--id", help="This dead letter; may repeat.", rich_help_panel=FILTER)
    ] = None,
    group: OfGroup = None,
    reason: Reason = None,
    error: Error = None,
    key: Key = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 1_000_000,
    rate: Annotated[float | None, typer.Option(help="At most so many a second.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many.")] = False,
    url: Url = None,
    context: ContextOption = None,
    as_json: AsJson = False,
) -> None:
    """Send dead letters back to the group where they died, with their attempts counted anew."""
    ids = None if id is None else [letter_id(text) for text in id]
    wanted: dict[str, Any] = {"group": group, "reason": reason, "error_contains": error, "key": key}
    wanted |= {"since": since, "until": until}
    with opened(url, context) as ps:
        letters = ps.queue(queue).dlq
        if dry_run:
            found = letters.list(**wanted, limit=min(limit, 100_000))
            count = sum(ids is None or letter.id in ids for letter in found)
        else:
            count = letters.redrive(ids=ids, **wanted, limit=limit, rate=rate)
    if not count:
        raise nothing_there(f"no dead letters in {queue!r}" + _if_filtered(id, group, reason, error, key, since, until))
    verb = "would go" if dry_run else "went"
    value = {"queue": queue, "redriven": 0 if dry_run else count, "matching": count, "dry_run": dry_run}
    output.done(f"{plural(count, 'dead letter')} {verb} back to {queue}", value, as_json=as_json)


@app.command()
def purge(
    queue: QueueName, yes: Yes = False, url: Url = None, context: ContextOption = None, as_json: AsJson = False
) -> None:
    """Throw all dead letters of a queue away."""
    with opened(url, context) as ps:
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


def _if_filtered(*filters: str | list[str] | datetime | None) -> str:
    return " that match" if any(each is not None for each in filters) else ""
